"""Pass@k training with GRPO's normalisation (arXiv 2503.19595). verl: `compute_grpo_passk_outcome_advantage`."""

import torch

from grpo_api.spec.training import AlgorithmSpec
from grpo_trainer.algorithms import advantage_estimator
from grpo_trainer.algorithms.batch import STD_EPSILON, RewardBatch


@advantage_estimator("grpo_passk")
def grpo_passk(batch: RewardBatch, algorithm: AlgorithmSpec) -> torch.Tensor:
    """The group's best response gets (best - second best), divided by (std + 1e-6) under `norm_adv_by_std_in_grpo`;
    the others 0. Where the two best are equal all get 0."""
    advantages = torch.zeros_like(batch.scores)
    std = batch.group_std(batch.scores)
    for group in batch.groups.unique():
        members = (batch.groups == group).nonzero()[:, 0]
        if len(members) < 2:
            continue
        best, second = batch.scores[members].topk(2).indices.tolist()
        gap = batch.scores[members[best]] - batch.scores[members[second]]
        if algorithm.norm_adv_by_std_in_grpo:
            gap = gap / (std[members[best]] + STD_EPSILON)
        advantages[members[best]] = gap
    return advantages
