from pathlib import Path

import pytest
import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from grpo_trainer.greedy_baseline import add_greedy, split_greedy
from grpo_trainer.rewards.result import RewardResult
from grpo_trainer.rollout.base import Request, Response, Sampling, request_seed
from tests.unit.trainer.trainer_support import make_spec


@pytest.mark.parametrize(
    ("sampling", "cuts"),
    [
        (Sampling(0.7), []),
        (Sampling(0.7, top_p=0.6), [TopPLogitsWarper(0.6)]),
        (Sampling(1.0, top_k=5), [TopKLogitsWarper(5)]),
        (Sampling(1.5, min_p=0.2), [MinPLogitsWarper(0.2)]),
        (
            Sampling(0.9, top_p=0.8, top_k=9, min_p=0.05),
            [MinPLogitsWarper(0.05), TopKLogitsWarper(9), TopPLogitsWarper(0.8)],
        ),
        (Sampling(1.0, top_p=1e-6), [TopKLogitsWarper(1)]),
        (Sampling(1.0, top_k=0), []),
        (Sampling(1.0, top_k=1000), []),
    ],
)
def test_cut_distributions_are_those_of_transformers(sampling: Sampling, cuts: list) -> None:
    logits = 2 * torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    scores = logits / sampling.temperature
    for cut in cuts:
        scores = cut(None, scores)
    torch.testing.assert_close(sampling.log_probs(logits), scores.log_softmax(-1))


def test_temperature_0_is_certain_of_the_most_likely_token() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0], [5.0, 3.0, 2.0]])
    assert Sampling(0.0).log_probs(logits).exp().tolist() == [[0, 1, 0], [1, 0, 0]]


def test_every_response_has_a_seed_of_its_own() -> None:
    seeds = {request_seed(seed, step, group, number) for seed in (1, 2) for step in range(20) for group in range(20)
             for number in range(8)}  # fmt: skip
    assert len(seeds) == 2 * 20 * 20 * 8
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_remax_adds_a_greedy_response_to_each_prompt_and_takes_it_out_again() -> None:
    overlong = {"enable": True, "len": 2, "penaltyFactor": 1.0}
    spec = make_spec(Path("/m"), rollout={"n": 2}, reward={"overlongBuffer": overlong}, data={"maxResponseLength": 9})
    requests = [Request([7, group], group, number, 10 * group + number) for group in range(3) for number in range(2)]
    made = add_greedy(requests, 2)
    assert [(one.group, one.number, one.sampling) for one in made] == [
        (group, number, None if number < 2 else Sampling(0.0)) for group in range(3) for number in range(3)
    ]
    responses = [Response(one.group, one.number, [1] * (one.group + 7), [], False) for one in made]
    rewards = [1.0, None, 0.5, 2.0, 3.0, None, 0.0, 1.0, 0.25]
    result = RewardResult(rewards, {"exact": 9.0}, function_scores=[rewards])
    kept, part = split_greedy(spec, responses, result)
    assert [(one.group, one.number) for one in kept] == [(one.group, one.number) for one in requests]
    assert [one.baseline for one in kept] == [0.5, 0.5, 0.0, 0.0, -0.75, -0.75]  # the last one costs 2 / 2
    assert part.rewards == [1.0, None, None, None, 0.0, 1.0]
    assert part.function_scores == [[1.0, None, 2.0, 3.0, 0.0, 1.0]]
    assert part.function_means == {"exact": 7 / 5}
