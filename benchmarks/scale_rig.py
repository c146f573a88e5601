"""A local control plane with kwok's nodes, whose pods run at once, and one server that answers for all head pods."""

import asyncio
import contextlib
import ipaddress
import json
import multiprocessing
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp

from grpo_api import names
from grpo_api.crd import crd
from grpo_api.status import HeadReport, Progress, percent
from local_cluster.control_plane import ControlPlane, free_ports
from local_cluster.module_program import ModuleProgram

Object = dict[str, Any]


KWOK = ModuleProgram("sigs.k8s.io/kwok", "v0.8.0", "sigs.k8s.io/kwok/cmd/kwok")
_RAY_OPERATOR = "github.com/ray-project/kuberay/ray-operator"
KUBERAY = ModuleProgram(_RAY_OPERATOR, "v1.5.0", _RAY_OPERATOR)
KWOK_STAGES = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-delete.yaml",
)
NODES = 64
HEAD_PORT = 19464
POD_CIDR = "10.246.0.1/16"
"""Addresses of pods. All are this machine's for the time of the benchmark, so one server answers for every head that
the operator polls. Loopback addresses would do without root, but Kubernetes refuses them in EndpointSlices, and the
controller-manager's tries again would be half of the API server's work."""


class Api:
    """JSON requests to the control plane as its administrator."""

    def __init__(self, plane: ControlPlane) -> None:
        pki = plane.directory / "pki"
        self._ssl = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._ssl.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self._url = plane.url
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Api":
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._ssl, limit=32))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def request(self, method: str, path: str, body: Object | None = None, kind: str = "json") -> Object:
        """The answer. Raises RuntimeError with the API server's words."""
        assert self._session is not None
        headers = {"Content-Type": f"application/{kind}"}
        async with self._session.request(method, self._url + path, json=body, headers=headers) as response:
            answer: Object = await response.json()
            if response.status >= 300:
                raise RuntimeError(f"{method} {path}: {answer.get('message', answer)}")
            return answer

    async def column(self, path: str, name: str) -> list[str]:
        """One of the columns that kubectl prints, of a list from the API server's cache.

        Whole objects cost the server more than a second of a processor for a thousand jobs, and so slow down what is
        measured.
        """
        assert self._session is not None
        headers = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
        url = f"{self._url}{path}?resourceVersion=0&includeObject=None"
        async with self._session.get(url, headers=headers) as response:
            table = await response.json()
        if response.status >= 300:
            raise RuntimeError(f"GET {path}: {table.get('message', table)}")
        index = [column["name"].lower() for column in table["columnDefinitions"]].index(name.lower())
        return [str(row["cells"][index]) for row in table["rows"]]

    async def items(self, path: str, selector: str = "") -> list[Object]:
        """A list from the API server's cache."""
        query = f"&labelSelector={quote(selector)}" if selector else ""
        return list((await self.request("GET", f"{path}?resourceVersion=0{query}")).get("items") or [])


class Program:
    """A process under test: its CPU seconds and memory, as Linux counts them."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str] | None = None) -> None:
        self.log = log
        with log.open("ab") as file:
            self._popen = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, **(environment or {})})
        self._proc = Path("/proc") / str(self._popen.pid)

    def cpu_seconds(self) -> float:
        """User and system time of all threads."""
        stat = (self._proc / "stat").read_text()
        user, system = stat[stat.rindex(")") + 2 :].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def resident_mb(self, *, peak: bool = False) -> float:
        """Resident memory in MB (10^6 bytes), now or at its highest."""
        field = "VmHWM:" if peak else "VmRSS:"
        line = next(line for line in (self._proc / "status").read_text().splitlines() if line.startswith(field))
        return int(line.split()[1]) * 1024 / 1e6

    async def __aenter__(self) -> "Program":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL where that does not end it."""
        self._popen.terminate()
        try:
            self._popen.wait(30)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()


@contextlib.contextmanager
def rig(directory: Path) -> Iterator[ControlPlane]:
    """Control plane, kwok and the heads' server; all stop at the end."""
    kwok = KWOK.binary()
    _route("replace")
    plane = ControlPlane(directory)
    heads = multiprocessing.Process(target=_serve_heads, daemon=True)
    heads.start()
    try:
        plane.start()
        # 0 for a parallelism, kwok's default where a configuration lacks it, ends it.
        options: Object = {f"{stage}PlayStageParallelism": 16 for stage in ("node", "pod")} | {
            "nodeLeaseParallelism": 16
        }
        options |= {"manageAllNodes": True, "cidr": POD_CIDR, "nodeLeaseDurationSeconds": 40}
        configuration = directory / "kwok.yaml"
        head = {"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration"}
        configuration.write_text(json.dumps(head | {"options": options}))
        stages = KWOK.source() / "kustomize" / "stage"
        files = [configuration, *(stages / name for name in KWOK_STAGES)]
        command = [str(kwok), *(f"--config={file}" for file in files), f"--kubeconfig={plane.kubeconfig}"]
        plane.processes.start("kwok", command)
        asyncio.run(_prepare(plane))
        yield plane
    finally:
        plane.processes.stop("kwok")
        plane.stop()
        heads.terminate()
        _route("del")


def _route(verb: str) -> None:
    """Make the pods' addresses this machine's own, or no longer. Raises SystemExit where that is not allowed."""
    subnet = str(ipaddress.ip_interface(POD_CIDR).network)
    command = ["ip", "route", verb, "local", subnet, "dev", "lo"]
    if (told := subprocess.run(command, capture_output=True, text=True)).returncode:
        raise SystemExit(f"{' '.join(command)}: {told.stderr.strip()}: the benchmark needs root and iproute2")


async def _prepare(plane: ControlPlane) -> None:
    capacity = {"cpu": "256", "memory": "2Ti", "pods": "500", names.GPU_RESOURCE: "256"}
    async with Api(plane) as api:
        await api.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd())
        for number in range(NODES):
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{number}"}}
            await api.request(
                "POST", "/api/v1/nodes", node | {"status": {"capacity": capacity, "allocatable": capacity}}
            )
        deadline = time.monotonic() + 60
        while sum(map(_is_ready, await api.items("/api/v1/nodes"))) < NODES:
            if time.monotonic() > deadline:
                raise RuntimeError(f"kwok's nodes are not ready{plane.processes.last_words('kwok')}")
            await asyncio.sleep(0.5)


def _is_ready(node: Object) -> bool:
    conditions = node.get("status", {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def start_operator(plane: ControlPlane) -> tuple[Program, int]:
    """The operator as the chart runs it, but outside the cluster; and the port of its metrics."""
    metrics, probes = free_ports(2)
    environment = {
        "KUBECONFIG": str(plane.kubeconfig),
        "GRPO_TRAINER_IMAGE": "localhost/trainer:benchmark",
        "GRPO_LEASE_NAMESPACE": "default",
        "GRPO_METRICS_PORT": str(metrics),
        "GRPO_PROBE_PORT": str(probes),
    }
    command = [sys.executable, "-m", "grpo_operator.main"]
    return Program(command, plane.directory / "operator.log", environment), metrics


_PROGRESS = Progress(step=3, total_steps=20, percent=percent(3, 20), reward_mean=0.5, eta_seconds=600.0)
_REPORT = HeadReport(phase="training", progress=_PROGRESS).model_dump_json(by_alias=True, exclude_none=True).encode()


def _serve_heads() -> None:
    """What every head says: it trains, and no step ends."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(_REPORT)}\r\n\r\n".encode()

    class Heads(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._transport = transport

        def data_received(self, data: bytes) -> None:
            if data.endswith(b"\r\n\r\n") and isinstance(self._transport, asyncio.WriteTransport):
                self._transport.write(head + _REPORT)

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(Heads, "0.0.0.0", HEAD_PORT)
        await server.serve_forever()

    asyncio.run(serve())
