"""One sampled response and what is known of it."""

from dataclasses import dataclass

import torch


@dataclass
class Sample:
    """A response of T tokens to a prompt. Samples of one `group` share the prompt."""

    prompt_ids: list[int]
    """At least one token."""
    response_ids: list[int]
    """T tokens, the end-of-sequence token included where it was sampled. T may be 0."""
    group: int
    """Number of the prompt within the step."""
    rollout_log_probs: list[float] | None = None
    """T log-probabilities by the rollout engine, of the tempered distribution."""
    advantage: float | list[float] = 0.0
    """One advantage for all T tokens, or one for each."""
    old_log_probs: torch.Tensor | None = None
    """(T,) log-probabilities by the policy that the step started from; None where it is the current policy."""
    ref_log_probs: torch.Tensor | None = None
    """(T,) log-probabilities by the reference model."""
    mask: bool = True
    """False leaves the sample out of the loss and of its counts."""

    @property
    def trainable(self) -> bool:
        """Whether the sample adds to the loss."""
        return self.mask and len(self.response_ids) > 0
