"""Checks before the built cluster is made: each failure says what is missing and how to repair it."""

import os
import platform
import shutil
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from local_cluster import mode, paths, system
from local_cluster.processes import start_time

# For all of a first demo: programs, both images with the copies that exist while they are loaded, checkpoints.
NEEDED_FREE_GB = 30
# For the cluster alone.
NEEDED_FREE_CLUSTER_GB = 5
NEEDED_MEMORY_GB = 8
OTHERS = f"or name a cluster of your own with {mode.CONTEXT_VARIABLE}=<context>"


def check(ports: Collection[int], own_pids: Collection[int], *, needed_free_gb: float = NEEDED_FREE_CLUSTER_GB) -> None:
    """Exit with every problem that this machine has, not just the first."""
    if problems := list(find_problems(ports, own_pids, needed_free_gb)):
        raise SystemExit(
            "Cannot build a cluster on this machine:\n" + "\n".join(f"  - {problem}" for problem in problems)
        )


def find_problems(ports: Collection[int], own_pids: Collection[int], needed_free_gb: float) -> Iterator[str]:
    if platform.system() != "Linux":
        yield f"it needs Linux, this is {platform.system()}: start Docker and install kind, {OTHERS}."
        return
    if os.geteuid() != 0:
        yield f"it needs root to run containers: use sudo, or start Docker and install kind, {OTHERS}."
    yield from disk_problems(needed_free_gb)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    if memory < NEEDED_MEMORY_GB:
        yield f"it needs {NEEDED_MEMORY_GB} GB of memory, this machine has {memory:.1f} GB: use a larger one, {OTHERS}."
    if not system.CGROUP_ROOT.exists() or not system.cgroup_hierarchies():
        yield "no cgroup hierarchy is mounted at /sys/fs/cgroup: mount one (`mount -t cgroup2 none /sys/fs/cgroup`)."
    if Path("/proc/filesystems").exists() and "overlay" not in Path("/proc/filesystems").read_text():
        yield "the kernel has no overlay file system: load it with `modprobe overlay`."
    yield from other_nodes(own_pids)
    yield from busy_ports(ports, own_pids)


def disk_problems(needed_gb: float) -> Iterator[str]:
    """One line a file system (of cache or state) with less than ``needed_gb`` free."""
    seen = set()
    for directory, variable in ((paths.state_dir(), "GRPO_STATE_DIR"), (paths.cache_dir(), "GRPO_CACHE_DIR")):
        existing = next(parent for parent in (directory, *directory.parents) if parent.exists())
        device = existing.stat().st_dev
        free = shutil.disk_usage(existing).free / 1e9
        if device not in seen and free < needed_gb:
            yield (
                f"{directory} needs {needed_gb:.0f} GB of free disk, there are {free:.1f} GB: "
                f"free some, or name another place with {variable}."
            )
        seen.add(device)


def other_nodes(own_pids: Collection[int]) -> Iterator[str]:
    """A second kubelet would fight with the first over device plugins, service rules and cgroups."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) not in own_pids:
            try:
                name = (process / "comm").read_text().strip()
            except OSError:
                continue
            # A kubelet that was killed may stay a zombie.
            if (
                name in ("kubelet", "k3s", "k3s-server", "k0s", "microk8s")
                and start_time(int(process.name)) is not None
            ):
                yield f"it already is a Kubernetes node ({name}, process {process.name}): stop that, {OTHERS}."


def busy_ports(ports: Collection[int], own_pids: Collection[int]) -> Iterator[str]:
    taken: list[int] = []
    for _ in range(20):  # One that was just killed takes a moment to let go of its ports.
        listening = _listening()
        own = {inode for pid in own_pids for inode in socket_inodes(pid)}  # after the list: a new socket is in both
        taken = [port for port in sorted(ports) if port in listening and not listening[port] & own]
        if not taken:
            break
        time.sleep(0.1)
    for port in taken:
        yield f"port {port} is taken by another program: stop it (`ss -ltnp sport = :{port}` shows which)."


def _listening() -> dict[int, set[str]]:
    """TCP port -> inodes of the sockets that listen on it."""
    found: dict[int, set[str]] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if Path(table).exists():
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":
                    found.setdefault(int(fields[1].rsplit(":", 1)[1], 16), set()).add(fields[9])
    return found


def socket_inodes(pid: int, proc: Path = Path("/proc")) -> Iterator[str]:
    """Inodes of the sockets that a process has open; none where it has ended."""
    try:
        descriptors = sorted(proc.joinpath(str(pid), "fd").iterdir())
    except OSError:
        return
    for descriptor in descriptors:
        try:
            target = os.readlink(descriptor)
        except OSError:  # closed meanwhile; the others still count
            continue
        if target.startswith("socket:["):
            yield target[8:-1]
