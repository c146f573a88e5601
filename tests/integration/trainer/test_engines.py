"""Rollout engines against Transformers: the log-probabilities that they report, before and after a weight sync, and
that a response depends on its seed alone."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from grpo_api.job import parse_job
from grpo_trainer import environment
from grpo_trainer.rollout.base import Request, Response, RolloutEngine, Sampling
from grpo_trainer.sample import Sample
from grpo_trainer.workers.fsdp import FsdpActor
from tests.integration.trainer.run_support import make_job, make_model

pytestmark = pytest.mark.trainer
TEMPERATURE, TOP_P, TOP_K, MIN_P = 0.7, 0.9, 20, 0.01
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
        scores = logits[len(request.prompt_ids) - 1 : -1] / TEMPERATURE
        for cut in (MinPLogitsWarper(MIN_P), TopKLogitsWarper(TOP_K), TopPLogitsWarper(TOP_P)):
            scores = cut(None, scores)
        assert scores.isinf().any()
        every = torch.log_softmax(scores, dim=-1)
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
    rollout = {"engine": engine, "temperature": TEMPERATURE, "topP": TOP_P, "topK": TOP_K, "minP": MIN_P}
    spec = parse_job(make_job(directory, rollout=rollout)).spec
    one = Engine(spec, torch.device("cpu"))
    first = one.generate(REQUESTS)
    assert_samples_of(directory / "model", first)
    assert first == one.generate(REQUESTS)  # seeds decide
    assert len({tuple(response.token_ids) for response in first[:3]}) > 1
    alone = [one.generate([request])[0] for request in reversed(REQUESTS)]
    assert [response.token_ids for response in reversed(alone)] == [response.token_ids for response in first]
    greedy = [replace(request, sampling=Sampling(0.0)) for request in REQUESTS]
    lm = AutoModelForCausalLM.from_pretrained(directory / "model", dtype=torch.float32)
    for request, response in zip(REQUESTS, one.generate(greedy), strict=True):
        prompt = torch.tensor([request.prompt_ids])
        best = lm.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, do_sample=False)[0]
        assert response.token_ids == best[len(request.prompt_ids) :].tolist()

    other = make_model(tmp_path / "other", seed=1)
    one.load_weights(parameters(other))
    second = one.generate(REQUESTS)
    assert_samples_of(other, second)
    one.load_weights(parameters(directory / "model"))
    third = one.generate(REQUESTS)
    assert [response.token_ids for response in third] == [response.token_ids for response in first]

    trained = train_adapters(directory, tmp_path, one)
    assert_samples_of(trained, one.generate(REQUESTS))


def train_adapters(directory: Path, tmp_path: Path, engine: RolloutEngine) -> Path:
    """Gives the engine a base with trained adapters; returns the directory of that policy, merged by its definition."""
    own_group = not dist.is_initialized()  # vLLM makes one
    if own_group:
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        lora = {"rank": 4, "alpha": 32}
        job = make_job(
            directory, model={"path": str(directory / "model"), "dtype": "float32", "lora": lora},
            actor={"useKlLoss": False, "optim": {"lr": 0.1}},
        )  # fmt: skip
        actor = FsdpActor(parse_job(job).spec, rank=0, world_size=1, device=torch.device("cpu"), total_updates=9)
        samples = [Sample([1, 2, 3], [4 + k, 5, 6], 0, advantage=(-1.0) ** k) for k in range(4)]
        for _ in range(2):
            actor.update(samples)
        engine.load_weights(actor.full_parameters())
        lm = AutoModelForCausalLM.from_pretrained(directory / "model", dtype=torch.float32)
        adapter = dict(actor.full_adapter())
        for name, weight in lm.named_parameters():
            layer = name.removesuffix(".weight")
            if f"{layer}.lora_A" in adapter:
                change = adapter[f"{layer}.lora_B"] @ adapter[f"{layer}.lora_A"]
                assert change.abs().max() > 0.01
                weight.data += 32 / 4 * change
        lm.save_pretrained(tmp_path / "trained")
    finally:
        if own_group:
            dist.destroy_process_group()
    return tmp_path / "trained"
