"""Clip-Cov and KL-Cov (arXiv 2505.22617): tokens whose log-probability and advantage vary together the most, which take
entropy away the fastest, are held back. verl: `compute_policy_loss_clip_cov` and `compute_policy_loss_kl_cov`.

verl chooses them within a micro-batch. Here they are chosen within the mini-batch, over all ranks and before its first
forward pass with gradient, so that gradients do not depend on how it is cut.
"""

import hashlib

import torch
import torch.distributed as dist

from grpo_api.spec.training import ActorSpec
from grpo_trainer.policy_losses import MiniBatch, PolicyTokens, TokenLoss, clip_range, policy_loss


def choose_to_clip(batch: MiniBatch, actor: ActorSpec) -> torch.Tensor:
    """(T,): a random `clipCovRatio` of the mini-batch's tokens, of those whose covariance is between the two bounds and
    which the clip leaves alone."""
    low, high = clip_range(actor)
    ratio = batch.ratio()
    clipped = -batch.advantages * torch.clamp(ratio, 1.0 - low, 1.0 + high) > -batch.advantages * ratio
    covariance = _covariance(batch)
    bounds = actor.policy_loss
    fit = (covariance > bounds.clip_cov_lb) & (covariance < bounds.clip_cov_ub) & ~clipped
    return _greatest(torch.where(fit, _draws(batch), -torch.inf), bounds.clip_cov_ratio)


def choose_to_penalise(batch: MiniBatch, actor: ActorSpec) -> torch.Tensor:
    """(T,): the `klCovRatio` of the mini-batch's tokens with the greatest covariance."""
    return _greatest(_covariance(batch), actor.policy_loss.kl_cov_ratio)


@policy_loss("clip_cov", choose=choose_to_clip)
def clip_cov(tokens: PolicyTokens, actor: ActorSpec) -> TokenLoss:
    """PPO's clipped surrogate, 0 at the chosen tokens."""
    low, high = clip_range(actor)
    ratio, chosen = tokens.ratio(), tokens.chosen
    cost = torch.maximum(-tokens.advantages * ratio, -tokens.advantages * torch.clamp(ratio, 1.0 - low, 1.0 + high))
    return TokenLoss(torch.where(chosen, 0.0, cost), chosen, torch.zeros_like(chosen))


@policy_loss("kl_cov", choose=choose_to_penalise)
def kl_cov(tokens: PolicyTokens, actor: ActorSpec) -> TokenLoss:
    """-A r, and at the chosen tokens `ppoKlCoef` times the absolute log ratio besides."""
    penalty = actor.policy_loss.ppo_kl_coef * tokens.log_ratio.abs() * tokens.chosen
    none = torch.zeros_like(tokens.chosen)
    return TokenLoss(-tokens.advantages * tokens.ratio() + penalty, none, none)


def _covariance(batch: MiniBatch) -> torch.Tensor:
    """(T,) (A - mean A) (log p - mean log p), float64, the means over the tokens of all ranks."""
    advantages, log_probs = batch.advantages.double(), batch.log_probs.double()
    sums = torch.stack([advantages.sum(), log_probs.sum(), torch.ones_like(advantages).sum()])
    dist.all_reduce(sums)
    means = sums[:2] / sums[2].clamp(min=1.0)
    return (advantages - means[0]) * (log_probs - means[1])


def _greatest(values: torch.Tensor, ratio: float) -> torch.Tensor:
    """(T,) whether a value is one of the greatest of all ranks: `ratio` of all tokens, one at least. Of values that are
    equal at the bound none is, as there is no order among them. -inf never is."""
    count = torch.tensor([len(values)], device=values.device)
    dist.all_reduce(count)
    wanted = max(int(ratio * count.item()), 1)
    # The greatest of all are among the greatest of each rank; one more is the bound below them.
    own = torch.full((wanted + 1,), -torch.inf, dtype=values.dtype, device=values.device)
    best = values.topk(min(wanted + 1, len(values))).values
    own[: len(best)] = best
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    return values > torch.cat(parts).topk(wanted + 1).values[-1]


def _draws(batch: MiniBatch) -> torch.Tensor:
    """(T,) a random number in [0, 1) for each token: the same wherever its response is computed."""
    draws = []
    for key, length in zip(batch.keys, batch.lengths, strict=True):
        digest = hashlib.blake2b(f"{batch.update}/{key}".encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest))
        draws.append(torch.rand(length, generator=generator, dtype=torch.float64))
    return torch.cat(draws).to(batch.log_probs.device) if draws else batch.log_probs.double()
