"""From rewards to advantages: groups formed, masked samples left out, the algorithm looked up and applied."""

import torch

from grpo_api.job import GRPOJobSpec
from grpo_trainer.algorithms import estimator


def compute_advantages(spec: GRPOJobSpec, rewards: list[float | None], groups: list[int]) -> list[float | None]:
    """One advantage for each response; None where its reward is None, and such a response counts in no group.

    A group whose rewards are all equal, or that has a single response left, gets 0: there is nothing to compare, so it
    must not move the policy. (verl gives a lone response its raw score as advantage, which would reinforce it without
    any baseline.)
    """
    if len(rewards) != len(groups):
        raise ValueError(f"{len(rewards)} rewards for {len(groups)} responses")
    estimate = estimator(spec.algorithm.adv_estimator)
    members: dict[int, list[int]] = {}
    for index, (reward, group) in enumerate(zip(rewards, groups, strict=True)):
        if reward is not None:
            members.setdefault(group, []).append(index)
    advantages: list[float | None] = [None] * len(rewards)
    for indices in members.values():
        scores = torch.tensor([rewards[index] for index in indices], dtype=torch.float64)
        nothing_to_compare = len(indices) < 2 or bool((scores == scores[0]).all())
        values = torch.zeros_like(scores) if nothing_to_compare else estimate(scores, spec.algorithm)
        for index, value in zip(indices, values.tolist(), strict=True):
            advantages[index] = value
    return advantages
