"""Builds the operator's and the trainer's images and loads them into the local cluster.

python3 -m local_cluster.image_build build|load|all|references

With Docker (kind) this is `docker build` and `kind load`. Without, it is buildah on a base image made by debootstrap.
An image's tag is the hash of what it is made from, so an image that exists is never built again. The trainer is several
gigabytes: dependencies are a layer of their own that stays in buildah's store, and a layer that containerd has already
is not exported, so that a change of our code moves only the last layer.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from local_cluster import images, mode, packages, paths
from local_cluster.locks import locked
from local_cluster.preflight import disk_problems
from local_cluster.progress import Progress

ROOT = Path(__file__).resolve().parent.parent
BASE = "localhost/grpo-base:bookworm-1"
BASE_PACKAGES = "python3,python3-venv,ca-certificates"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
DISK_GB = {"operator": 2.0, "trainer": 24.0}
"""Free disk that building takes at most, all copies counted."""


@dataclass(frozen=True)
class Image:
    name: str
    dockerfile: str
    target: str | None
    sources: tuple[str, ...]
    """What the Dockerfile copies."""
    stages: tuple[str, ...]
    """Stages that the image only copies from, and that are kept for the next build."""
    note: str

    @property
    def repository(self) -> str:
        return f"localhost/grpo-{self.name}"

    def reference(self, root: Path) -> str:
        """Name of the image that the sources under ``root`` make: its tag is their hash."""
        digest = hashlib.sha256(BASE.encode())
        for file in _files(root, (self.dockerfile, *self.sources)):
            digest.update(str(file.relative_to(root)).encode())
            digest.update(file.read_bytes())
        return f"{self.repository}:{digest.hexdigest()[:12]}"


IMAGES = (
    Image(
        "operator",
        "Dockerfile",
        None,
        ("pyproject.toml", "uv.lock", "api/grpo_api", "operator/grpo_operator"),
        ("dependencies",),
        "about a minute",
    ),
    Image(
        "trainer",
        "trainer_image/Dockerfile",
        "demo",
        (
            *("pyproject.toml", "uv.lock", "api/grpo_api", "trainer_image/grpo_trainer"),
            *("trainer_image/prune_cuda.sh", "trainer_image/check_imports.py"),
        ),
        ("lock", "models"),
        "6 GB with torch, vLLM, Ray and two small models; about 4 minutes",
    ),
)


def _files(root: Path, names: Iterable[str]) -> Iterator[Path]:
    for name in names:
        path = root / name
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in found if file.is_file() and "__pycache__" not in file.parts)


@contextmanager
def _snapshot() -> Iterator[Path]:
    """A copy of all sources, so that what is edited during a build is neither in the image nor in its name."""
    with tempfile.TemporaryDirectory(prefix="grpo-images-") as directory:
        for file in _files(ROOT, [name for image in IMAGES for name in (image.dockerfile, *image.sources)]):
            copy = Path(directory) / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copy)
        yield Path(directory)


def build(image: Image, root: Path) -> None:
    """Make sure that the image of the sources under ``root`` is in the builder's store."""
    reference = image.reference(root)
    target = ["--target", image.target] if image.target else []
    if mode.choose() == "kind":
        _run(["docker", "build", "-f", image.dockerfile, *target, "-t", reference, str(root)], f"image {image.name}")
        return
    if _exists(reference):
        print(f"image {image.name}: {reference} is built already", flush=True)
        return
    if problems := list(disk_problems(DISK_GB[image.name])) if not _has_dependencies(image) else []:
        sys.exit("\n".join(problems))
    _build_base()
    tags = {stage: f"{image.repository}-{stage}:latest" for stage in image.stages}
    with Progress(f"image {image.name} ({image.note}; built once, then only what changed)") as progress:
        for options in [
            *(["--target", stage, "--tag", tag] for stage, tag in tags.items()),
            [*target, "--tag", reference],
        ]:
            command = [
                *_buildah("bud", "--isolation", "chroot", "--layers", "--file", str(root / image.dockerfile), *options),
                *("--build-arg", f"BASE_IMAGE={BASE}", "--build-arg", f"SSL_CERT_FILE={CERTIFICATES}"),
                # Package indexes may be reached through an authority that only this machine trusts.
                *("--volume", f"{CERTIFICATES.parent}:{CERTIFICATES.parent}:ro"),
                str(root),
            ]
            _follow(command, progress)
        progress.end("done")
    _remove_older(image, reference)


def load(image: Image, root: Path) -> None:
    """Make sure that the local cluster has the image of the sources under ``root``."""
    current = mode.current()
    reference = image.reference(root)
    if current == "kind":
        command = ["kind", "load", "docker-image", reference, "--name", mode.KIND_NAME]
        _run(command, f"load {image.name}")
        return
    if current == "built" and images.exists(reference):
        print(f"image {image.name}: the cluster has {reference} already", flush=True)
        return
    build(image, root)  # the sources may have changed since
    with tempfile.TemporaryDirectory(dir=_work(), prefix="export-") as directory:
        layout = Path(directory)
        held = _held_layers() if current == "built" else {}
        blobs = layout / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        for layer in held:  # buildah exports no blob that it sees to be there
            (blobs / layer.removeprefix("sha256:")).touch()
        # Fast compression: the disk of a small machine is slower than it.
        options = ["--quiet", "--format", "oci", "--compression-format", "zstd", "--compression-level", "1"]
        _run(_buildah("push", *options, reference, f"oci:{layout}:{reference}"), f"export {image.name}")
        with Progress(f"load {image.name} into the cluster") as progress:
            files = _new_files(layout, held)
            _import(layout, files, reference)
            progress.end(f"{sum(file.stat().st_size for file in files) / 1e6:,.0f} MB that it did not have")


def _held_layers() -> dict[str, dict[str, Any]]:
    """Digest of each uncompressed layer that containerd holds -> descriptor of the blob that it holds it as."""
    store = paths.state_dir() / "containerd" / "io.containerd.content.v1.content" / "blobs" / "sha256"
    label = "containerd.io/uncompressed="
    held: dict[str, dict[str, Any]] = {}
    for line in _output(images.ctr("content", "list")).splitlines()[1:]:
        digest, *fields = line.split()
        for layer in (field[len(label) :] for labels in fields for field in labels.split(",") if label in field):
            blob = store / digest.removeprefix("sha256:")
            with blob.open("rb") as content:
                media_type = _media_type(content)
            held[layer] = {"mediaType": media_type, "digest": digest, "size": blob.stat().st_size}
    return held


def _media_type(layer: IO[bytes]) -> str:
    start = layer.read(4)
    suffix = "+gzip" if start[:2] == b"\x1f\x8b" else "+zstd" if start == b"\x28\xb5\x2f\xfd" else ""
    return f"application/vnd.oci.image.layer.v1.tar{suffix}"


def _new_files(layout: Path, held: dict[str, dict[str, Any]]) -> list[Path]:
    """Write a manifest that names held layers as containerd has them; returns the layout's files without these."""
    blobs = layout / "blobs" / "sha256"
    index_file = layout / "index.json"
    index = json.loads(index_file.read_text())
    (entry,) = index["manifests"]
    exported = blobs / entry["digest"].removeprefix("sha256:")
    manifest = json.loads(exported.read_text())
    exported.unlink()
    manifest["layers"] = [held.get(layer["digest"], layer) for layer in manifest["layers"]]
    content = json.dumps(manifest).encode()
    digest = hashlib.sha256(content).hexdigest()
    (blobs / digest).write_bytes(content)
    entry.update(digest=f"sha256:{digest}", size=len(content))
    index_file.write_text(json.dumps(index))
    placeholders = {layer.removeprefix("sha256:") for layer in held}
    return [file for file in sorted(layout.rglob("*")) if file.is_file() and file.name not in placeholders]


def _import(layout: Path, files: list[Path], name: str) -> None:
    """Stream files of an OCI layout into the cluster as one archive."""
    read_end, write_end = os.pipe()

    def write() -> None:
        with os.fdopen(write_end, "wb") as sink, tarfile.open(fileobj=sink, mode="w|") as archive:
            for file in files:
                archive.add(file, str(file.relative_to(layout)))

    writer = threading.Thread(target=write)
    writer.start()
    with os.fdopen(read_end, "rb") as source:
        images.load(source, name)
    writer.join()


def _build_base() -> None:
    if _exists(BASE):
        return
    directory = _work() / "base"
    _run(
        ["debootstrap", "--variant=minbase", f"--include={BASE_PACKAGES}", "bookworm", str(directory)],
        "base image (Debian by debootstrap; about a minute; built once)",
    )
    shutil.rmtree(directory / "var" / "cache" / "apt", ignore_errors=True)
    shutil.rmtree(directory / "var" / "lib" / "apt" / "lists", ignore_errors=True)
    container = _output(_buildah("from", "scratch"))
    _run(_buildah("copy", "--quiet", container, str(directory), "/"), "base image: pack")
    _output(_buildah("config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", container))
    _run(_buildah("commit", "--quiet", "--rm", container, BASE), "base image: commit")
    _remove_leftovers()


def _remove_older(image: Image, reference: str) -> None:
    """Drop earlier builds, and layers that neither this one nor the kept stages use."""
    listed = _output(_buildah("images", "--format", "{{.Name}}:{{.Tag}}", "--filter", f"reference={image.repository}"))
    older = [name for name in listed.split() if name.startswith(f"{image.repository}:") and name != reference]
    for command in (["rmi", *older] if older else [], ["rmi", "--prune"]):
        if command:
            subprocess.run(_buildah(*command), capture_output=True, check=False)


def _has_dependencies(image: Image) -> bool:
    """Whether some earlier build left its layers, so that little disk is needed."""
    return bool(shutil.which("buildah")) and bool(
        _output(_buildah("images", "--quiet", "--filter", f"reference={image.repository}"))
    )


def _exists(reference: str) -> bool:
    if not shutil.which("buildah"):
        return False
    return subprocess.run(_buildah("inspect", "--type", "image", reference), capture_output=True).returncode == 0


def _store() -> Path:
    directory = paths.cache_dir() / "buildah"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _work() -> Path:
    """For files that no later command needs."""
    directory = _store() / "work"
    directory.mkdir(exist_ok=True)
    return directory


def _remove_leftovers() -> None:
    """Free what a command that was killed left: its containers hold gigabytes. Needs the lock."""
    if shutil.which("buildah"):
        subprocess.run(_buildah("rm", "--all"), capture_output=True, check=False)
    # debootstrap mounts /proc and more there: deleting through a mount would delete what is mounted.
    inside = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mounted in sorted((path for path in inside if path.startswith(f"{_work()}/")), reverse=True):
        subprocess.run(["umount", mounted], check=True)
    shutil.rmtree(_work())


def _buildah(*arguments: str) -> list[str]:
    return [
        "buildah",
        "--root",
        str(_store()),
        "--runroot",
        "/run/grpo-buildah",
        "--storage-driver",
        "overlay",
        *arguments,
    ]


def _output(command: list[str]) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _run(command: list[str], label: str) -> None:
    with Progress(label) as progress:
        _follow(command, progress)
        progress.end("done")


def _follow(command: list[str], progress: Progress) -> None:
    """Run a command; its last line is the progress, and its output is shown only where it fails."""
    environment = {**os.environ, "TMPDIR": str(_work()), "BUILDAH_ISOLATION": "chroot"}
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert child.stdout is not None
    lines: list[str] = []
    for line in child.stdout:
        lines.append(line)
        if line.strip():
            progress.update(line.strip()[:100])
    if child.wait():
        progress.end("failed")
        sys.exit(f"`{' '.join(command)}` failed:\n{''.join(lines[-60:])}")


def main() -> None:
    commands = {"build", "load", "all", "references"}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        sys.exit(f"usage: python3 -m local_cluster.image_build {'|'.join(sorted(commands))}")
    command = sys.argv[1]
    if command == "references":
        print(json.dumps({image.name: image.reference(ROOT) for image in IMAGES}))
        return
    if mode.choose() == "named":
        sys.exit("a cluster of your own pulls images from a registry: build and push them with docker (see the README)")
    with locked(paths.cache_dir() / "images.lock", "another build of the images"), _snapshot() as root:
        if mode.choose() == "built":
            packages.install(packages.missing(packages.IMAGE_PACKAGES), why="needed to build images")
            _remove_leftovers()
        for image in IMAGES:
            if command in ("build", "all"):
                build(image, root)
            if command in ("load", "all"):
                load(image, root)


if __name__ == "__main__":
    main()
