"""PPO's clipped surrogate (arXiv 1707.06347) with clip-higher (DAPO, arXiv 2503.14476) and dual clip (arXiv
1912.09729). verl: `compute_policy_loss_vanilla`.
"""

import torch

from grpo_api.spec.training import ActorSpec
from grpo_trainer.policy_losses import PolicyTokens, TokenLoss, clip_range, policy_loss


@policy_loss("vanilla")
def vanilla(tokens: PolicyTokens, actor: ActorSpec) -> TokenLoss:
    """max(-A r, -A clip(r, 1-low, 1+high)); with A < 0 that is bounded by -A c."""
    low, high = clip_range(actor)
    advantages, ratio = tokens.advantages, tokens.ratio()
    plain = -advantages * ratio
    clipped = -advantages * torch.clamp(ratio, 1.0 - low, 1.0 + high)
    upper = torch.maximum(plain, clipped)
    bound = -advantages * actor.clip_ratio_c
    cost = torch.where(advantages < 0, torch.minimum(upper, bound), upper)
    return TokenLoss(cost, clipped > plain, (upper > bound) & (advantages < 0))
