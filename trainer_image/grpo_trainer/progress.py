"""What a pod tells the outside: /metrics, /progress and /healthz while it runs, a termination report when it ends."""

import logging
import os
import socket
import sys
from collections import deque
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import fmean
from threading import Thread
from typing import Any

from prometheus_client.exposition import choose_encoder

from grpo_api.names import HEALTH_PATH, METRICS_PATH, PROGRESS_PATH, TERMINATION_LOG
from grpo_api.status import CheckpointStatus, HeadReport, Progress, TerminationReport, percent
from grpo_trainer.metrics import StepReport, TrainerMetrics

log = logging.getLogger(__name__)

TERMINATION_LOG_LIMIT = 4096
"""Bytes that the kubelet reads of a termination log."""
_CUT = " [...] "


class Pace:
    """Time left, from the mean of the last steps' seconds."""

    def __init__(self, window: int = 10) -> None:
        self._seconds: deque[float] = deque(maxlen=window)

    def add(self, step_seconds: float) -> None:
        self._seconds.append(step_seconds)

    def eta_seconds(self, steps_left: int) -> float | None:
        """None before the first step."""
        return fmean(self._seconds) * steps_left if self._seconds else None


def rfc3339(timestamp: float) -> str:
    """Unix seconds as `2026-01-31T12:00:00Z`."""
    return datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def progress_of(report: StepReport, timestamp: float) -> Progress:
    """The status' progress after a step that ended at `timestamp` (Unix seconds)."""
    return Progress(
        step=report.step,
        total_steps=report.total_steps,
        percent=percent(report.step, report.total_steps),
        reward_mean=None if report.reward_mean is None else round(report.reward_mean, 4),
        tokens_per_second=round(report.tokens_per_second, 1),
        eta_seconds=None if report.eta_seconds is None else round(report.eta_seconds, 1),
        last_step_time=rfc3339(timestamp),
    )


def validated(progress: Progress | None) -> dict[str, Any]:
    """The fields that a validation sets and steps leave alone."""
    return progress.model_dump(include={"val_step", "val_reward_mean"}, exclude_none=True) if progress else {}


class ProgressServer:
    """Serves a pod's metrics and progress from a thread of its own. Port 0 takes a free one (see `port`)."""

    def __init__(self, port: int, metrics: TrainerMetrics) -> None:
        self.report = HeadReport()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == METRICS_PATH:
                    encode, kind = choose_encoder(self.headers.get("Accept") or "")
                    self._answer(200, kind, encode(metrics.registry))
                elif path == PROGRESS_PATH:
                    body = owner.report.model_dump_json(by_alias=True, exclude_none=True)
                    self._answer(200, "application/json", body.encode())
                elif path == HEALTH_PATH:
                    self._answer(200, "text/plain", b"ok\n")
                else:
                    paths = f"not found; try {METRICS_PATH}, {PROGRESS_PATH} or {HEALTH_PATH}\n"
                    self._answer(404, "text/plain", paths.encode())

            def _answer(self, code: int, kind: str, body: bytes) -> None:
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                """Scrapes every few seconds would bury the training log."""

        self._server = _DualStackServer(("", port), Handler)
        self.port = self._server.server_address[1]
        Thread(target=self._server.serve_forever, name="progress", daemon=True).start()

    def set_phase(self, phase: str) -> None:
        """starting, loading, training, saving or done."""
        self.report = self.report.model_copy(update={"phase": phase})

    def update(
        self,
        progress: Progress | None = None,
        checkpoint: CheckpointStatus | None = None,
        resumed_from_step: int | None = None,
    ) -> None:
        """Take over what is given and keep the rest, such as the last validation where the progress has none."""
        if progress is not None and progress.val_step is None:
            progress = progress.model_copy(update=validated(self.report.progress))
        news = {"progress": progress, "checkpoint": checkpoint, "resumed_from_step": resumed_from_step}
        self.report = self.report.model_copy(update={key: value for key, value in news.items() if value is not None})

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _DualStackServer(ThreadingHTTPServer):
    """Answers on IPv4 and, where the machine has it, IPv6: clusters exist with either."""

    daemon_threads = True
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def write_termination_report(
    path: str,
    exit_code: int,
    reason: str,
    message: str = "",
    progress: Progress | None = None,
    checkpoint: CheckpointStatus | None = None,
    phase: str = "done",
) -> None:
    """Leave a TerminationReport of at most 4096 bytes; a longer message is cut in its middle.

    Outside a pod the kubelet's file is not there, and nothing is written; a failed write is only logged, as it must not
    change the exit code.
    """

    def body(text: str) -> bytes:
        report = TerminationReport(
            exit_code=exit_code, reason=reason, message=text, progress=progress, checkpoint=checkpoint, phase=phase
        )
        return report.model_dump_json(by_alias=True, exclude_none=True).encode()

    message = message.encode("utf-8", "replace").decode()  # lone surrogates, such as of undecodable output
    if path == TERMINATION_LOG and not os.path.exists(path):
        return
    content = body(message)
    fits, too_long = 0, len(message)
    if len(content) > TERMINATION_LOG_LIMIT:
        while too_long - fits > 1:
            kept = (fits + too_long) // 2
            if len(body(_cut(message, kept))) <= TERMINATION_LOG_LIMIT:
                fits = kept
            else:
                too_long = kept
        content = body(_cut(message, fits))
    try:
        with open(path, "wb") as file:
            file.write(content)
    except OSError as error:
        log.warning("cannot write the termination report to %s: %s", path, error)


def _cut(text: str, kept: int) -> str:
    """`kept` characters of a text: two thirds of them its beginning, the rest its end."""
    tail = kept // 3
    return text[: kept - tail] + _CUT + (text[-tail:] if tail else "")
