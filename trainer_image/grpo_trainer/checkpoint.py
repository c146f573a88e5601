"""Checkpoints that are complete or invisible.

A save copies the state (collective, on the calling thread), then a thread of each rank writes its file into
`step-XXXXXXXX.partial` while training goes on. When every rank's file is on the volume, rank 0 writes the manifest,
renames the directory, and only then deletes older checkpoints. Nothing is pickled.
"""

import json
import logging
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from grpo_api.names import CHECKPOINT_PARTIAL_SUFFIX, CHECKPOINT_STEP_FORMAT
from grpo_trainer.checkpoint_files import (
    CheckpointInfo,
    FileEntry,
    ShardReader,
    checksum,
    entry,
    fsync_path,
    read_info,
    read_manifest,
    shard_name,
    write_json,
    write_manifest,
)
from grpo_trainer.errors import UserInputError
from grpo_trainer.hf_export import HfExport
from grpo_trainer.workers.fsdp import FsdpActor

log = logging.getLogger(__name__)

STATE_FILE = "state.json"
HF_DIR = "hf"


class CheckpointError(Exception):
    """A checkpoint could not be written or read; older ones are as they were."""


def begin_anew(path: Path) -> str:
    """The repair where a checkpoint of another model or run is in the way."""
    return (
        f"delete the directory {path.parent} or the claim that holds it, give the job another name, "
        "or set checkpoint.resume to Never"
    )


class CheckpointManager:
    """The checkpoints of one job. Every rank makes one, at the same time, over the same directory."""

    def __init__(self, directory: str | Path, keep: int):
        """`keep` complete checkpoints are kept. Collective."""
        self.directory, self.keep = Path(directory), keep
        # Its own group: the writing threads' messages must not mix with those of the training thread.
        self._group = dist.new_group(backend="gloo")
        self._thread: threading.Thread | None = None
        self._error: str | None = None

    def complete(self, run: str | None = None) -> list[CheckpointInfo]:
        """Complete checkpoints, oldest first; of one run where given. Not collective."""
        if not self.directory.is_dir():
            return []
        found = (read_info(path) for path in self.directory.glob("step-*") if path.suffix != CHECKPOINT_PARTIAL_SUFFIX)
        infos = [info for info in found if info is not None and run in (None, info.run)]
        return sorted(infos, key=lambda info: (info.saved_at, info.step))

    def newest_complete(self, run: str | None = None) -> CheckpointInfo | None:
        """The checkpoint saved last, or None. Not collective."""
        return (self.complete(run) or [None])[-1]

    def save(
        self,
        step: int,
        actor: FsdpActor,
        extra_state: dict[str, Any],
        *,
        tokens: int = 0,
        spec_hash: str = "",
        run: str = "",
        tokenizer: Any = None,
        hf: bool = True,
    ) -> None:
        """Starts a checkpoint and returns once the state is copied. Collective.

        `extra_state` is rank 0's and is anything JSON holds. With `hf` the actor is also written as a Transformers
        model, with `tokenizer` where given. Waits for the save before it, whose CheckpointError, if any, it raises.
        """
        self.wait()
        tensors, scalars = actor.state()
        export = HfExport.of(actor, tokenizer) if hf else None
        partial = self.directory / (CHECKPOINT_STEP_FORMAT.format(step=step) + CHECKPOINT_PARTIAL_SUFFIX)
        state = {"extra_state": extra_state, "actor": scalars}
        about = {
            "step": step,
            "tokens": tokens,
            "world_size": actor.world_size,
            "spec_hash": spec_hash,
            "run": run,
            "model": {"path": actor.spec.model.path, "revision": actor.spec.model.revision},
        }

        def write() -> None:
            try:
                self._write(partial, tensors, state, about, actor.rank, export)
            except Exception as error:  # handed to the next wait(): a thread has no caller
                self._error = f"checkpoint of step {step} in {self.directory} was not written: {error}"
                log.error("%s", self._error)

        self._thread = threading.Thread(target=write, name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Returns when no save is under way. Raises CheckpointError once where the last one failed, on every rank."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise CheckpointError(error)

    def load(self, info: CheckpointInfo, actor: FsdpActor) -> dict[str, Any]:
        """Puts model, optimizer, schedule and torch's RNG of a checkpoint into an actor of the same model, at any
        number of ranks, and returns its `extra_state`. Collective.

        Raises CheckpointError where a file that this rank needs does not have its checksum, and UserInputError
        (`CheckpointMismatch`) where the checkpoint is of another architecture.
        """
        files = read_manifest(info.path)["files"]
        own = info.world_size == actor.world_size
        needed = [shard_name(rank, info.world_size) for rank in range(info.world_size) if not own or rank == actor.rank]
        for name in (STATE_FILE, *needed):
            if checksum(info.path / name) != files[name]["blake2b"]:
                raise CheckpointError(
                    f"{info.path / name} is damaged: delete {info.path} to go on from an older checkpoint"
                )
        state = json.loads((info.path / STATE_FILE).read_text())
        shards = ShardReader(info.path, info.world_size)
        try:
            actor.load_state(shards, state["actor"])
        except ValueError as error:
            raise UserInputError(
                "CheckpointMismatch",
                f"{info.path} is of another architecture than model.path {actor.spec.model.path}: {error}; "
                f"{begin_anew(info.path)}",
            ) from error
        extra_state: dict[str, Any] = state["extra_state"]
        return extra_state

    def _write(
        self,
        partial: Path,
        tensors: dict[str, torch.Tensor],
        state: dict[str, Any],
        about: dict[str, Any],
        rank: int,
        export: HfExport | None,
    ) -> None:
        """One rank's part, on its thread. All ranks learn of one rank's failure, so that none waits for it."""
        world_size = about["world_size"]

        def write_own() -> dict[str, FileEntry]:
            files = {shard_name(rank, world_size): partial / shard_name(rank, world_size)}
            save_file(tensors, files[shard_name(rank, world_size)])
            if rank == 0:
                files[STATE_FILE] = partial / STATE_FILE
                write_json(files[STATE_FILE], state)
                if export is not None:
                    (partial / HF_DIR).mkdir()
                    export.write(partial / HF_DIR)
                    files |= {f"{HF_DIR}/{path.name}": path for path in (partial / HF_DIR).iterdir()}
                    fsync_path(partial / HF_DIR)
            return {name: entry(path) for name, path in files.items()}

        def publish() -> None:
            files = {name: one for part in entries for name, one in part.items()}
            write_manifest(partial, files, saved_at=time.time(), **about)
            fsync_path(partial)
            final = partial.with_suffix("")
            if final.exists():  # of an earlier run that reached the same step
                shutil.rmtree(final)
            partial.rename(final)
            fsync_path(self.directory)
            self._delete_old()

        try:
            self._together(lambda: self._prepare(partial) if rank == 0 else None)
            entries = self._together(write_own)
            self._together(lambda: publish() if rank == 0 else None)
        finally:
            if rank == 0:
                shutil.rmtree(partial, ignore_errors=True)

    def _prepare(self, partial: Path) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        for path in self.directory.glob(f"step-*{CHECKPOINT_PARTIAL_SUFFIX}"):
            shutil.rmtree(path)  # left by a save that was killed
        partial.mkdir()

    def _delete_old(self) -> None:
        for info in self.complete()[: -self.keep]:
            doomed = info.path.with_name(info.path.name + CHECKPOINT_PARTIAL_SUFFIX)
            info.path.rename(doomed)  # a deletion that is cut short leaves no half checkpoint under a valid name
            shutil.rmtree(doomed)

    def _together(self, part: Any) -> list[Any]:
        """Runs a part on every rank and gives all results to each, or raises on all where one rank's raised."""
        result, error = None, None
        try:
            result = part()
        except Exception as caught:  # told to all ranks, then raised
            error = f"{type(caught).__name__}: {caught}"
        outcomes: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(outcomes, (result, error), group=self._group)
        for rank, (_, failure) in enumerate(outcomes):
            if failure is not None:
                raise CheckpointError(f"rank {rank}: {failure}")
        return [one for one, _ in outcomes]
