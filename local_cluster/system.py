"""What the built cluster changes on the machine outside its own directories, and how each is undone."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

from local_cluster.processes import Record, boot_id, start_time

# A link of our own with a fixed address: the node keeps it when the machine changes networks or has none.
LINK = "grpo0"
NODE_IP = "10.245.0.1"
NFT_TABLES = (("inet", "grpo-local"), ("ip", "kube-proxy"), ("ip6", "kube-proxy"))
CGROUP = "grpo-local"
CGROUP_ROOT = Path("/sys/fs/cgroup")
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")


def run(*command: str, stdin: str | None = None, check: bool = True) -> str:
    """Output of a command. Raises RuntimeError with its error output, unless ``check`` is false."""
    env = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    result = subprocess.run(command, input=stdin, capture_output=True, text=True, env=env)
    if check and result.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed: {result.stderr.strip() or result.stdout.strip()}")
    return result.stdout


def set_up_network(firewall: str, state: Path) -> None:
    if not Path(f"/sys/class/net/{LINK}").exists():
        # A bridge without ports, because some kernels have no dummy device; bridges are needed for containers anyway.
        run("ip", "link", "add", LINK, "type", "bridge")
    run("ip", "address", "replace", f"{NODE_IP}/32", "dev", LINK)
    run("ip", "link", "set", LINK, "up")
    before = state / "ip_forward.before"
    if not before.exists():
        before.write_text(FORWARDING.read_text())
    FORWARDING.write_text("1\n")
    run("nft", "-f", "-", stdin=firewall)


def tear_down_network(state: Path) -> None:
    tables = run("nft", "list", "tables", check=False) if shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin") else ""
    for family, table in NFT_TABLES:
        if f"table {family} {table}\n" in tables:
            run("nft", "delete", "table", family, table)
    if Path(f"/sys/class/net/{LINK}").exists():
        run("ip", "link", "delete", LINK)
    before = state / "ip_forward.before"
    if before.exists():
        FORWARDING.write_text(before.read_text())
        before.unlink()


def cgroup_hierarchies() -> list[Path]:
    """The mounted hierarchies that containers use: one with cgroup v2, one a controller with v1 (hybrid included)."""
    if (CGROUP_ROOT / "cgroup.controllers").exists():
        return [CGROUP_ROOT]
    return [
        path for path in CGROUP_ROOT.iterdir() if path.is_dir() and not path.is_symlink() and path.name != "unified"
    ]


def set_up_cgroup() -> None:
    for hierarchy in cgroup_hierarchies():
        group = hierarchy / CGROUP
        group.mkdir(exist_ok=True)
        available = hierarchy / "cgroup.controllers"
        if available.exists():
            enable = " ".join(f"+{name}" for name in available.read_text().split())
            for parent in (hierarchy, group):
                try:
                    (parent / "cgroup.subtree_control").write_text(enable)
                except OSError as error:
                    raise SystemExit(
                        f"Cannot enable cgroup controllers in {parent}: {error}. Inside a container this needs a "
                        "private cgroup namespace and no process in its root; else run on the machine itself."
                    ) from error
        elif hierarchy.name == "cpuset":
            # A v1 cpuset without CPUs takes no process, and not every kernel copies its parent's.
            for file in ("cpuset.cpus", "cpuset.mems"):
                if not (group / file).read_text().strip():
                    (group / file).write_text((hierarchy / file).read_text())


def kill_containers(shim: Path) -> None:
    """End every process in our cgroup, and the shims that held them: containers outlive containerd by design."""
    # Anew until none is left: a container that is being started adds processes meanwhile.
    while victims := {*_cgroup_processes(), *_shims(shim)}:
        for pid in victims:
            begun = start_time(pid)
            if begun is not None:
                Record(pid, begun, boot_id(), [f"container process {pid}"]).end((signal.SIGKILL, 20.0))


def _cgroup_processes() -> set[int]:
    pids: set[int] = set()
    for hierarchy in cgroup_hierarchies():
        for file in (hierarchy / CGROUP).rglob("cgroup.procs"):
            try:
                found = {int(word) for word in file.read_text().split()}
            except OSError:  # removed meanwhile
                continue
            pids |= {pid for pid in found if start_time(pid) is not None}
    return pids


def _shims(shim: Path) -> set[int]:
    """Shims of any version of ours that serve our containerd's socket."""
    pids = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            ours = words[0].endswith(shim.name.encode()) and b"/run/grpo-local/containerd.sock" in words
            if ours and start_time(int(process.name)) is not None:
                pids.add(int(process.name))
    return pids


def remove_cgroup() -> None:
    # On a hybrid machine runc makes the group in the v2 hierarchy too, which has no controller for us.
    for hierarchy in {*cgroup_hierarchies(), CGROUP_ROOT / "unified"}:
        for directory, _, _ in os.walk(hierarchy / CGROUP, topdown=False):
            os.rmdir(directory)


def remove_traces(state: Path) -> None:
    """Delete what the kubelet and the network plugins leave in directories that no setting moves."""
    for link in Path("/var/log/containers").glob("*.log"):
        if link.is_symlink() and os.readlink(link).startswith(f"{state}/"):
            link.unlink()
    for result in Path("/var/lib/cni/results").glob("grpo-local-*"):
        result.unlink()
    # Shims' sockets carry no name of ours; one that no process holds any more serves nobody.
    held = Path("/proc/net/unix").read_text()
    for shim_socket in Path("/run/containerd/s").glob("*"):
        if str(shim_socket) not in held:
            shim_socket.unlink()
    plugins = Path("/var/lib/kubelet/device-plugins")
    for name in ("kubelet.sock", "DEPRECATION"):
        (plugins / name).unlink(missing_ok=True)
    for directory in (plugins, plugins.parent):
        if directory.exists() and not any(directory.iterdir()):
            directory.rmdir()


def unmount_below(*roots: Path) -> None:
    """Unmount all that is mounted below ``roots``, deepest first. Raises RuntimeError if anything stays."""
    for _ in range(3):
        found = _mounts_below(roots)
        if not found:
            return
        for mount in sorted(found, key=len, reverse=True):
            run("umount", "--lazy", mount, check=False)
    raise RuntimeError(f"still mounted: {_mounts_below(roots)}")


def _mounts_below(roots: tuple[Path, ...]) -> list[str]:
    mounts = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        # Spaces and the like are written as octal escapes.
        target = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), line.split()[4])
        if any(target.startswith(f"{root}/") for root in roots):
            mounts.append(target)
    return mounts


def upstream_nameservers() -> list[str]:
    """Name servers that a pod can ask: systemd-resolved's stub on loopback is not one, what lies behind it is."""
    for file in (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf")):
        if file.exists():
            found = re.findall(r"^nameserver\s+(\S+)", file.read_text(), flags=re.MULTILINE)
            if usable := [server for server in found if not server.startswith("127.") and ":" not in server]:
                return usable[:3]
    return []
