"""Policy losses, one file a family. `@policy_loss("name")` registers one; a new file is imported below.

Each gives a cost a token; how costs become one number is `aggregate.py`'s part, KL and entropy are `losses.py`'s.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from grpo_api.spec.training import ActorSpec, PolicyLossSpec
from grpo_trainer.registry import Registry, import_function


@dataclass(frozen=True)
class PolicyTokens:
    """Tokens, whole sequences one after the other; tensors (T,) float32. A loss is given those of one micro-batch."""

    log_probs: torch.Tensor
    """By the current policy; with gradient in a micro-batch."""
    old_log_probs: torch.Tensor
    """By the policy that the step started from."""
    advantages: torch.Tensor
    lengths: tuple[int, ...]
    """Tokens of each sequence."""
    chosen: torch.Tensor | None = field(default=None, kw_only=True)
    """(T,) booleans: the tokens that a loss with `choose` chose within the mini-batch."""

    @property
    def log_ratio(self) -> torch.Tensor:
        """(T,) log of the current policy's probability over the old one's."""
        return self.log_probs - self.old_log_probs

    def ratio(self) -> torch.Tensor:
        """(T,) probability ratio, its logarithm held within 20 either way."""
        return torch.clamp(self.log_ratio, -20.0, 20.0).exp()

    def sequence_mean(self, values: torch.Tensor) -> torch.Tensor:
        """(T,) at each token the mean of its sequence's values."""
        counts = torch.tensor(self.lengths, device=values.device)
        sequence = torch.arange(len(counts), device=values.device).repeat_interleave(counts)
        totals = torch.zeros(len(counts), dtype=values.dtype, device=values.device).index_add(0, sequence, values)
        return (totals / counts)[sequence]


@dataclass(frozen=True)
class TokenLoss:
    """(T,) each."""

    cost: torch.Tensor
    clipped: torch.Tensor
    """Booleans, for the metric pg_clipfrac: tokens whose ratio the loss holds back."""
    clipped_lower: torch.Tensor
    """Booleans, for pg_clipfrac_lower: those held by a second bound."""


@dataclass(frozen=True)
class MiniBatch(PolicyTokens):
    """This rank's tokens of a whole mini-batch that are trained on, without gradient."""

    keys: tuple[str, ...]
    """What tells the sequences of the mini-batch apart, on whichever rank they are."""
    update: int
    """Number of the update within the job."""


Loss = Callable[[PolicyTokens, ActorSpec], TokenLoss]
Choice = Callable[[MiniBatch, ActorSpec], torch.Tensor]


@dataclass(frozen=True)
class PolicyLoss:
    cost: Loss
    aggregation: str | None
    """The mode that the loss is defined with; None where `actor.lossAggMode` decides."""
    choose: Choice | None = None
    """For a loss that treats some tokens of a mini-batch otherwise: which, as (T,) booleans. Collective; it takes one
    pass of log-probabilities more an update."""


LOSSES = Registry[PolicyLoss]("actor.policyLoss.lossMode", "UnknownLossMode")


def policy_loss(name: str, *, aggregation: str | None = None, choose: Choice | None = None) -> Callable[[Loss], Loss]:
    """Registers a function under `actor.policyLoss.lossMode`'s value."""

    def register(function: Loss) -> Loss:
        LOSSES.add(name, PolicyLoss(function, aggregation, choose))
        return function

    return register


def find_loss(chosen: PolicyLossSpec) -> PolicyLoss:
    """The loss that the spec names, or the user's own. Raises SpecError or UserInputError where there is none."""
    if chosen.loss_path is None:
        return LOSSES.find(chosen.loss_mode)
    return PolicyLoss(import_function("actor.policyLoss.lossPath", chosen.loss_path), None)


def clip_range(actor: ActorSpec) -> tuple[float, float]:
    """The clip range below and above 1."""
    low = actor.clip_ratio if actor.clip_ratio_low is None else actor.clip_ratio_low
    high = actor.clip_ratio if actor.clip_ratio_high is None else actor.clip_ratio_high
    return low, high


# They register themselves.
from grpo_trainer.policy_losses import cispo, covariance, dppo, geo_mean, gpg, gspo, sapo, vanilla  # noqa: E402, F401
