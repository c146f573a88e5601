"""Finds a Go compiler that is new enough, or brings one from the package registries.

A machine without Go gets Debian's, which is too old to compile this Kubernetes but new enough to fetch a current
compiler as the Go project publishes it: the module ``golang.org/toolchain``, checked against the public checksum
database.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from local_cluster import components, packages, paths

TOOLCHAIN = "go1.26.8"


def go_command() -> str:
    """Path of a Go that is at least as new as go.mod's `go` line; installs one where there is none."""
    installed = [found for found in (shutil.which("go"), "/usr/local/go/bin/go") if found and Path(found).exists()]
    for go in installed:
        if _version(go) >= components.go_version():
            return go
    cached = _toolchain_dir() / "bin" / "go"
    if cached.exists():
        return str(cached)
    if not installed:
        packages.install(["golang-go"], why="to fetch a Go compiler")
        installed = ["/usr/bin/go"]
    return _download_toolchain(installed[0])


def build_environment() -> dict[str, str]:
    """Environment of every call of the go command: its caches lie in ours, so that they can be deleted with it."""
    return {
        **os.environ,
        **components.COMPILE_ENV,
        "GOCACHE": str(paths.cache_dir() / "gocache"),
        "GOMODCACHE": str(paths.cache_dir() / "gomodcache"),
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }


def _version(go: str) -> tuple[int, int, int]:
    # GOTOOLCHAIN=local, or the command might start downloading the version that some go.mod asks for.
    result = subprocess.run([go, "version"], capture_output=True, text=True, env={**os.environ, "GOTOOLCHAIN": "local"})
    found = re.search(r"go(\d+)\.(\d+)(?:\.(\d+))?", result.stdout)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else (0, 0, 0)


def _module() -> str:
    return f"golang.org/toolchain@v0.0.1-{TOOLCHAIN}.linux-{'arm64' if os.uname().machine == 'aarch64' else 'amd64'}"


def _toolchain_dir() -> Path:
    return paths.cache_dir() / "toolchain" / _module()


def _download_toolchain(go: str) -> str:
    print(f"Downloading the Go compiler {TOOLCHAIN} with {go} (once) ...", flush=True)
    # Not in a module's directory: the old version could not read our go.mod.
    env = {
        **os.environ,
        "GOMODCACHE": str(paths.cache_dir() / "toolchain"),
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "",
        "GO111MODULE": "on",
    }
    result = subprocess.run(
        [go, "mod", "download", "-json", _module()], capture_output=True, text=True, env=env, cwd="/"
    )
    if result.returncode:
        raise SystemExit(
            f"Cannot download the Go compiler {TOOLCHAIN}: {result.stderr.strip() or result.stdout.strip()}\n"
            f"Install Go {'.'.join(map(str, components.go_version()))} or newer and put it on PATH."
        )
    directory = Path(json.loads(result.stdout)["Dir"])
    # Module archives carry no permission bits.
    for program in [*(directory / "bin").iterdir(), *(directory / "pkg" / "tool").rglob("*")]:
        if program.is_file():
            program.chmod(0o755)
    return str(directory / "bin" / "go")
