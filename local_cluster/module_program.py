"""Programs of other projects' Go modules, for benchmarks and tests: each is built once a version, then cached."""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from local_cluster import components, go, paths
from local_cluster.locks import locked


class ModuleProgram(NamedTuple):
    """A program of a Go module; the module's own go.mod pins what it needs."""

    module: str
    version: str
    package: str

    def binary(self) -> Path:
        """Its path; built the first time."""
        name = self.package.rsplit("/", 1)[-1]
        path = paths.cache_dir() / "module-bin" / f"{name}-{self.version}" / name
        if not path.is_file():
            with locked(paths.cache_dir() / "build.lock", "another build of programs"):
                if not path.is_file():
                    self._build(path)
        return path

    def source(self) -> Path:
        """Where its module lies, fetched where it does not."""
        command = [go.go_command(), "mod", "download", "-json", f"{self.module}@{self.version}"]
        told = subprocess.run(command, env=go.build_environment(), cwd="/", check=True, capture_output=True, text=True)
        return Path(json.loads(told.stdout)["Dir"])

    def _build(self, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        print(f"Building {target.name} {self.version} (once; a few minutes) ...", flush=True)
        # Flags as for the cluster's own programs: the modules that both use at the same version compile once.
        flags = [flag for flag in components.COMPILE_FLAGS if flag != components.TAGS]
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="building-") as directory:
            command = [go.go_command(), "install", *flags, "-ldflags=-s -w", f"{self.package}@{self.version}"]
            subprocess.run(command, env=go.build_environment() | {"GOBIN": directory}, cwd="/", check=True)
            os.replace(Path(directory) / target.name, target)
