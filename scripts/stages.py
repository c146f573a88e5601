"""Runs commands that depend on each other, side by side where they can, and says how far they are."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / ".local" / "log"
TAIL_LINES = 40


@dataclass
class Stage:
    """One command. It starts when every stage named in `after` has ended well."""

    name: str
    command: Sequence[str]
    after: Sequence[str] = ()
    note: str = ""
    quiet: bool = False
    """Output goes to the log only; a failure prints its end."""
    env: dict[str, str] = field(default_factory=dict)


class StageFailed(Exception):
    """A stage ended with an error; its output has been shown."""


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Runner:
    """Runs stages and keeps their times."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}
        self._start = time.monotonic()
        self._lock = threading.Lock()
        self._children: list[subprocess.Popen[str]] = []
        LOGS.mkdir(parents=True, exist_ok=True)

    def say(self, name: str, text: str) -> None:
        with self._lock:
            print(f"{clock(time.monotonic() - self._start):>6} {name:<10} {text}", flush=True)

    def run(self, stages: Sequence[Stage]) -> None:
        """Run all stages. Raises StageFailed after the first failure, with everything else stopped."""
        done = {stage.name: threading.Event() for stage in stages}
        failed = threading.Event()

        def work(stage: Stage) -> None:
            for name in stage.after:
                if name in done:
                    done[name].wait()
            if failed.is_set():
                done[stage.name].set()
                return
            if not self._run_one(stage):
                failed.set()
                self._stop_children()
            done[stage.name].set()

        threads = [threading.Thread(target=work, args=(stage,), daemon=True) for stage in stages]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            self._stop_children()
            raise
        if failed.is_set():
            raise StageFailed

    def _run_one(self, stage: Stage) -> bool:
        log = LOGS / f"{stage.name}.log"
        self.say(stage.name, f"starts{': ' + stage.note if stage.note else ''}")
        begin = time.monotonic()
        with log.open("w") as sink:
            child = subprocess.Popen(
                stage.command,
                cwd=ROOT,
                env={**os.environ, **stage.env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            with self._lock:
                self._children.append(child)
            assert child.stdout is not None
            for line in child.stdout:
                sink.write(line)
                sink.flush()
                if not stage.quiet and line.strip():
                    self.say(stage.name, line.rstrip())
            code = child.wait()
        seconds = time.monotonic() - begin
        self.times[stage.name] = seconds
        if code == 0:
            self.say(stage.name, f"done in {clock(seconds)}")
            return True
        if stage.quiet:
            print("\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:]), flush=True)
        self.say(stage.name, f"FAILED with exit code {code} after {clock(seconds)}; its output is in {log}")
        return False

    def _stop_children(self) -> None:
        with self._lock:
            running = [child for child in self._children if child.poll() is None]
        for child in running:
            os.killpg(child.pid, signal.SIGTERM)

    def summary(self) -> str:
        lines = [f"  {name:<12} {clock(seconds):>6}" for name, seconds in self.times.items()]
        return "\n".join([*lines, f"  {'in all':<12} {clock(time.monotonic() - self._start):>6}"])


def require(*commands: str) -> None:
    """End with one clear line where a command is missing."""
    for command in commands:
        if shutil.which(command) is None:
            sys.exit(f"{command} is not on PATH; install it (on Debian: apt-get install {command}) and run this again")


def main_guard(main: Callable[[Runner], int]) -> None:
    """Run `main` with a Runner and turn its failure into an exit code."""
    runner = Runner()
    try:
        code = main(runner)
    except StageFailed:
        code = 1
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
