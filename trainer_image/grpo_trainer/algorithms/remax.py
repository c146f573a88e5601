"""ReMax (arXiv 2310.10505): each response is compared with the greedy one to its prompt.

verl: `compute_remax_outcome_advantage`.
"""

import torch

from grpo_api.spec.training import AlgorithmSpec
from grpo_trainer.algorithms import advantage_estimator
from grpo_trainer.algorithms.batch import RewardBatch


@advantage_estimator("remax", compared=None)
def remax(batch: RewardBatch, algorithm: AlgorithmSpec) -> list[torch.Tensor]:
    """The rewards from each token on, less the reward of the greedy response: S - S_greedy without a KL in the
    reward."""
    return [
        rewards.flip(0).cumsum(0).flip(0) - baseline
        for rewards, baseline in zip(batch.token_rewards(), batch.baselines, strict=True)
    ]
