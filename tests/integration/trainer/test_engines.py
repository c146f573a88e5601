"""Rollout engines against Transformers: the log-probabilities that they report, before and after a weight sync."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from grpo_api.job import parse_job
from grpo_trainer import environment
from grpo_trainer.rollout.base import Request, Response
from tests.integration.trainer.run_support import make_job, make_model

pytestmark = pytest.mark.trainer
TEMPERATURE = 0.7
REQUESTS = [Request([1, 2, 3 + group], group, number, 100 + number) for group in range(2) for number in range(3)]


def parameters(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    lm = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    for name, parameter in lm.named_parameters():
        yield name, parameter.detach()


def assert_samples_of(path: Path, responses: list[Response]) -> None:
    lm = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    for request, response in zip(REQUESTS, responses, strict=True):
        assert (response.group, response.number) == (request.group, request.number)
        assert 0 < len(response.token_ids) <= 8
        with torch.no_grad():
            logits = lm(torch.tensor([request.prompt_ids + response.token_ids])).logits[0]
        every = torch.log_softmax(logits[len(request.prompt_ids) - 1 : -1] / TEMPERATURE, dim=-1)
        expected = every.gather(-1, torch.tensor(response.token_ids)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(response.log_probs), expected, atol=1e-4)


@pytest.mark.parametrize("engine", ["hf", "vllm"])
def test_samples_by_the_weights_it_was_given(engine: str, directory: Path, tmp_path: Path) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    environment.prepare("127.0.0.1", has_gpu=False)
    if engine == "hf":
        from grpo_trainer.rollout.hf import HfEngine as Engine
    else:
        from grpo_trainer.rollout.vllm import VllmEngine as Engine
    spec = parse_job(make_job(directory, rollout={"engine": engine, "temperature": TEMPERATURE})).spec
    one = Engine(spec, torch.device("cpu"))
    first = one.generate(REQUESTS)
    assert_samples_of(directory / "model", first)
    assert first == one.generate(REQUESTS)  # seeds decide
    assert len({tuple(response.token_ids) for response in first[:3]}) > 1

    other = make_model(tmp_path / "other", seed=1)
    one.load_weights(parameters(other))
    second = one.generate(REQUESTS)
    assert_samples_of(other, second)
    one.load_weights(parameters(directory / "model"))
    third = one.generate(REQUESTS)
    assert [response.token_ids for response in third] == [response.token_ids for response in first]
