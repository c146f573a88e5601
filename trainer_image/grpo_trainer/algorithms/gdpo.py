"""GDPO, group reward-decoupled normalisation (arXiv 2601.05242). verl: `compute_gdpo_outcome_advantage`."""

import torch

from grpo_api.spec.training import AlgorithmSpec
from grpo_trainer.algorithms import advantage_estimator
from grpo_trainer.algorithms.batch import RewardBatch, whiten
from grpo_trainer.algorithms.grpo import group_normalised


@advantage_estimator("gdpo", compared=lambda batch: batch.function_scores)
def gdpo(batch: RewardBatch, algorithm: AlgorithmSpec) -> torch.Tensor:
    """GRPO's advantage of each reward function alone, summed with the functions' weights, then whitened over all tokens
    of the step: a function with small scores counts as much as one with large scores."""
    total = torch.zeros_like(batch.scores)
    for weight, scores in zip(batch.function_weights, batch.function_scores, strict=True):
        total += weight * group_normalised(batch, scores, algorithm.norm_adv_by_std_in_grpo)
    return whiten(total, batch.lengths)
