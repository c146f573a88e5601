"""Both rollout engines on one GPU in bfloat16, with SmolLM2-135M: what they report against Transformers, through sleep
and new weights; and that sleeping gives the memory away, time and again."""

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from grpo_api.job import parse_job
from grpo_trainer import environment
from grpo_trainer.rollout.base import Request, Response, RolloutEngine, Sampling
from tests.integration.trainer.run_support import ON_A_GPU, make_job

pytestmark = ON_A_GPU
TEMPERATURE, LENGTH = 0.8, 24
MISMATCH = 0.1
"""Nats; bfloat16 alone makes 0.05 of them."""
REQUESTS = [
    Request([1, 4093, 198 + 7 * group, 2683, 30 + group], group, number, 100 + 8 * group + number)
    for group in range(6)
    for number in range(4)
]


def engine_of(name: str, smollm: Path, directory: Path) -> RolloutEngine:
    environment.prepare("127.0.0.1", has_gpu=True)
    if name == "hf":
        from grpo_trainer.rollout.hf import HfEngine as Engine
    else:
        from grpo_trainer.rollout.vllm import VllmEngine as Engine
    job = make_job(
        directory,
        model={"path": str(smollm), "dtype": "bfloat16"},
        data={"train": {"files": ["/rows.jsonl"]}, "trainBatchSize": 4, "maxResponseLength": LENGTH},
        rollout={"engine": name, "n": 4, "temperature": TEMPERATURE, "gpuMemoryUtilization": 0.2},
    )
    return Engine(parse_job(job).spec, torch.device("cuda", 0))


@torch.no_grad()
def difference(lm: PreTrainedModel, responses: list[Response]) -> float:
    """Mean absolute difference, in nats, between reported log-probabilities and those of a float32 model."""
    found = []
    for request, response in zip(REQUESTS, responses, strict=True):
        assert (response.group, response.number) == (request.group, request.number)
        assert 0 < len(response.token_ids) <= LENGTH
        assert response.truncated == (response.token_ids[-1] != lm.generation_config.eos_token_id)
        ids = torch.tensor([request.prompt_ids + response.token_ids], device=lm.device)
        every = torch.log_softmax(lm(ids).logits[0, len(request.prompt_ids) - 1 : -1] / TEMPERATURE, dim=-1)
        want = every.gather(-1, torch.tensor(response.token_ids, device=lm.device)[:, None])[:, 0]
        found.append((torch.tensor(response.log_probs, device=lm.device) - want).abs())
    return torch.cat(found).mean().item()


def weights(lm: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in lm.named_parameters():
        yield name, parameter.detach().to(torch.bfloat16)


@pytest.mark.parametrize("name", ["hf", "vllm"])
def test_samples_by_its_weights_and_gives_memory_back(name: str, smollm: Path, tmp_path: Path) -> None:
    lm = AutoModelForCausalLM.from_pretrained(smollm, dtype=torch.float32).cuda()
    original = {key: value.clone() for key, value in lm.state_dict().items()}
    engine = engine_of(name, smollm, tmp_path)
    first = engine.generate(REQUESTS)
    assert difference(lm, first) < MISMATCH
    assert len({tuple(one.token_ids) for one in first[:4]}) > 1
    greedy = [replace(one, sampling=Sampling(0.0)) for one in REQUESTS]
    before = [one.token_ids for one in engine.generate(greedy)]
    awake: list[int] = []
    asleep: list[int] = []
    for cycle in range(3):
        engine.sleep()
        asleep.append(torch.cuda.mem_get_info()[0])
        with torch.no_grad():
            for parameter in lm.parameters():
                parameter *= 1 + 0.05 * torch.randn_like(parameter) if cycle < 2 else 1
        if cycle == 2:
            lm.load_state_dict(original)
        engine.wake()
        engine.load_weights(weights(lm))
        awake.append(torch.cuda.mem_get_info()[0])
        assert engine.asleep_bytes == 0
        assert difference(lm, engine.generate(REQUESTS)) < MISMATCH, cycle
    after = [one.token_ids for one in engine.generate(greedy)]
    same = sum(one == other for one, other in zip(before, after, strict=True))
    assert same >= 0.9 * len(REQUESTS), same
    if name == "vllm":
        assert min(asleep) - max(awake) > 0.1 * torch.cuda.mem_get_info()[1]
    assert max(asleep) - min(asleep) < 300e6
    assert max(awake) - min(awake) < 300e6
    del engine
    gc.collect()
