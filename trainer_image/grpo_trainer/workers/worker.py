"""The Ray actor on one GPU (or CPU slot): it owns a shard of the policy and a rollout engine."""

import os
import resource
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoTokenizer

from grpo_api.job import GRPOJobSpec
from grpo_trainer.checkpoint import CheckpointManager
from grpo_trainer.checkpoint_files import CheckpointInfo
from grpo_trainer.rollout.base import Request, Response, RolloutEngine
from grpo_trainer.sample import Sample
from grpo_trainer.workers.fsdp import FsdpActor

COLLECTIVE_TIMEOUT = timedelta(seconds=600)


class Worker:
    """One rank. Every method but `checkpoint` and `memory` is collective: all ranks are called, in the same order."""

    def __init__(self, spec: GRPOJobSpec, rank: int, world_size: int, local_rank: int):
        self._spec, self._rank, self._world_size = spec, rank, world_size
        # One visible device a process, so that FSDP, NCCL and vLLM all use their device number 0.
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[local_rank] if visible else str(local_rank)
        self.device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        self._actor: FsdpActor
        self._engine: RolloutEngine
        self._checkpoints: CheckpointManager | None = None
        self._peak = 0

    def connect(self, address: str, port: int, checkpoint_dir: str | None) -> None:
        """Joins the process group at rank 0's node."""
        cuda = self.device.type == "cuda"
        os.environ |= {
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "RANK": str(self._rank),
            "WORLD_SIZE": str(self._world_size),
            "LOCAL_RANK": "0",
        }
        if cuda:
            torch.cuda.set_device(self.device)
        else:
            torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        dist.init_process_group("nccl" if cuda else "gloo", timeout=COLLECTIVE_TIMEOUT)
        if checkpoint_dir is not None:
            self._checkpoints = CheckpointManager(checkpoint_dir, self._spec.checkpoint.keep)

    def load_actor(self, total_updates: int) -> None:
        self._actor = FsdpActor(
            self._spec, rank=self._rank, world_size=self._world_size, device=self.device, total_updates=total_updates
        )

    def load_engine(self) -> None:
        """Afterwards the engine holds the weights of `model.path`."""
        if self._spec.rollout.engine == "hf":
            from grpo_trainer.rollout.hf import HfEngine as Engine
        else:
            from grpo_trainer.rollout.vllm import VllmEngine as Engine
        self._engine = Engine(self._spec, self.device)

    def generate(self, requests: list[Request]) -> list[Response]:
        """With tensor parallelism all ranks of an engine are given the same requests."""
        return self._engine.generate(requests)

    def rest(self) -> None:
        """After the last `generate` of a step: the engine gives its memory and its weights away until `sync`."""
        self._note_peak()
        self._engine.sleep()

    def log_probs(self, samples: list[Sample], *, reference: bool) -> list[torch.Tensor]:
        return self._actor.compute_log_probs(samples, reference=reference)

    def update(self, samples: list[Sample], *, on_policy: bool) -> dict[str, float]:
        return self._actor.update(samples, on_policy=on_policy)

    def sync(self) -> None:
        """Puts the actor's weights into the engine."""
        self._note_peak()
        self._engine.wake()
        self._engine.load_weights(self._actor.full_parameters())

    def checkpoint(self, run: str | None = None) -> CheckpointInfo | None:
        """The newest complete checkpoint, of one run where given."""
        return self._checkpoints.newest_complete(run) if self._checkpoints else None

    def save(self, step: int, extra_state: dict[str, Any], tokens: int, spec_hash: str, run: str) -> None:
        """Starts writing a checkpoint; the one before it has been waited for."""
        tokenizer = None
        if self._rank == 0:
            model = self._spec.model
            tokenizer = AutoTokenizer.from_pretrained(
                model.tokenizer_path or model.path, trust_remote_code=model.trust_remote_code
            )
            if model.chat_template:
                tokenizer.chat_template = model.chat_template
        self._checkpoints.save(
            step, self._actor, extra_state, tokens=tokens, spec_hash=spec_hash, run=run, tokenizer=tokenizer
        )

    def wait_saved(self) -> None:
        """Returns when no save is under way. Raises CheckpointError where the last one failed."""
        self._checkpoints.wait()

    def resume(self, info: CheckpointInfo) -> dict[str, Any]:
        """Loads a checkpoint into the actor; returns rank 0's `extra_state`. The engine is not touched."""
        return self._checkpoints.load(info, self._actor)

    def memory(self) -> dict[str, int]:
        """Bytes: `host` resident, and on GPUs `gpu` allocated now and `gpu_peak` since the last call."""
        with open("/proc/self/statm") as file:
            found = {"host": int(file.read().split()[1]) * resource.getpagesize()}
        if self.device.type == "cuda":
            self._note_peak()
            found |= {"gpu": torch.cuda.memory_allocated() - self._engine.asleep_bytes, "gpu_peak": self._peak}
            self._peak = 0
        return found

    def _note_peak(self) -> None:
        """Called before the engine falls asleep and before it wakes: between them torch counts what is not there."""
        if self.device.type == "cuda":
            self._peak = max(self._peak, torch.cuda.max_memory_allocated() - self._engine.asleep_bytes)
            torch.cuda.reset_peak_memory_stats()
