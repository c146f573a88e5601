"""A record of a process is safe to act on: only the very process that was started is ever signalled."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from local_cluster.processes import Processes, start_time

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('armed', flush=True); time.sleep(60)",
]


@pytest.fixture
def processes(tmp_path: Path):
    made = Processes(tmp_path / "records", tmp_path / "logs")
    yield made
    for name in made.names():
        made.stop(name, grace_seconds=0.1)


def rewrite(processes: Processes, name: str, **changes: object) -> None:
    record = processes.record(name)
    assert record is not None
    (processes.directory / f"{name}.json").write_text(json.dumps(asdict(replace(record, **changes))))


def test_start_is_idempotent_and_stop_ends_the_process(processes: Processes) -> None:
    assert processes.start("a", SLEEP)
    first = processes.record("a")
    assert not processes.start("a", SLEEP)
    assert processes.record("a") == first
    processes.stop("a")
    assert first is not None
    assert start_time(first.pid) is None
    assert processes.names() == []


def test_other_arguments_replace_the_process(processes: Processes) -> None:
    processes.start("a", SLEEP)
    first = processes.record("a")
    assert processes.start("a", [*SLEEP, "another"])
    assert first is not None
    assert start_time(first.pid) is None
    assert processes.alive("a")


@pytest.mark.parametrize("changed", ["start_time", "boot_id"])
def test_a_reused_process_id_is_never_signalled(processes: Processes, changed: str) -> None:
    bystander = subprocess.Popen(SLEEP)
    try:
        processes.start("a", SLEEP)
        own = processes.record("a")
        value = {"start_time": (start_time(bystander.pid) or 0) + 1, "boot_id": "of-an-earlier-boot"}[changed]
        begun = start_time(bystander.pid)
        rewrite(processes, "a", **{"pid": bystander.pid, "start_time": begun, changed: value})
        assert not processes.alive("a")
        with pytest.raises(RuntimeError, match="not running"):
            processes.kill("a")
        processes.stop("a", grace_seconds=0.1)
        time.sleep(0.2)
        assert bystander.poll() is None
        # With the true identity the same record does end it: the check above can fail.
        (processes.directory / "a.json").write_text(
            json.dumps({"pid": bystander.pid, "start_time": begun, "boot_id": own.boot_id, "command": SLEEP})
        )
        processes.kill("a")
        assert start_time(bystander.pid) is None
    finally:
        bystander.kill()
        assert own is not None
        own.end((9, 5.0))


def test_a_process_that_ignores_sigterm_is_killed(processes: Processes) -> None:
    processes.start("a", STUBBORN)
    while "armed" not in processes.log("a").read_text():
        time.sleep(0.02)
    begun = time.monotonic()
    processes.stop("a", grace_seconds=0.3)
    assert 0.3 <= time.monotonic() - begun < 5
    assert not processes.alive("a")


def test_a_killed_process_is_started_again(processes: Processes) -> None:
    processes.start("a", SLEEP)
    processes.kill("a")
    assert not processes.alive("a")
    assert processes.start("a", SLEEP)


def test_a_half_written_record_names_no_process(processes: Processes) -> None:
    processes.directory.mkdir(parents=True)
    (processes.directory / "a.json").write_text('{"pid": 1,')
    assert not processes.alive("a")
    processes.stop("a")
    assert processes.names() == []


def test_processes_outlive_the_command_that_started_them(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from local_cluster.processes import Processes;"
        f"Processes(Path({str(tmp_path)!r}), Path({str(tmp_path)!r})).start('a', {SLEEP!r})"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": str(root)})
    processes = Processes(tmp_path, tmp_path)
    assert processes.alive("a")
    record = processes.record("a")
    assert record is not None
    assert os.getsid(record.pid) == record.pid
    processes.stop("a")
