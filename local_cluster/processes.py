"""Long-lived processes that outlive this command, and a record of each that is safe to act on later.

A process id is reused after a process ends and after a reboot, so a record holds the process's start time and the
boot's id too, and a signal goes through a pidfd opened before they are compared: nothing that we did not start is
ever signalled.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None when it does not run (a zombie does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command, in parentheses, may hold spaces and parentheses; fields are counted from its end.
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True)
class Record:
    pid: int
    start_time: int
    boot_id: str
    command: list[str]

    @property
    def alive(self) -> bool:
        return self.boot_id == boot_id() and start_time(self.pid) == self.start_time

    def end(self, *steps: tuple[int, float]) -> bool:
        """Send each signal and wait its seconds for the end, until the process is gone; False when it was gone before.

        Raises RuntimeError when it is there after the last step.
        """
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive:
                return False
            for number, seconds in steps:
                signal.pidfd_send_signal(pidfd, number)
                # Readable when all its threads have ended, and so its ports are free; a zombie leader tells less.
                if select.select([pidfd], [], [], seconds)[0]:
                    break
            else:
                raise RuntimeError(f"process {self.pid} ({self.command[0]}) does not end, not even on SIGKILL")
        except ProcessLookupError:  # ended between two lines
            pass
        finally:
            os.close(pidfd)
        with contextlib.suppress(ChildProcessError):  # Our own child leaves a zombie, another's does not.
            os.waitpid(self.pid, 0)
        return True


class Processes:
    """The processes of a cluster: ``<directory>/<name>.json`` records each, ``<logs>/<name>.log`` takes its output."""

    def __init__(self, directory: Path, logs: Path) -> None:
        self.directory = directory
        self.logs = logs

    def record(self, name: str) -> Record | None:
        try:
            return Record(**json.loads((self.directory / f"{name}.json").read_text()))
        except (FileNotFoundError, ValueError, TypeError):  # a half-written record names no process
            return None

    def alive(self, name: str) -> bool:
        record = self.record(name)
        return record is not None and record.alive

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.directory.glob("*.json"))

    def start(self, name: str, command: Sequence[str], *, env: Mapping[str, str] | None = None) -> bool:
        """Start ``command`` detached, unless it runs already with the same arguments. True when it was started."""
        wanted = [str(part) for part in command]
        record = self.record(name)
        if record is not None and record.alive:
            if record.command == wanted:
                return False
            self.stop(name)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        with open(self.log(name), "ab") as log:
            process = subprocess.Popen(
                wanted,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(env or {})},
                cwd="/",
                start_new_session=True,
            )
        begun = start_time(process.pid)
        if begun is None:
            raise RuntimeError(f"{name} ended at once: {self.last_words(name)}")
        record = Record(process.pid, begun, boot_id(), wanted)
        partial = self.directory / f"{name}.partial"
        partial.write_text(json.dumps(asdict(record)))
        partial.rename(self.directory / f"{name}.json")
        process.returncode = 0  # It is meant to outlive us; without this, Popen warns that it still runs.
        return True

    def stop(self, name: str, *, grace_seconds: float = 15.0) -> None:
        """Stop the recorded process, if it runs, and forget it."""
        record = self.record(name)
        if record is not None:
            record.end((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 10.0))
        (self.directory / f"{name}.json").unlink(missing_ok=True)

    def kill(self, name: str) -> None:
        """SIGKILL, as a crash would: the record stays."""
        record = self.record(name)
        if record is None or not record.end((signal.SIGKILL, 10.0)):
            raise RuntimeError(f"{name} is not running")

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def last_words(self, name: str, lines: int = 5) -> str:
        """The end of the log, for an error message."""
        try:
            text = self.log(name).read_bytes()[-20_000:].decode(errors="replace")
        except FileNotFoundError:
            return "(no log)"
        return "\n".join(["", *text.splitlines()[-lines:], f"(log: {self.log(name)})"])
