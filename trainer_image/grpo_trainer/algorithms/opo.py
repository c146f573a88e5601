"""OPO, on-policy RL with the optimal baseline (arXiv 2505.23585). verl: `compute_opo_outcome_advantage`."""

import torch

from grpo_api.spec.training import AlgorithmSpec
from grpo_trainer.algorithms import advantage_estimator
from grpo_trainer.algorithms.batch import RewardBatch


@advantage_estimator("opo")
def opo(batch: RewardBatch, algorithm: AlgorithmSpec) -> torch.Tensor:
    """S minus the group's mean weighted by length: S - sum(T S) / sum(T)."""
    total = batch.group_sum(batch.lengths.double())
    return batch.scores - batch.group_sum(batch.lengths * batch.scores) / total.clamp(min=1)
