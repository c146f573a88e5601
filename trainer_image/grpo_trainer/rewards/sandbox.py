"""Runs a program that nobody trusts: a process of its own that `sandbox_child.py` shuts in before it begins."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

_CHILD = Path(__file__).with_name("sandbox_child.py")
CANNOT = 96
"""Exit code of a child that could not shut itself in; its error output says why."""


@dataclass(frozen=True)
class Limits:
    """Of one program."""

    seconds: float
    memory: int
    """Bytes of address space."""
    file_size: int
    """Bytes of each file, and of the output."""
    need_landlock: bool
    """Refuse to run on a kernel that cannot keep the program from the trainer's files."""


def run_program(
    program: str, stdin: str, limits: Limits, directory: str, *, check: str = "", mark: str = ""
) -> str | None:
    """Output of the program, and of `check`, Python text that runs after it in its namespace; None where either raised,
    ended with another exit code than 0, or ran out of time, memory or file size.

    `mark` is printed at the very end. The program may write in `directory` alone. Raises RuntimeError where the kernel
    gives no sandbox.
    """
    task = {"program": program, "check": check, "mark": mark, "directory": directory, **asdict(limits)}
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as config:
        given.write(stdin.encode(errors="replace"))
        given.seek(0)
        config.write(json.dumps(task).encode())
        config.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-I", "-B", str(_CHILD), str(config.fileno())],
            stdin=given,
            stdout=output,
            stderr=subprocess.PIPE,
            pass_fds=[config.fileno()],
            cwd=directory,
            # Nothing of the trainer's environment, which may hold tokens.
            env={"PATH": os.defpath, "HOME": directory, "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"},
        )
        try:
            code = child.wait(limits.seconds)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        finally:
            child.kill()
            child.wait()
        assert child.stderr is not None
        with child.stderr:
            if code == CANNOT:
                raise RuntimeError(child.stderr.read(1000).decode())
        if code != 0:
            return None
        output.seek(0)
        return output.read().decode(errors="replace")
