"""The KL in the reward: the penalty of each token, and the coefficient that fixed or adaptive control gives it."""

from collections.abc import Sequence

import torch

from grpo_api.spec.training import AlgorithmSpec
from grpo_trainer.kl import kl_penalty
from grpo_trainer.sample import Sample


class KlInReward:
    """verl's `apply_kl_penalty`, with its fixed and adaptive controllers (arXiv 1909.08593)."""

    def __init__(self, algorithm: AlgorithmSpec):
        self._kind, self._control = algorithm.kl_penalty, algorithm.kl_ctrl
        self.coefficient = algorithm.kl_ctrl.kl_coef
        """Part of a checkpoint."""

    def penalties(self, samples: Sequence[Sample]) -> tuple[list[torch.Tensor], float]:
        """For each sample (T,) what the KL takes off its tokens' rewards, and the KL: the mean over responses of the
        mean over tokens. Adapts the coefficient afterwards. Samples have both log-probabilities."""
        divergences = [kl_penalty(s.old_log_probs.double(), s.ref_log_probs.double(), self._kind) for s in samples]
        penalties = [self.coefficient * divergence for divergence in divergences]
        means = [divergence.mean().item() for divergence in divergences if len(divergence)]
        current = sum(means) / max(len(means), 1)
        if self._control.type == "adaptive":
            error = min(max(current / self._control.target_kl - 1.0, -0.2), 0.2)
            self.coefficient *= 1.0 + error * len(samples) / self._control.horizon
        return penalties, current
