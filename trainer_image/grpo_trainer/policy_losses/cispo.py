"""CISPO, clipped importance-sampling weights (MiniMax-M1, arXiv 2506.13585, section 3.1).

verl: `compute_policy_loss_cispo`. The paper sets no lower bound: `clipRatioLow: 1`.
"""

import torch

from grpo_api.spec.training import ActorSpec
from grpo_trainer.policy_losses import PolicyTokens, TokenLoss, clip_range, policy_loss


@policy_loss("cispo")
def cispo(tokens: PolicyTokens, actor: ActorSpec) -> TokenLoss:
    """-A log pi clip(r, 1-low, 1+high), the clipped ratio without gradient: every token keeps one."""
    low, high = clip_range(actor)
    ratio = tokens.ratio().detach()
    held = torch.clamp(ratio, 1.0 - low, 1.0 + high)
    cost = -held * tokens.advantages * tokens.log_probs
    return TokenLoss(cost, ratio != held, torch.zeros_like(ratio, dtype=torch.bool))
