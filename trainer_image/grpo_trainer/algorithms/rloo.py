"""RLOO (arXiv 2402.14740): each response is compared with the mean of the others."""

import torch

from grpo_api.spec.training import AlgorithmSpec
from grpo_trainer.algorithms import advantage_estimator


@advantage_estimator("rloo")
def rloo(scores: torch.Tensor, algorithm: AlgorithmSpec) -> torch.Tensor:
    """S minus the mean of the other k-1 rewards, which is k/(k-1) (S - mean)."""
    k = len(scores)
    return (scores - scores.mean()) * (k / (k - 1))
