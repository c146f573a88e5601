"""The loss of a micro-batch: the policy loss that the spec names, KL penalty and entropy bonus. A pure function."""

from dataclasses import dataclass

import torch

from grpo_api.spec.training import ActorSpec
from grpo_trainer.kl import kl_penalty
from grpo_trainer.policy_losses import PolicyTokens, find_loss


@dataclass(frozen=True)
class LossInputs(PolicyTokens):
    """Tokens of one micro-batch and all that makes one number of them; tensors (T,) float32."""

    weights: torch.Tensor
    """From `aggregate.token_weights` by `actor.lossAggMode`; 0 for tokens left out."""
    policy_weights: torch.Tensor
    """The policy loss's own: `weights`, unless that loss is defined with another mode."""
    entropy: torch.Tensor
    """Of the current policy in nats; with gradient where `entropy_coeff` is not 0."""
    ref_log_probs: torch.Tensor | None = None
    rollout_weights: torch.Tensor | None = None
    """From `rollout_correction.importance_weights`; multiply the policy loss alone, as in verl."""


@dataclass(frozen=True)
class LossOutputs:
    """`loss` is this micro-batch's part of the mini-batch's loss. `sums` add up over micro-batches and ranks: names in
    TOKEN_SUMS are to be divided by the token count, the others are already weighted."""

    loss: torch.Tensor
    sums: dict[str, torch.Tensor]


TOKEN_SUMS = ("entropy", "pg_clipfrac", "pg_clipfrac_lower", "ppo_kl")


def compute_loss(inputs: LossInputs, actor: ActorSpec) -> LossOutputs:
    """Loss and metric sums of one micro-batch."""
    weights = inputs.weights
    policy = find_loss(actor.policy_loss).cost(inputs, actor)
    cost = policy.cost if inputs.rollout_weights is None else policy.cost * inputs.rollout_weights
    loss = pg_loss = (cost * inputs.policy_weights).sum()
    counted = weights > 0
    sums = {
        "pg_loss": pg_loss.detach(),
        "pg_clipfrac": (policy.clipped & counted).sum(),
        "pg_clipfrac_lower": (policy.clipped_lower & counted).sum(),
        "ppo_kl": (torch.clamp(-inputs.log_ratio.detach(), -20.0, 20.0) * counted).sum(),
        "entropy": (inputs.entropy.detach() * counted).sum(),
    }
    if inputs.ref_log_probs is not None:
        kl_loss = (kl_penalty(inputs.log_probs, inputs.ref_log_probs, actor.kl_loss_type) * weights).sum()
        loss = loss + actor.kl_loss_coef * kl_loss
        sums["kl_loss"] = kl_loss.detach()
    if actor.entropy_coeff:
        loss = loss - actor.entropy_coeff * (inputs.entropy * weights).sum()
    return LossOutputs(loss, sums)
