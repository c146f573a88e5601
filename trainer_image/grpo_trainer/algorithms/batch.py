"""What an advantage estimator sees of a step, and the statistics that several of them use."""

from dataclasses import dataclass
from functools import cached_property

import torch

STD_EPSILON = 1e-6
"""verl's `epsilon`: deviations far below it are damped instead of blown up."""
WHITEN_EPSILON = 1e-8
"""verl's in `masked_whiten`, added to the variance."""


@dataclass(frozen=True)
class RewardBatch:
    """The B responses of a step that have a reward; all tensors float64 unless said otherwise."""

    scores: torch.Tensor
    """(B,) rewards, the KL penalty of `algorithm.useKlInReward` taken off."""
    groups: torch.Tensor
    """(B,) int64, 0 to G-1: responses to the same prompt share a number."""
    lengths: torch.Tensor
    """(B,) int64 tokens of the responses."""
    baselines: torch.Tensor
    """(B,) with `remax` the reward of the greedy response to the same prompt, else 0."""
    token_penalties: tuple[torch.Tensor, ...] | None = None
    """For each response (T,): what the KL takes off each token's reward; None without it."""
    function_scores: torch.Tensor | None = None
    """(F, B) scores of the single reward functions."""
    function_weights: torch.Tensor | None = None
    """(F,) `weight` of each."""

    def group_sum(self, values: torch.Tensor) -> torch.Tensor:
        """(B,) the sum of (B,) values over each response's own group."""
        totals = torch.zeros(int(self.groups.max()) + 1, dtype=values.dtype)
        return totals.index_add(0, self.groups, values)[self.groups]

    @cached_property
    def size(self) -> torch.Tensor:
        """(B,) responses in each response's group."""
        return self.group_sum(torch.ones_like(self.scores))

    def group_mean(self, values: torch.Tensor) -> torch.Tensor:
        """(B,) means over groups."""
        return self.group_sum(values) / self.size

    def group_std(self, values: torch.Tensor) -> torch.Tensor:
        """(B,) standard deviations over groups, with n-1; 0 for a group of one."""
        squares = self.group_sum((values - self.group_mean(values)).square())
        return (squares / (self.size - 1).clamp(min=1)).sqrt()

    def nothing_to_compare(self, compared: torch.Tensor) -> torch.Tensor:
        """(B,) booleans: the group has one response, or in each of the (K, B) rows its scores are all exactly equal."""
        first = torch.zeros_like(compared)
        first[:, self.groups.flip(0)] = compared.flip(1)  # of every group, its first response's scores
        differs = (compared != first[:, self.groups]).any(0).double()
        return self.group_sum(differs) == 0

    def token_rewards(self) -> list[torch.Tensor]:
        """For each response (T,): its reward at the last token, less the KL penalty of every token."""
        rewards = []
        for index, length in enumerate(self.lengths.tolist()):
            tokens = torch.zeros(length, dtype=torch.float64)
            outcome = self.scores[index]
            if self.token_penalties is not None:
                outcome = outcome + self.token_penalties[index].sum()
                tokens -= self.token_penalties[index]
            if length:
                tokens[-1] += outcome
            rewards.append(tokens)
        return rewards


def whiten(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """(N,) values less their mean, by their standard deviation, each counted `counts` times (verl's `masked_whiten`,
    variance with n-1). All 0 where fewer than two are counted, or all are equal."""
    total = counts.sum()
    if total < 2:
        return torch.zeros_like(values)
    mean = (values * counts).sum() / total
    variance = ((values - mean).square() * counts).sum() / (total - 1)
    return (values - mean) * (variance + WHITEN_EPSILON).rsqrt()
