"""The parent's side of a reward process: start it without a GPU, send calls, hear answers, kill it.

Each process has a socket of its own, so whatever it does (hang, exit with any code, be killed) costs the call that it
was on and nothing else. It is a plain subprocess rather than one of multiprocessing, which would import the parent's
main module into it.
"""

import json
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

LOAD_TIMEOUT = 120.0
"""Seconds that a process may take to import the functions, before calls and their own limit begin."""
_TRANSFER_TIMEOUT = 30
"""Seconds that a message may take to pass the socket."""
WHERE_TIMEOUT = 0.5
"""Seconds to wait for the line that a call hangs on."""


class RewardProcess:
    """A process that runs `grpo_api.rewards.worker.serve`.

    `command` starts it, with the socket's number as the last argument; `config` lists the functions.
    `loaded` is None until it has imported them.
    """

    def __init__(self, command: Sequence[str], config: dict[str, Any], environment: dict[str, str]) -> None:
        ours, theirs = socket.socketpair()
        limit = struct.pack("ll", _TRANSFER_TIMEOUT, 0)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self.process = subprocess.Popen(
            [*command, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"} | environment,
            start_new_session=True,  # so that what the user's code starts can be killed with it
        )
        theirs.close()
        self.connection = Connection(ours.detach())
        self.end = os.pidfd_open(self.process.pid)
        """Readable once the process has ended, even where a child that it forked holds the socket open."""
        self.loaded: list[dict[str, Any]] | None = None
        self.connection.send(config)

    def receive(self) -> dict[str, Any]:
        """The next message. Raises EOFError or OSError where the process is gone, ValueError on what is no message."""
        message: dict[str, Any] = json.loads(self.connection.recv_bytes())
        return message

    def overdue(self, limit: float) -> str:
        """Text for a call that took more than `limit` seconds, with the line of the user's code that it is on.

        Waits a moment for the process to say so; one that is deep in C code may not. What it sends is used up: kill it.
        """
        where = ""
        with suppress(OSError, EOFError, ValueError):
            self.ask_where()
            if wait([self.connection], WHERE_TIMEOUT):
                where = str(self.receive().get("where") or "")
        return describe_overdue(limit, where)

    def ask_where(self) -> None:
        """Have the process send the line that it is on, as `{"where": text}`. One that is deep in C code may not."""
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGUSR1)

    def kill(self) -> int:
        """Kill the process and its children; returns its exit code."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.connection.close()
        os.close(self.end)
        return self.process.wait()


def describe_overdue(limit: float, where: str) -> str:
    """Text for a call that took more than `limit` seconds, with the line that it was on where that is known."""
    text = f"the call took more than reward.timeoutSeconds ({limit:g} s) and was killed"
    return f"{where}: {text}" if where else text


def describe_end(code: int) -> str:
    """An exit code of `RewardProcess.kill` in words."""
    return f"its process ended ({f'signal {-code}' if code < 0 else f'code {code}'})"
