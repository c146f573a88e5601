"""GRPO (DeepSeekMath, arXiv 2402.03300) and, without the division, Dr.GRPO's advantage (arXiv 2503.20783)."""

import torch

from grpo_api.spec.training import AlgorithmSpec
from grpo_trainer.algorithms import advantage_estimator

STD_EPSILON = 1e-6
"""verl's; it keeps nearly equal rewards from being blown up."""


@advantage_estimator("grpo")
def grpo(scores: torch.Tensor, algorithm: AlgorithmSpec) -> torch.Tensor:
    """(S - mean) / (std + 1e-6), the standard deviation with n-1; or S - mean without `norm_adv_by_std_in_grpo`."""
    centred = scores - scores.mean()
    return centred / (scores.std() + STD_EPSILON) if algorithm.norm_adv_by_std_in_grpo else centred
