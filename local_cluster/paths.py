"""Where the local cluster keeps its files: binaries are a cache outside the tree, a running cluster is state."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """Cache of compiled binaries and Go modules: ``GRPO_CACHE_DIR``, else ``~/.cache/grpo-operator``."""
    return Path(os.environ.get("GRPO_CACHE_DIR") or Path.home() / ".cache" / "grpo-operator").expanduser().absolute()


def bin_dir() -> Path:
    """Directory of compiled binaries, one subdirectory a component and version key."""
    return cache_dir() / "bin"


def state_dir() -> Path:
    """State of the running cluster: ``GRPO_STATE_DIR``, else ``/var/lib/grpo-local`` for root, else in the home."""
    if named := os.environ.get("GRPO_STATE_DIR"):
        return Path(named).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/grpo-local")
    return Path.home() / ".local" / "state" / "grpo-local"


def run_dir() -> Path:
    """Sockets and other files that a reboot must clear. Only the built cluster, which is root's, has them."""
    return Path("/run/grpo-local")


def log_dir() -> Path:
    return state_dir() / "log"


def kubeconfig() -> Path:
    """Kubeconfig of the local cluster, never the user's ``~/.kube/config``."""
    return state_dir() / "kubeconfig"


def binary(name: str) -> Path:
    """Path of a compiled binary, such as ``kubectl``.

    Raises FileNotFoundError that names the repair when it is not built yet, KeyError when no component has that name.
    """
    from local_cluster import components

    path = components.BY_NAME[name].path
    if not path.is_file():
        raise FileNotFoundError(f"{name} is not built yet ({path} is missing): run `python3 -m local_cluster build`")
    return path
