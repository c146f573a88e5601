"""GRPO (DeepSeekMath, arXiv 2402.03300) and Dr.GRPO (arXiv 2503.20783).

verl: `compute_grpo_outcome_advantage`, with `norm_adv_by_std_in_grpo=False` for the latter.
"""

import torch

from grpo_api.spec.training import AlgorithmSpec
from grpo_trainer.algorithms import advantage_estimator
from grpo_trainer.algorithms.batch import STD_EPSILON, RewardBatch


@advantage_estimator("grpo")
def grpo(batch: RewardBatch, algorithm: AlgorithmSpec) -> torch.Tensor:
    """(S - mean) / (std + 1e-6) over the group, the standard deviation with n-1; or S - mean without
    `norm_adv_by_std_in_grpo`."""
    return group_normalised(batch, batch.scores, algorithm.norm_adv_by_std_in_grpo)


@advantage_estimator("dr_grpo")
def dr_grpo(batch: RewardBatch, algorithm: AlgorithmSpec) -> torch.Tensor:
    """S - mean over the group."""
    return group_normalised(batch, batch.scores, by_std=False)


def group_normalised(batch: RewardBatch, scores: torch.Tensor, by_std: bool) -> torch.Tensor:
    """(B,) scores centred on their group's mean, and divided by its standard deviation where asked for."""
    centred = scores - batch.group_mean(scores)
    return centred / (batch.group_std(scores) + STD_EPSILON) if by_std else centred
