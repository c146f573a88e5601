"""Time of one update on CPU processes, and of gathering the parameters for the rollout engine.

    python benchmarks/update_step.py [--world-size 2] [--threads 1] [--prompts 8] [--n 8] ...

Model: SmolLM2-135M's shape with random weights, float32. Prints one JSON line with the seconds of each repetition.
"""

import argparse
import json
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_api.job import GRPOJobSpec
from grpo_trainer import packing
from grpo_trainer.sample import Sample
from grpo_trainer.workers import fsdp


def spec_of(args: argparse.Namespace, path: str) -> GRPOJobSpec:
    return GRPOJobSpec.model_validate(
        {
            "model": {"path": path, "dtype": "float32"},
            "data": {
                "train": {"files": ["/unused.jsonl"]},
                "trainBatchSize": args.prompts,
                "maxResponseLength": args.response,
            },
            "reward": {"functions": [{"name": "exact", "builtin": {"rule": "exact_match"}}]},
            "rollout": {"n": args.n},
            "actor": {"ppoMiniBatchSize": args.prompts, "ppoMicroBatchSizePerGpu": args.micro, "optim": {"lr": 1e-6}},
            "trainer": {"totalSteps": 1},
        }
    )


def samples_of(args: argparse.Namespace, rank: int, world_size: int) -> list[Sample]:
    generator = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        return torch.randint(0, 49152, (count,), generator=generator).tolist()

    samples = []
    for group in range(args.prompts):
        prompt = tokens(args.prompt)
        samples += [
            Sample(prompt, tokens(args.response), group if args.share else group * args.n + k, advantage=(-1.0) ** k)
            for k in range(args.n)
        ]
    share = len(samples) // world_size
    return samples[rank * share : (rank + 1) * share]


def worker(rank: int, args: argparse.Namespace, path: str) -> None:
    torch.set_num_threads(args.threads)
    if args.pin:
        os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})
    dist.init_process_group("gloo", init_method=f"file://{path}/rendezvous", rank=rank, world_size=args.world_size)
    fsdp.CPU_PACK_TOKENS = args.pack_tokens
    actor = fsdp.FsdpActor(
        spec_of(args, path),
        rank=rank,
        world_size=args.world_size,
        device=torch.device("cpu"),
        total_updates=10,
        reshard_after_forward=args.reshard,
    )
    samples = samples_of(args, rank, args.world_size)
    rows = packing.pack_samples(samples, max_samples=args.micro, max_tokens=None if args.micro else args.pack_tokens)
    seconds: dict[str, list[float]] = {"log_probs": [], "update": [], "full_parameters": []}
    cpu: dict[str, list[float]] = {name: [] for name in seconds}
    for _ in range(args.repeat):
        for name, call in (
            ("log_probs", lambda: actor.compute_log_probs(samples)),
            ("update", lambda: actor.update(samples)),
            ("full_parameters", lambda: sum(tensor.numel() for _, tensor in actor.full_parameters())),
        ):
            if name == "log_probs" and not args.log_probs:
                continue
            dist.barrier()
            start, start_cpu = time.perf_counter(), time.process_time()
            call()
            cpu[name].append(round(time.process_time() - start_cpu, 2))
            dist.barrier()
            seconds[name].append(round(time.perf_counter() - start, 2))
    if rank == 0:
        shape = {"rows_per_rank": len(rows), "tokens_per_rank": sum(row.num_tokens for row in rows)}
        print(json.dumps({**vars(args), **shape, "seconds": seconds, "cpu_seconds_of_rank_0": cpu}), flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (
        ("world-size", 2),
        ("threads", 1),
        ("prompts", 8),
        ("n", 8),
        ("prompt", 45),
        ("response", 16),
        ("pack-tokens", fsdp.CPU_PACK_TOKENS),
        ("repeat", 3),
        ("layers", 30),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--micro", type=int, default=None)
    parser.add_argument("--share", action=argparse.BooleanOptionalAction, default=True, help="share prompts in rows")
    parser.add_argument("--reshard", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--log-probs", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--pin", action=argparse.BooleanOptionalAction, default=True, help="one core a process")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as path:
        config = LlamaConfig(
            hidden_size=576,
            num_hidden_layers=args.layers,
            num_attention_heads=9,
            num_key_value_heads=3,
            intermediate_size=1536,
            vocab_size=49152,
            tie_word_embeddings=True,
        )
        LlamaForCausalLM(config).save_pretrained(path)
        mp.start_processes(worker, args=(args, path), nprocs=args.world_size, start_method="spawn")


if __name__ == "__main__":
    main()
