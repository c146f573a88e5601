"""Container images: into the cluster from an archive, and the two that are made of one static program."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from local_cluster import mode, paths

NAMESPACE = "k8s.io"


def ctr(*arguments: str) -> list[str]:
    """The command line of ctr on the built cluster's containerd."""
    return [
        str(paths.binary("ctr")),
        "--address",
        str(paths.run_dir() / "containerd.sock"),
        "--namespace",
        NAMESPACE,
        *arguments,
    ]


def load(archive: Path | IO[bytes], name: str) -> None:
    """Import an OCI or docker archive (a tar file or a stream of one, of one image) into the cluster under ``name``.

    Pods then use it as ``image: <name>`` with ``imagePullPolicy: Never`` or ``IfNotPresent``. ``name`` is written
    in full, such as ``localhost/grpo-trainer:dev``. Raises RuntimeError with the importer's message.
    """
    current = mode.current()
    if current == "named":
        raise SystemExit(
            f"An image cannot be loaded into a cluster of your own from here: push {name} to a registry "
            "that its nodes reach, and name it in the job."
        )
    if isinstance(archive, Path):
        with archive.open("rb") as stream:
            _import(stream, name, current)
    else:
        _import(archive, name, current)


def exists(name: str) -> bool:
    """Whether the built cluster has an image of this name."""
    listed = subprocess.run(ctr("images", "list", "--quiet", f"name=={name}"), capture_output=True, text=True)
    return listed.returncode == 0 and name in listed.stdout.split()


def _import(stream: IO[bytes], name: str, current: str) -> None:
    if current == "kind":
        command = ["kind", "load", "image-archive", "/dev/stdin", "--name", mode.KIND_NAME]
    else:
        # --local: this process reads the archive itself; the transfer service would copy it through a socket first.
        command = ctr("images", "import", "--local", "--snapshotter", "overlayfs", "--index-name", name, "-")
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors) as process:
            assert process.stdin is not None
            try:
                shutil.copyfileobj(stream, process.stdin, 1 << 20)
                process.stdin.close()
            except BrokenPipeError:  # it ended early; its exit status and message say why
                pass
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"loading the image {name} failed: {errors.read().decode(errors='replace').strip()}")


def static_image(program: Path, name: str, entrypoint: Sequence[str]) -> IO[bytes]:
    """A docker archive of an image FROM scratch that holds one static program at ``/<file name>``."""
    layer = _tar({program.name: (program.read_bytes(), 0o755)})
    config = {
        "architecture": "arm64" if os.uname().machine == "aarch64" else "amd64",
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    files = {
        "config.json": json.dumps(config).encode(),
        "layer.tar": layer,
        "manifest.json": json.dumps(manifest).encode(),
    }
    return io.BytesIO(_tar({path: (content, 0o644) for path, content in files.items()}))


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, (content, permissions) in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(content), permissions
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
