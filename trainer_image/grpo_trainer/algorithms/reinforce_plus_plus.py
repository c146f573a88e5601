"""REINFORCE++ and its form with a group baseline (arXiv 2501.03262).

verl: `compute_reinforce_plus_plus_outcome_advantage` and `compute_reinforce_plus_plus_baseline_outcome_advantage`.
"""

import torch

from grpo_api.spec.training import AlgorithmSpec
from grpo_trainer.algorithms import advantage_estimator
from grpo_trainer.algorithms.batch import RewardBatch, whiten


@advantage_estimator("reinforce_plus_plus", compared=None)
def reinforce_plus_plus(batch: RewardBatch, algorithm: AlgorithmSpec) -> list[torch.Tensor]:
    """Discounted returns G_t = r_t + gamma G_(t+1), whitened over all tokens of the step: the batch is the baseline."""
    returns = []
    for rewards in batch.token_rewards():
        running, values = 0.0, torch.zeros_like(rewards)
        for t in reversed(range(len(rewards))):
            running = rewards[t] + algorithm.gamma * running
            values[t] = running
        returns.append(values)
    tokens = torch.cat(returns)
    return list(whiten(tokens, torch.ones_like(tokens)).split(batch.lengths.tolist()))


@advantage_estimator("reinforce_plus_plus_baseline")
def reinforce_plus_plus_baseline(batch: RewardBatch, algorithm: AlgorithmSpec) -> torch.Tensor:
    """S - mean over the group, whitened over all tokens of the step."""
    return whiten(batch.scores - batch.group_mean(batch.scores), batch.lengths)
