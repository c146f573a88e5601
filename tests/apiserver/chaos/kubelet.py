"""A hand in the kubelets' place: nodes say that they live, pods run, become ready and go, and heads report progress."""

import json
import random
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from grpo_api import names
from tests.apiserver.chaos.api import Api, Object, Record, path_of
from tests.apiserver.chaos.history import own_words

HEARTBEAT_SECONDS = 1.0
ENDS_WITHIN = 2.0
"""Seconds that a pod takes to end when it is told to go; at once, and a busy operator hardly ever sees why it goes."""
LOOK_SECONDS = 0.15
GPUS_PER_NODE = 28
HOSTNAME = "kubernetes.io/hostname"
ENDLESS = b"x" * 65536


class Heads:
    """The head pods' endpoint: every pod has a loopback address of its own, and one server answers for all."""

    def __init__(self) -> None:
        self.modes: dict[str, str] = {}
        """How the head at an address answers: well if not here, else `hangs`, `garbage`, `endless` or `error`."""
        self.closing = threading.Event()
        heads = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                heads.answer(self, self.connection.getsockname()[0])

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: Any) -> None:  # a reader that is killed hangs up
                pass

        self._server = Server(("0.0.0.0", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler, address: str) -> None:
        mode = self.modes.get(address, "well")
        if mode == "hangs":
            self.closing.wait(10)
            return
        request.send_response(500 if mode == "error" else 200)
        request.end_headers()
        if mode == "garbage":
            request.wfile.write(b"\x00\xff{{{" + ENDLESS)
        elif mode == "endless":
            while not self.closing.is_set():
                request.wfile.write(ENDLESS)
        else:
            request.wfile.write(json.dumps({"phase": "training", "progress": {"step": 1, "totalSteps": 20}}).encode())

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()


class Kubelet:
    """Acts on what the record shows, in threads of its own; a node in `dead` does nothing."""

    def __init__(
        self, api: Api, record: Record, nodes: list[str], chance: random.Random, gpus: int = GPUS_PER_NODE
    ) -> None:
        self.api, self.record, self.nodes, self._chance, self._gpus = api, record, nodes, chance, gpus
        self.heads = Heads()
        self.dead: set[str] = set()
        self.errors: list[BaseException] = []
        self._over: set[str] = set()
        self._ends_at: dict[str, float] = {}
        self._lock = threading.Lock()
        self._addresses: dict[str, str] = {}
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._guard, args=(f,), daemon=True) for f in (self._beat, self._look)]

    def start(self) -> None:
        for node in self.nodes:
            item = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": {HOSTNAME: node}}}
            self.api.request("POST", "/api/v1/nodes", item)
            self._say_ready(node)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.heads.close()

    def address(self, pod: Object) -> str:
        """A loopback address for each pod."""
        uid = pod["metadata"]["uid"]
        if uid not in self._addresses:
            number = len(self._addresses) + 1
            self._addresses[uid] = f"127.{1 + number // 62500}.{1 + number // 250 % 250}.{1 + number % 250}"
        return self._addresses[uid]

    def _guard(self, act: Any) -> None:
        try:
            act()
        except BaseException as error:
            self.errors.append(error)

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            for node in self.nodes:
                if node not in self.dead:
                    self._say_ready(node)

    def _say_ready(self, node: str) -> None:
        capacity = {"cpu": "200", "memory": "2000Gi", "pods": "500", names.GPU_RESOURCE: str(self._gpus)}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now, "reason": "KubeletReady"}
        status = {"capacity": capacity, "allocatable": capacity, "conditions": [ready]}
        body = {"status": status}
        self.api.request("PATCH", f"/api/v1/nodes/{node}/status", body, "application/strategic-merge-patch+json")

    def _look(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            for pod in self.record.objects("Pod"):
                node = pod["spec"].get("nodeName")
                if node is not None and node in self.dead:
                    continue
                if pod["metadata"].get("deletionTimestamp"):
                    now = time.monotonic()
                    due = self._ends_at.setdefault(pod["metadata"]["uid"], now + self._chance.uniform(0, ENDS_WITHIN))
                    if now >= due:
                        self._end(pod)
                elif node is not None:
                    self._run(pod)

    def _end(self, pod: Object) -> None:
        """A pod that is told to go ends, mostly by the signal, and is then gone."""
        if own_words(pod) is None and pod["spec"].get("nodeName") and self._chance.random() < 0.5:
            self.end(pod, ended(143))
        self.api.delete(path_of(pod), pod["metadata"]["uid"], grace=0)

    def _run(self, pod: Object) -> None:
        status = pod.get("status", {})
        conditions = {item["type"]: item["status"] for item in status.get("conditions") or []}
        if status.get("phase") in ("Pending", "Running") and conditions.get("Ready") != "True":
            address = self.address(pod)
            running = {
                "phase": "Running",
                "podIP": address,
                "podIPs": [{"ip": address}],
                "conditions": [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady")],
                "containerStatuses": [container({"running": {}})],
            }
            with self._lock:
                if pod["metadata"]["uid"] not in self._over:
                    self.set_status(pod, running)

    def end(self, pod: Object, status: Object) -> None:
        """Once, and for good: what has ended is not run again."""
        with self._lock:
            if pod["metadata"]["uid"] not in self._over:
                self._over.add(pod["metadata"]["uid"])
                self.set_status(pod, status)

    def set_status(self, pod: Object, status: Object) -> None:
        """A pod that is gone, or another of its name, is left alone."""
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        self.api.request("PATCH", path_of(pod, "status"), body, "application/strategic-merge-patch+json")


def container(state: Object) -> Object:
    more = {"ready": "running" in state, "restartCount": 0, "image": "i", "imageID": "i"}
    return {"name": names.TRAINER_CONTAINER, "state": state, **more}


def ended(code: int, reason: str = "Error", message: str = "") -> Object:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": now}}
    return {"phase": "Succeeded" if code == 0 else "Failed", "containerStatuses": [container(state)]}


def last_words(code: int, reason: str) -> str:
    progress = {"step": 20, "totalSteps": 20}
    return json.dumps({"exitCode": code, "reason": reason, "message": "as told", "progress": progress})
