"""Importance sampling between the rollout engine's policy and the trainer's: weights, and how far the two are apart.

Truncated: Ionides, "Truncated Importance Sampling" (2008), for RL of language models Yao et al., "Your Efficient RL
Framework Secretly Brings You Off-Policy RL Training" (2025). Masked: IcePop (2025). verl:
`rollout_corr_helper.compute_rollout_correction_weights`, `compute_rollout_rejection_mask`, `compute_offpolicy_metrics`.
"""

import math

import torch
import torch.distributed as dist

from grpo_api.spec.training import RolloutCorrectionSpec

_BOUND = 20.0
"""verl's SAFETY_BOUND for the logarithm of a ratio."""


def importance_weights(log_ratio: torch.Tensor, lengths: list[int], spec: RolloutCorrectionSpec) -> torch.Tensor:
    """(T,) weights of tokens of whole sequences, without gradient. `log_ratio` (T,) is the trainer's log-probability at
    the step's start less the rollout engine's."""
    logs = log_ratio.detach()
    if spec.rollout_is == "sequence":
        logs = torch.cat([part.sum().expand(len(part)) for part in logs.split(lengths)])
    weights = torch.clamp(logs, -_BOUND, _BOUND).exp()
    upper, lower = spec.rollout_is_threshold, spec.rollout_is_threshold_lower
    if lower is None:
        return weights.clamp(max=upper)
    return torch.where((weights >= lower) & (weights <= upper), weights, 0.0)


def kept(log_ratio: torch.Tensor, lengths: list[int], spec: RolloutCorrectionSpec) -> torch.Tensor:
    """(T,) booleans of tokens of whole sequences: False where `rolloutRs` rejects the token or its response.

    verl takes k1 as rollout over trainer, so that its bounds are the other way around than those of the weights.
    """
    if spec.rollout_rs == "none":
        return torch.ones_like(log_ratio, dtype=torch.bool)
    logs = torch.clamp(log_ratio.detach(), -_BOUND, _BOUND)
    level, _, estimator = spec.rollout_rs.rpartition("_")
    figures = {"k1": -logs, "k2": logs.square() / 2, "k3": logs.exp() - 1 - logs}[estimator]
    upper, lower = spec.rollout_rs_threshold, -math.inf
    if estimator == "k1":
        lower = math.log(spec.rollout_rs_threshold_lower or 1 / upper)
        upper = math.log(upper)
    if level != "token":
        over = {"seq_sum": torch.sum, "seq_mean": torch.mean, "seq_max": torch.amax}[level]
        figures = torch.cat([over(part).expand(len(part)) for part in figures.split(lengths)])
    return (figures >= lower) & (figures <= upper)


class Mismatch:
    """How far rollout and trainer are apart over a mini-batch: sums over its tokens, then over ranks."""

    def __init__(self, device: torch.device):
        self._sums = torch.zeros(5, dtype=torch.float64, device=device)

    def add(self, log_ratio: torch.Tensor, weights: torch.Tensor | None) -> None:
        """Tokens that have a log-probability by the rollout engine; (T,) each."""
        if not len(log_ratio):
            return
        logs = log_ratio.detach().double()
        applied = torch.ones_like(logs) if weights is None else weights.double()
        k3 = torch.clamp(logs, -_BOUND, _BOUND).exp() - logs - 1
        held = torch.ones_like(logs).sum()
        parts = [logs.abs().sum(), k3.sum(), applied.sum(), applied.square().sum(), held]
        self._sums += torch.stack(parts)

    def reduce(self) -> dict[str, float]:
        """Collective. Means over tokens: absolute difference, KL by k3, weight; and the effective sample size,
        (sum w)^2 / (n sum w^2), from 0 to 1."""
        dist.all_reduce(self._sums)
        absolute, k3, weight, squares, count = self._sums.tolist()
        if not count:
            return {}
        return {
            "rollout_log_prob_diff_mean": absolute / count,
            "rollout_k3_kl": k3 / count,
            "rollout_is_mean": weight / count,
            "rollout_is_eff_sample_size": weight**2 / (count * squares) if squares else 0.0,
        }
