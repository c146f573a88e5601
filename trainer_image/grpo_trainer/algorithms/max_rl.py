"""MaxRL, maximum-likelihood reinforcement learning (arXiv 2602.02710): rare successes weigh more."""

import torch

from grpo_api.spec.training import AlgorithmSpec
from grpo_trainer.algorithms import advantage_estimator
from grpo_trainer.algorithms.batch import STD_EPSILON, RewardBatch


@advantage_estimator("max_rl")
def max_rl(batch: RewardBatch, algorithm: AlgorithmSpec) -> torch.Tensor:
    """(S - mean) / (mean + 1e-6) over the group; 0 where the mean is not positive, for scores are taken as chances of
    success."""
    mean = batch.group_mean(batch.scores)
    return torch.where(mean > 0, (batch.scores - mean) / (mean + STD_EPSILON), 0.0)
