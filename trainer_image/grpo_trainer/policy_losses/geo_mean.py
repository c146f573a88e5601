"""GMPO, geometric-mean policy optimisation (arXiv 2507.20673). verl: `compute_policy_loss_geo_mean`."""

import torch

from grpo_api.spec.training import ActorSpec
from grpo_trainer.policy_losses import PolicyTokens, TokenLoss, clip_range, policy_loss


@policy_loss("geo_mean", aggregation="seq-mean-token-mean")
def geo_mean(tokens: PolicyTokens, actor: ActorSpec) -> TokenLoss:
    """-A times the geometric mean of the sequence's ratios, whose logarithms are held within -low and +high each, as
    far as that lowers the objective. A is the mean over the sequence's tokens."""
    low, high = clip_range(actor)
    sign = torch.sign(tokens.advantages)
    held = torch.clamp(tokens.log_ratio, -low, high)
    log_ratio = sign * torch.minimum(sign * tokens.log_ratio, sign * held)
    cost = -tokens.sequence_mean(tokens.advantages) * tokens.sequence_mean(log_ratio).exp()
    outside = tokens.log_ratio != held
    return TokenLoss(cost, outside & (tokens.advantages > 0), outside & (tokens.advantages < 0))
