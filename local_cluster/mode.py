"""Which cluster is used: one that the user names, kind where a Docker engine answers, else one that is built here."""

import os
import shutil
import subprocess
from typing import Literal

from local_cluster import paths

Mode = Literal["named", "kind", "built"]
CONTEXT_VARIABLE = "GRPO_KUBE_CONTEXT"
KIND_NAME = "grpo-local"


def choose() -> Mode:
    if os.environ.get(CONTEXT_VARIABLE):
        return "named"
    if shutil.which("kind") and shutil.which("docker"):
        try:
            if subprocess.run(["docker", "info"], capture_output=True, timeout=20).returncode == 0:
                return "kind"
        except subprocess.TimeoutExpired:
            pass
    return "built"


def current() -> Mode:
    """The mode of the cluster that is up; raises SystemExit when none is."""
    file = paths.state_dir() / "mode"
    if not file.exists():
        raise SystemExit("There is no local cluster: run `python3 -m local_cluster up`")
    text = file.read_text().strip()
    assert text in ("named", "kind", "built"), f"{file} holds {text!r}"
    return text  # type: ignore[return-value]


def remember(mode: Mode) -> None:
    paths.state_dir().mkdir(parents=True, exist_ok=True)
    (paths.state_dir() / "mode").write_text(f"{mode}\n")
