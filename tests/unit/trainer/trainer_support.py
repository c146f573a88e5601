"""A tiny random model, a ragged batch, and functions run on gloo ranks in processes of their own."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_api.job import GRPOJob, GRPOJobSpec, parse_job
from grpo_trainer.sample import Sample

VOCABULARY = 256
TEMPERATURE = 0.8


def make_model(directory: Path, seed: int = 0, **config: Any) -> Path:
    torch.manual_seed(seed)
    shape = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,  # far from uniform, so that clipping and entropy have something to do
    }
    LlamaForCausalLM(LlamaConfig(**shape | config)).save_pretrained(directory)
    return directory


def make_spec(path: Path, *, actor: dict[str, Any] | None = None, **sections: dict[str, Any]) -> GRPOJobSpec:
    base: dict[str, dict[str, Any]] = {
        "model": {"path": str(path), "dtype": "float32"},
        "data": {"train": {"files": ["/rows.jsonl"]}, "trainBatchSize": 3, "maxResponseLength": 9},
        "reward": {"functions": [{"name": "exact", "builtin": {"rule": "exact_match"}}]},
        "rollout": {"n": 4, "temperature": TEMPERATURE},
        "actor": {"ppoMiniBatchSize": 3, "optim": {"lr": 1e-3}, **(actor or {})},
        "trainer": {"totalSteps": 4},
    }
    return GRPOJobSpec.model_validate(base | {name: base.get(name, {}) | value for name, value in sections.items()})


def make_job(path: Path | str, **sections: dict[str, Any]) -> GRPOJob:
    spec = make_spec(Path(path)).model_dump(mode="json", by_alias=True, exclude_none=True)
    spec |= {name: value if name == "trainer" else spec.get(name, {}) | value for name, value in sections.items()}
    metadata = {"name": "job", "namespace": "team", "uid": "uid"}
    return parse_job({"apiVersion": "grpo.dev/v1alpha1", "kind": "GRPOJob", "metadata": metadata, "spec": spec})


def make_samples(seed: int = 1, *, off_policy: bool = False, reference: bool = False) -> list[Sample]:
    """3 groups of 4 ragged responses, one of them empty, one masked, some of one token."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(count: int) -> list[int]:
        return torch.randint(0, VOCABULARY, (count,), generator=generator).tolist()

    def log_probs(count: int) -> torch.Tensor:
        return -4.0 + 2.0 * torch.randn(count, generator=generator)

    samples = []
    for group in range(3):
        prompt = tokens((3, 1, 8)[group])
        for k in range(4):
            length = ((1, 5, 0, 7), (4, 1, 9, 2), (3, 3, 6, 8))[group][k]
            samples.append(
                Sample(
                    prompt,
                    tokens(length),
                    group,
                    advantage=float(torch.randn(1, generator=generator)),
                    old_log_probs=log_probs(length) if off_policy else None,
                    ref_log_probs=log_probs(length) if reference else None,
                    mask=(group, k) != (1, 2),
                )
            )
    return samples


def plain_log_probs(lm: torch.nn.Module, sample: Sample) -> tuple[torch.Tensor, torch.Tensor]:
    """((T,), (T, V)): log-probabilities of the response's tokens, and all, by a forward pass of this sequence alone."""
    logits = lm(torch.tensor([sample.prompt_ids + sample.response_ids])).logits[0, len(sample.prompt_ids) - 1 : -1]
    every = torch.log_softmax(logits / TEMPERATURE, dim=-1)
    return every.gather(-1, torch.tensor(sample.response_ids, dtype=torch.long)[:, None])[:, 0], every


def _rank(rank: int, function: Callable[..., Any], world_size: int, directory: str, args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=world_size)
    result = function(rank, world_size, *args)
    torch.save(result, f"{directory}/result-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def on_ranks(world_size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """`function(rank, world_size, *args)` on that many processes; their results (tensors and plain values)."""
    with tempfile.TemporaryDirectory() as directory:
        mp.start_processes(_rank, (function, world_size, directory, args), nprocs=world_size, start_method="spawn")
        return [torch.load(f"{directory}/result-{rank}.pt", weights_only=True) for rank in range(world_size)]
