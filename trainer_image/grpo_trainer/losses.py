"""The policy loss: PPO's clipped surrogate with dual clip, KL penalty and entropy bonus. A pure function of tensors.

Formulas: PPO (arXiv 1707.06347), dual clip (arXiv 1912.09729), clip-higher (DAPO, arXiv 2503.14476); the same as verl's
`compute_policy_loss_vanilla`.
"""

from dataclasses import dataclass

import torch

from grpo_api.spec.training import ActorSpec
from grpo_trainer.kl import kl_penalty


@dataclass(frozen=True)
class LossInputs:
    """Tokens of one micro-batch, all tensors of shape (T,) and float32."""

    log_probs: torch.Tensor
    """By the current policy, with gradient."""
    old_log_probs: torch.Tensor
    """By the policy that the step started from."""
    advantages: torch.Tensor
    weights: torch.Tensor
    """From `aggregate.token_weights`; 0 for tokens left out."""
    entropy: torch.Tensor
    """Of the current policy in nats; with gradient where `entropy_coeff` is not 0."""
    ref_log_probs: torch.Tensor | None = None


@dataclass(frozen=True)
class LossOutputs:
    """`loss` is this micro-batch's part of the mini-batch's loss. `sums` add up over micro-batches and ranks: names in
    TOKEN_SUMS are to be divided by the token count, the others are already weighted."""

    loss: torch.Tensor
    sums: dict[str, torch.Tensor]


TOKEN_SUMS = ("entropy", "pg_clipfrac", "pg_clipfrac_lower", "ppo_kl")


def policy_loss(inputs: LossInputs, actor: ActorSpec) -> LossOutputs:
    """Loss and metric sums of one micro-batch.

    With A >= 0 a token costs max(-A r, -A clip(r, 1-low, 1+high)); with A < 0 that is bounded by -A c.
    """
    low = actor.clip_ratio if actor.clip_ratio_low is None else actor.clip_ratio_low
    high = actor.clip_ratio if actor.clip_ratio_high is None else actor.clip_ratio_high
    advantages, weights = inputs.advantages, inputs.weights
    log_ratio = torch.clamp(inputs.log_probs - inputs.old_log_probs, -20.0, 20.0)
    ratio = log_ratio.exp()
    plain = -advantages * ratio
    clipped = -advantages * torch.clamp(ratio, 1.0 - low, 1.0 + high)
    upper = torch.maximum(plain, clipped)
    bound = -advantages * actor.clip_ratio_c
    token_loss = torch.where(advantages < 0, torch.minimum(upper, bound), upper)
    loss = pg_loss = (token_loss * weights).sum()
    counted = weights > 0
    sums = {
        "pg_loss": pg_loss.detach(),
        "pg_clipfrac": ((clipped > plain) & counted).sum(),
        "pg_clipfrac_lower": ((upper > bound) & (advantages < 0) & counted).sum(),
        "ppo_kl": (-log_ratio.detach() * counted).sum(),
        "entropy": (inputs.entropy.detach() * counted).sum(),
    }
    if inputs.ref_log_probs is not None:
        kl_loss = (kl_penalty(inputs.log_probs, inputs.ref_log_probs, actor.kl_loss_type) * weights).sum()
        loss = loss + actor.kl_loss_coef * kl_loss
        sums["kl_loss"] = kl_loss.detach()
    if actor.entropy_coeff:
        loss = loss - actor.entropy_coeff * (inputs.entropy * weights).sum()
    return LossOutputs(loss, sums)
