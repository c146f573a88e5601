"""Compiles the cluster's programs from Go modules into the cache, once; packages that they share compile once too."""

import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from local_cluster import components, go, paths
from local_cluster.components import Component
from local_cluster.locks import locked
from local_cluster.progress import Progress, elapsed

# Go modules, build cache and binaries.
NEEDED_FREE_GB = 9


def missing(stages: Sequence[str] = components.STAGES) -> list[Component]:
    return [
        component for component in components.COMPONENTS if component.stage in stages and not component.path.is_file()
    ]


def build(stages: Sequence[str] = components.STAGES) -> None:
    """Build what is missing of ``stages``. Raises SystemExit with the compiler's last words."""
    if not missing(stages):
        return
    with locked(paths.cache_dir() / "build.lock", "another build of the cluster's programs"):
        todo = missing(stages)
        if not todo:
            return
        _check_disk()
        command, env = go.go_command(), go.build_environment()
        began = time.monotonic()
        print(
            f"Compiling {len(todo)} programs of Kubernetes {components.versions()[components.KUBERNETES]}: "
            f"this happens once, then they are cached in {paths.bin_dir()}",
            flush=True,
        )
        _download(command, env)
        done = 0
        built: set[str] = set()
        for stage in components.STAGES:
            wanted = [component for component in todo if component.stage == stage]
            if wanted:
                built |= _compile(command, env, wanted, built, done + 1, len(todo))
                done += len(wanted)
        _remove_other_versions()
        if not missing():
            clean()
        print(f"Compiled in {elapsed(time.monotonic() - began)}.", flush=True)


def clean() -> None:
    """Delete Go's own caches (6 GB), which no built binary needs. ``GRPO_KEEP_GO_CACHE=1`` keeps them."""
    if os.environ.get("GRPO_KEEP_GO_CACHE"):
        return
    for name in ("gocache", "gomodcache", "toolchain"):
        directory = paths.cache_dir() / name
        # Go makes its module directories read-only.
        for parent, _, _ in os.walk(directory):
            os.chmod(parent, 0o755)
        shutil.rmtree(directory, ignore_errors=True)


def _check_disk() -> None:
    paths.cache_dir().mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(paths.cache_dir()).free / 1e9
    if free < NEEDED_FREE_GB:
        raise SystemExit(
            f"Compiling the cluster's programs needs {NEEDED_FREE_GB} GB free in {paths.cache_dir()}, "
            f"which has {free:.1f} GB. Free some, or name another place with GRPO_CACHE_DIR."
        )


def _download(command: str, env: dict[str, str]) -> None:
    """Fetch the modules. `go build` would do it too, but package by package, between compilations."""
    with Progress("[modules] downloading Go modules") as progress:
        process = _spawn([command, "mod", "download", "-x"], env)
        fetched = 0
        lines = []
        for line in _lines(process):
            lines.append(line)
            fetched += ".zip: 200" in line
            progress.update(f"{fetched} modules")
        if process.wait():
            raise SystemExit("Cannot download the Go modules:\n" + "".join(lines[-15:]))
        progress.end(f"{fetched} modules")


def _compile(
    command: str, env: dict[str, str], wanted: Sequence[Component], built: set[str], first: int, total: int
) -> set[str]:
    """Build ``wanted`` and return the Go packages that it took, of which those of ``built`` were compiled already."""
    names = ", ".join(component.name for component in wanted)
    last = first + len(wanted) - 1
    packages = [component.package for component in wanted]
    with Progress(f"[{first}-{last}/{total}] {names}" if last > first else f"[{first}/{total}] {names}") as progress:
        listing = subprocess.run(
            [command, "list", "-deps", components.TAGS, *packages],
            cwd=components.MODULE_DIR, env=env, capture_output=True, text=True,
        )  # fmt: skip
        needed = set(listing.stdout.split()) - built
        with tempfile.TemporaryDirectory(dir=paths.cache_dir(), prefix="building-") as output:
            flags = [*components.COMPILE_FLAGS, f"-ldflags={components.link_flags()}"]
            process = _spawn([command, "build", "-v", *flags, "-o", f"{output}/", *packages], env)
            compiled = 0
            errors = []
            for line in _lines(process):
                compiled += line.strip() in needed
                errors.append(line)
                progress.update(f"{compiled} of {len(needed)} packages; built once, then cached")
            if process.wait():
                raise SystemExit("Compiling failed:\n" + "".join(errors[-15:]))
            for component in wanted:
                component.path.parent.mkdir(parents=True, exist_ok=True)
                os.replace(Path(output) / component.built_name, component.path)
        progress.end(f"compiled {compiled} packages")
        return needed


def _spawn(arguments: Sequence[str], env: dict[str, str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        arguments, cwd=components.MODULE_DIR, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def _lines(process: "subprocess.Popen[bytes]") -> Iterator[str]:
    """Lines of the process's error output, and an empty one each 0.2 s without any, so that a clock can tick."""
    assert process.stderr is not None
    rest = b""
    while True:
        if not select.select([process.stderr], [], [], 0.2)[0]:
            yield ""
            continue
        chunk = os.read(process.stderr.fileno(), 65536)
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (f"{line.decode(errors='replace')}\n" for line in lines)
    if rest:
        yield rest.decode(errors="replace")


def _remove_other_versions() -> None:
    """Delete binaries of earlier versions and flags, but none that a running cluster still executes."""
    current = {component.path.parent.name for component in components.COMPONENTS}
    running = {os.path.dirname(target) for target in _running_programs()}
    for directory in paths.bin_dir().iterdir():
        if directory.name not in current and str(directory) not in running:
            shutil.rmtree(directory)


def _running_programs() -> list[str]:
    targets = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                targets.append(os.readlink(process / "exe"))
            except OSError:  # ended meanwhile, a kernel thread, or another user's
                continue
    return targets
