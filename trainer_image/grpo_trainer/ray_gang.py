"""The gang as Ray sees it: a node a pod, a worker a GPU, and calls that end when a peer is lost."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from grpo_api import names
from grpo_api.job import GRPOJobSpec
from grpo_trainer.environment import port_answers
from grpo_trainer.errors import PeerLostError, plain
from grpo_trainer.workers.worker import Worker

log = logging.getLogger(__name__)

JOIN_TIMEOUT = 600.0
"""Seconds that pods may take to join."""
START_TIMEOUT = 180.0
"""Seconds that Ray's head may take to start."""
OBJECT_STORE_BYTES = 128 * 2**20
"""Only prompts and responses pass through it; weights go through torch.distributed."""
_RAY_DIR = f"{names.SCRATCH_DIR}/ray"
_SETTLE_SECONDS = 5.0
"""After one rank's failure the others' errors are gathered for so long: the cause is often not the first to arrive."""
_EXIT_DETAIL = re.compile(r"Worker exit detail: (.+?)(?= Some common causes|$)", re.DOTALL)
_ACTOR_BLOCK = re.compile(r"^\t(class_name|actor_id|pid|name|namespace|ip): .*$", re.MULTILINE)
_CONNECTION_LOST = re.compile(
    r"gloo|nccl|connection (reset|closed|refused)|broken pipe|timed? ?out|heartbeat|store", re.IGNORECASE
)


def _resource(node_rank: int) -> str:
    return f"node_rank_{node_rank}"


class RayNode:
    """This pod's Ray processes."""

    def __init__(self, spec: GRPOJobSpec, node_rank: int, address: str, head: str | None):
        """Starts the head where `head` is None, else joins it."""
        slots = spec.trainer.n_gpus_per_node
        where = (
            ["--head", f"--port={names.RAY_GCS_PORT}", "--include-dashboard=false"]
            if head is None
            else [f"--address={head}:{names.RAY_GCS_PORT}"]
        )
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", *where),
            f"--node-ip-address={address}",
            f"--object-manager-port={names.RAY_OBJECT_MANAGER_PORT}",
            f"--node-manager-port={names.RAY_NODE_MANAGER_PORT}",
            f"--runtime-env-agent-port={names.RAY_RUNTIME_ENV_AGENT_PORT}",
            f"--metrics-export-port={names.RAY_METRICS_EXPORT_PORT}",
            f"--dashboard-agent-listen-port={names.RAY_DASHBOARD_AGENT_PORT}",
            f"--min-worker-port={names.RAY_MIN_WORKER_PORT}",
            f"--max-worker-port={names.RAY_MAX_WORKER_PORT}",
            f"--num-cpus={slots}",
            "--num-gpus=0",  # workers are placed by the resource below, on machines with and without GPUs alike
            "--resources=" + json.dumps({_resource(node_rank): slots}),
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            "--include-log-monitor=false",
            "--disable-usage-stats",
            "--block",
        ]
        if head is None:
            command.append(f"--temp-dir={_RAY_DIR}")
        self._log = Path(names.SCRATCH_DIR) / "ray-start.log"
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
            )

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def output(self) -> str:
        """The end of what `ray start` said."""
        return self._log.read_text(errors="replace")[-1500:].strip()

    def stop(self, grace: float = 2.0) -> None:
        """Asks the node's processes to end, then kills those that do not."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


class Gang:
    """All workers, by rank: node rank first, then the GPU within the node."""

    def __init__(self, spec: GRPOJobSpec, node: RayNode, address: str):
        """Waits until every pod has joined and every worker has started.

        Raises PeerLostError where one does not within JOIN_TIMEOUT or is lost.
        """
        self._node = node
        self._nodes = spec.trainer.nnodes
        _connect(node, address)
        began = time.monotonic()
        while missing := self._missing():
            if time.monotonic() - began > JOIN_TIMEOUT:
                ranks = ", ".join(map(str, missing))
                raise PeerLostError("PeersMissing", f"pods of node rank {ranks} did not join in {JOIN_TIMEOUT:.0f} s")
            if not node.alive:
                raise PeerLostError("RayEnded", f"Ray's head ended: {node.output()}")
            time.sleep(0.5)
        log.info("Ray: %d of %d nodes", self._nodes, self._nodes)
        self._per_node = per_node = spec.trainer.n_gpus_per_node
        self.size = self._nodes * per_node
        remote = ray.remote(Worker)
        self._workers = [
            remote.options(num_cpus=0, resources={_resource(rank // per_node): 1}, max_restarts=0).remote(
                spec, rank, self.size, rank % per_node
            )
            for rank in range(self.size)
        ]
        self.head_address = address

    def all(self, method: str, *arguments: Any, **keywords: Any) -> list[Any]:
        """Calls a method on every rank with the same arguments; results by rank."""
        return self._gather([getattr(w, method).remote(*arguments, **keywords) for w in self._workers])

    def each(self, method: str, arguments: list[Any], **keywords: Any) -> list[Any]:
        """Calls a method on every rank with its own argument; results by rank."""
        calls = zip(self._workers, arguments, strict=True)
        return self._gather([getattr(w, method).remote(one, **keywords) for w, one in calls])

    def first(self, method: str, *arguments: Any) -> Any:
        """Calls a method on rank 0 alone."""
        return self._gather([getattr(self._workers[0], method).remote(*arguments)])[0]

    def _missing(self) -> list[int]:
        there = {name for node in ray.nodes() if node["Alive"] for name in node["Resources"]}
        return [rank for rank in range(self._nodes) if _resource(rank) not in there]

    def _gather(self, calls: list[Any]) -> list[Any]:
        """Results of one call a rank, in order of rank."""
        waiting, failures, until = calls, list[Exception](), None
        while waiting and (until is None or time.monotonic() < until):
            ended, waiting = ray.wait(waiting, num_returns=1, timeout=1.0)
            for call in ended:
                try:
                    ray.get(call)
                except RayError as error:
                    rank = calls.index(call)
                    failures.append(_unwrapped(error, rank, rank // self._per_node))
            if not ended and not failures:
                if not self._node.alive:
                    failures.append(PeerLostError("RayEnded", f"Ray's head ended: {self._node.output()}"))
                elif missing := self._missing():
                    ranks = ", ".join(map(str, missing))
                    failures.append(PeerLostError("PeerLost", f"the pod of node rank {ranks} was lost"))
            if failures and until is None:
                until = time.monotonic() + _SETTLE_SECONDS
        if failures:
            raise min(failures, key=_seniority)
        return [ray.get(call) for call in calls]


def _connect(node: RayNode, address: str) -> None:
    """Makes this process Ray's driver, as soon as the head is up."""
    until = time.monotonic() + START_TIMEOUT
    while not port_answers(address, names.RAY_GCS_PORT):
        if not node.alive or time.monotonic() > until:
            raise PeerLostError("RayNotStarted", f"Ray's head did not start: {node.output()}")
        time.sleep(0.2)
    on_sigterm = signal.getsignal(signal.SIGTERM)
    while True:
        try:
            ray.init(
                address=f"{address}:{names.RAY_GCS_PORT}",
                _node_ip_address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
            signal.signal(signal.SIGTERM, on_sigterm)  # Ray puts its own there
            return
        except (RayError, ConnectionError, RuntimeError, ValueError) as error:
            if not node.alive or time.monotonic() > until:
                raise PeerLostError("RayNotStarted", f"Ray's head did not start: {error}. {node.output()}") from error
            time.sleep(1.0)


def _unwrapped(error: RayError, rank: int, node_rank: int) -> Exception:
    """What a failed call of a rank means: the worker's own exception, or a lost peer."""
    if isinstance(error, RayTaskError):
        cause = error.cause
        if type(cause) is RayError:  # Ray's stand-in for an exception that cannot travel
            cause = RuntimeError(_last_line(error.traceback_str))
        if isinstance(cause, RayActorError):
            error = cause
        elif isinstance(cause, OSError | RuntimeError) and _CONNECTION_LOST.search(str(cause)):
            return PeerLostError("PeerLost", f"rank {rank} lost its peers: {_one_line(str(cause))}")
        else:
            cause.add_note(f"on rank {rank}, node rank {node_rank}")
            cause.__cause__ = error  # has the worker's traceback
            return cause
    if isinstance(error, RayActorError):
        who = f"the worker of rank {rank} (pod of node rank {node_rank})"
        if error.actor_init_failed:
            return PeerLostError("WorkerDied", f"{who} did not start: {_last_line(str(error))}")
        return PeerLostError("WorkerDied", f"{who} died: {_death(str(error))}")
    return PeerLostError("RayFailed", f"{type(error).__name__}: {_one_line(str(error))}")


def _death(text: str) -> str:
    """What Ray says of a dead actor, without its identifiers."""
    if detail := _EXIT_DETAIL.search(text):
        return f"it was killed, such as for lack of memory, or crashed (Ray says: {_one_line(detail[1])})"
    return _one_line(_ACTOR_BLOCK.sub("", text))


def _one_line(text: str) -> str:
    return " ".join(plain(text).split())[:500]


def _last_line(text: str) -> str:
    """Where a traceback has the exception itself."""
    return _one_line(text.strip().rpartition("\n")[2])


def _seniority(error: Exception) -> int:
    """Causes before consequences: losing a peer is often what the others see of one rank's real failure."""
    if not isinstance(error, PeerLostError):
        return 0
    return 1 if error.reason in ("WorkerDied", "RayEnded") else 2
