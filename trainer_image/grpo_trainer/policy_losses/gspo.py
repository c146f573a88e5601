"""GSPO, group sequence policy optimisation, in its token form (arXiv 2507.18071).

verl: `compute_policy_loss_gspo`.
"""

import torch

from grpo_api.spec.training import ActorSpec
from grpo_trainer.policy_losses import PolicyTokens, TokenLoss, clip_range, policy_loss


@policy_loss("gspo")
def gspo(tokens: PolicyTokens, actor: ActorSpec) -> TokenLoss:
    """max(-A s, -A clip(s, 1-low, 1+high)), where s is the geometric mean of the sequence's ratios, and its gradient at
    a token that of the token's own log-probability."""
    low, high = clip_range(actor)
    own = tokens.log_probs - tokens.log_probs.detach()
    ratio = torch.clamp(own + tokens.sequence_mean(tokens.log_ratio).detach(), max=10.0).exp()
    plain = -tokens.advantages * ratio
    clipped = -tokens.advantages * torch.clamp(ratio, 1.0 - low, 1.0 + high)
    return TokenLoss(torch.maximum(plain, clipped), clipped > plain, torch.zeros_like(plain, dtype=torch.bool))
