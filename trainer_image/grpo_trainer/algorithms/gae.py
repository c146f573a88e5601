"""GAE (arXiv 1506.02438) without a critic: the value of a token is its own reward, V_t = r_t.

The temporal difference r_t + gamma V_(t+1) - V_t is then gamma r_(t+1). verl: `compute_gae_advantage_return` with
`values` equal to the token rewards, before that function whitens.
"""

import torch

from grpo_api.spec.training import AlgorithmSpec
from grpo_trainer.algorithms import advantage_estimator
from grpo_trainer.algorithms.batch import RewardBatch


@advantage_estimator("gae", compared=None)
def gae(batch: RewardBatch, algorithm: AlgorithmSpec) -> list[torch.Tensor]:
    """delta_t = gamma r_(t+1); A_t = sum over l of (gamma lam)^l delta_(t+l).

    No token comes after the last one, so its advantage is 0, and a response of one token teaches nothing.
    """
    advantages = []
    for rewards in batch.token_rewards():
        running, values = 0.0, torch.zeros_like(rewards)
        for t in reversed(range(len(rewards) - 1)):
            running = algorithm.gamma * rewards[t + 1] + algorithm.gamma * algorithm.lam * running
            values[t] = running
        advantages.append(values)
    return advantages
