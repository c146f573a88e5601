import pytest
import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from grpo_trainer.rollout.base import Sampling, request_seed


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
