"""The operator as a process of its own against a control plane, which may be killed and started again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from local_cluster.control_plane import ControlPlane, free_ports


def impatient(seconds: float) -> tuple[str, ...]:
    """A `program` that waits so long, and not 90 s, for pods that do not go and for the garbage collector."""
    settings = f"apply.FORCE_AFTER_SECONDS = left_behind.WAIT_SECONDS = {seconds}"
    return ("-c", f"from grpo_operator import apply, left_behind, main; {settings}; main.main()")


class Operator:
    """One process at a time, with its output in `log`. Each start has an identity and ports of its own."""

    program: tuple[str, ...] = ("-m", "grpo_operator.main")
    """Arguments of Python."""

    def __init__(self, plane: ControlPlane, log: Path) -> None:
        self.plane, self.log = plane, log
        self.identity = ""
        self.metrics_port = self.probe_port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str) -> None:
        self.metrics_port, self.probe_port = free_ports(2)
        self.identity = f"test-{time.monotonic_ns()}"
        given = {
            "KUBECONFIG": str(self.plane.kubeconfig),
            "GRPO_TRAINER_IMAGE": "localhost/trainer:test",
            "GRPO_LEASE_NAMESPACE": "default",
            "GRPO_IDENTITY": self.identity,
            "GRPO_PROGRESS_INTERVAL_SECONDS": "0.5",
            "GRPO_METRICS_PORT": str(self.metrics_port),
            "GRPO_PROBE_PORT": str(self.probe_port),
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self.program],
                env={**os.environ, **given, **environment},
                stdout=log,
                stderr=log,
            )

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL: the Lease is not given back."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(20)
            self._process = None

    def freeze(self, frozen: bool) -> None:
        """As when its machine is paused: it stands still, and later goes on where it was."""
        if self.alive():
            assert self._process is not None
            self._process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def stop(self) -> int | None:
        """SIGTERM; returns the exit code, or None where no process was started."""
        if self._process is None:
            return None
        self._process.terminate()
        code, self._process = self._process.wait(20), None
        return code

    def probe(self, name: str) -> tuple[int, str]:
        """(status, text) of `healthz` or `readyz`; (0, "") while nobody listens."""
        try:
            with urlopen(f"http://127.0.0.1:{self.probe_port}/{name}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()
        except URLError:
            return 0, ""
