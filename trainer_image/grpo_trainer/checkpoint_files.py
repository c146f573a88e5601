"""Files of a checkpoint: durable writes, the manifest, and reading shards back at any number of ranks.

step-00000020/
  manifest.json                what the checkpoint is, with size and checksum of every other file; written last
  state.json                   the trainer's own state (`extra_state`) and the optimizer's scalars
  rank-00000-of-00002.safetensors ...   rows of every parameter and its Adam moments, one file a rank
  hf/                          the actor as a Transformers model
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from grpo_api.names import CHECKPOINT_MANIFEST

FORMAT = 1


@dataclass(frozen=True)
class CheckpointInfo:
    """A complete checkpoint."""

    path: Path
    step: int
    tokens: int
    """Prompt and response tokens trained on so far."""
    world_size: int
    spec_hash: str
    run: str
    """Whatever tells one run of a job's name from another, such as the job's UID."""
    saved_at: float
    """Unix time in seconds."""
    size_bytes: int
    model: dict[str, str | None] | None = None
    """`path` and `revision` of the model that was trained; None in a manifest that does not tell."""


@dataclass(frozen=True)
class FileEntry:
    size: int
    blake2b: str


def shard_name(rank: int, world_size: int) -> str:
    return f"rank-{rank:05d}-of-{world_size:05d}.safetensors"


def fsync_path(path: Path) -> None:
    """Make a file's content, or a directory's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1))
    fsync_path(path)


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def entry(path: Path) -> FileEntry:
    """Flushes a file to the volume and describes it."""
    fsync_path(path)
    return FileEntry(path.stat().st_size, checksum(path))


def write_manifest(directory: Path, files: dict[str, FileEntry], **about: Any) -> None:
    write_json(
        directory / CHECKPOINT_MANIFEST,
        {"format": FORMAT, **about, "files": {name: asdict(one) for name, one in sorted(files.items())}},
    )


def read_manifest(directory: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((directory / CHECKPOINT_MANIFEST).read_text())
    return manifest


def read_info(directory: Path) -> CheckpointInfo | None:
    """The checkpoint in a directory; None unless it has a readable manifest and every file at its full size."""
    try:
        manifest = read_manifest(directory)
        sizes = {name: one["size"] for name, one in manifest["files"].items()}
        if manifest["format"] != FORMAT or any(
            (directory / name).stat().st_size != size for name, size in sizes.items()
        ):
            return None
        return CheckpointInfo(
            path=directory,
            size_bytes=sum(sizes.values()),
            model=manifest.get("model"),
            **{name: manifest[name] for name in ("step", "tokens", "world_size", "spec_hash", "run", "saved_at")},
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


class ShardReader:
    """Rows of the tensors in a checkpoint's rank files, whatever the number of ranks that wrote them."""

    def __init__(self, directory: Path, world_size: int):
        self._files = [safe_open(directory / shard_name(rank, world_size), "pt") for rank in range(world_size)]
        self._names = [set(file.keys()) for file in self._files]

    def names(self, prefix: str) -> set[str]:
        """Names of the tensors that begin so."""
        return {name for names in self._names for name in names if name.startswith(prefix)}

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the whole tensor."""
        shapes = [file.get_slice(name).get_shape() for file in self._files]
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop) of the whole tensor, which is the ranks' rows one after the other."""
        parts: list[torch.Tensor] = []
        offset = 0
        for file in self._files:
            part = file.get_slice(name)
            length = part.get_shape()[0]
            first, last = max(start - offset, 0), min(stop - offset, length)
            if first < last:
                parts.append(part[first:last])
            elif not parts and file is self._files[-1]:
                parts.append(part[0:0])
            offset += length
        return torch.cat(parts)

    def own(self, name: str, rank: int) -> torch.Tensor | None:
        """A tensor that only the rank of that number wrote, or None where there was no such rank."""
        if rank >= len(self._files) or name not in self._names[rank]:
            return None
        return self._files[rank].get_tensor(name)
