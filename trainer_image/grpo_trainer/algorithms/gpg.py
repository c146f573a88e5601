"""GPG, group policy gradient (arXiv 2504.02546). verl: `compute_gpg_outcome_advantage` with f_norm 1.

Its paper uses it with the loss -log pi A: `actor.policyLoss.lossMode: gpg`.
"""

import torch

from grpo_api.spec.training import AlgorithmSpec
from grpo_trainer.algorithms import advantage_estimator
from grpo_trainer.algorithms.batch import RewardBatch


@advantage_estimator("gpg")
def gpg(batch: RewardBatch, algorithm: AlgorithmSpec) -> torch.Tensor:
    """alpha (S - mean over the group), where alpha is the step's responses by those whose score is not 0."""
    alpha = len(batch.scores) / batch.scores.count_nonzero().clamp(min=1)
    return alpha * (batch.scores - batch.group_mean(batch.scores))
