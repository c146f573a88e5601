"""RLOO (arXiv 2402.14740): each response is compared with the mean of the others.

verl: `compute_rloo_outcome_advantage`.
"""

import torch

from grpo_api.spec.training import AlgorithmSpec
from grpo_trainer.algorithms import advantage_estimator
from grpo_trainer.algorithms.batch import RewardBatch


@advantage_estimator("rloo")
def rloo(batch: RewardBatch, algorithm: AlgorithmSpec) -> torch.Tensor:
    """S minus the mean of the group's other k-1 scores, which is k/(k-1) (S - mean)."""
    return (batch.scores - batch.group_mean(batch.scores)) * batch.size / (batch.size - 1).clamp(min=1)
