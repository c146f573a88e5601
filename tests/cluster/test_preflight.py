"""Each thing that the machine lacks is refused beforehand, in words that name the repair."""

import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from local_cluster import mode, packages, preflight


def listener() -> socket.socket:
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.listen()
    return made


def test_a_port_in_use_is_named() -> None:
    with listener() as taken:
        port = taken.getsockname()[1]
        [problem] = preflight.busy_ports([port], own_pids=[])
        assert f"port {port} is taken" in problem
        # Our own process may hold it: the cluster is up.
        assert list(preflight.busy_ports([port], own_pids=[os.getpid()])) == []
    assert list(preflight.busy_ports([port], own_pids=[])) == []


def test_too_little_disk_names_directory_and_setting() -> None:
    problems = list(preflight.disk_problems(10**9))
    assert problems
    assert "GRPO_STATE_DIR" in problems[0]
    assert list(preflight.disk_problems(0)) == []


def test_not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    problems = list(preflight.find_problems([], [], 0))
    assert any("needs root" in problem and "sudo" in problem for problem in problems)


def test_all_problems_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "NEEDED_MEMORY_GB", 10**6)
    with listener() as taken, pytest.raises(SystemExit) as raised:
        preflight.check([taken.getsockname()[1]], [])
    message = str(raised.value)
    assert "GB of memory" in message
    assert "is taken" in message


def test_another_system_is_sent_to_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.platform, "system", lambda: "Darwin")
    [problem] = preflight.find_problems([], [], 0)
    assert "kind" in problem
    assert mode.CONTEXT_VARIABLE in problem


def test_another_kubelet_is_refused(tmp_path) -> None:
    fake = tmp_path / "kubelet"
    fake.symlink_to("/bin/sleep")
    process = subprocess.Popen([str(fake), "60"])
    try:
        # Popen returns when exec has closed its pipe; the kernel names the process a moment later.
        while Path(f"/proc/{process.pid}/comm").read_text() != "kubelet\n":
            time.sleep(0.01)
        theirs = [line for line in preflight.other_nodes([]) if f"process {process.pid}" in line]
        assert len(theirs) == 1
        assert "already is a Kubernetes node" in theirs[0]
        assert not [line for line in preflight.other_nodes([process.pid]) if f"process {process.pid}" in line]
    finally:
        process.kill()
        process.wait()


def test_a_missing_package_without_root_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(packages.shutil, "which", lambda name, path=None: "/usr/bin/apt-get")
    with pytest.raises(SystemExit, match="sudo apt-get install runc nftables"):
        packages.install(["runc", "nftables"], why="to run containers")


def test_missing_packages_are_found_by_command_and_file() -> None:
    wanted = {"sh": "dash", "no-such-command": "first", "/no/such/file": "second", "/proc/self": "third"}
    assert packages.missing(wanted) == ["first", "second"]


def test_a_named_context_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mode.CONTEXT_VARIABLE, "theirs")
    assert mode.choose() == "named"


def test_descriptor_that_is_closed_while_it_is_read_hides_no_other(tmp_path: Path) -> None:
    """Busy programs open and close files all the time: /proc/<pid>/fd lists some that are gone a moment later."""
    directory = tmp_path / "7" / "fd"
    directory.mkdir(parents=True)
    (directory / "3").write_text("")  # readlink fails on it, as on one that is gone
    for name, target in (("2", "socket:[11]"), ("4", "/dev/null"), ("5", "socket:[12]")):
        (directory / name).symlink_to(target)
    assert set(preflight.socket_inodes(7, tmp_path)) == {"11", "12"}
    assert set(preflight.socket_inodes(8, tmp_path)) == set()
