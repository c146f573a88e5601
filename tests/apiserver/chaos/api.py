"""Requests to the API server that outlast its restarts, and the whole history of its objects, read from etcd."""

import base64
import json
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import urllib3

from local_cluster.control_plane import ControlPlane

Object = dict[str, Any]
PATIENCE_SECONDS = 60.0
"""How long a request is tried again while the API server is away."""

FLAGS = {
    "kube-apiserver": [
        "--audit-log-maxsize=10000",  # one file for `Audit`
        "--storage-media-type=application/json",  # so that `Record` can read what etcd holds
        "--etcd-compaction-interval=0",  # and none of it is thrown away
        "--default-not-ready-toleration-seconds=2",  # 300 s in a cluster
        "--default-unreachable-toleration-seconds=2",
    ],
    "kube-controller-manager": ["--node-monitor-period=1s", "--node-monitor-grace-period=12s"],  # 5 s and 50 s
}
"""Further flags of the control plane: history that can be read, and nodes that are lost sooner than in a cluster."""


def administrator(plane: ControlPlane, **settings: Any) -> urllib3.PoolManager:
    """Connections with the administrator's rights; nothing is tried again."""
    pki = plane.directory / "pki"
    certificates = {"ca_certs": "ca.crt", "cert_file": "admin.crt", "key_file": "admin.key"}
    files = {name: str(pki / file) for name, file in certificates.items()}
    return urllib3.PoolManager(retries=False, **files, **settings)


class Api:
    """The administrator's requests. A status that is an answer to a repeated request is none to fail on."""

    def __init__(self, plane: ControlPlane) -> None:
        self._url = plane.url
        self._pool = administrator(plane, maxsize=16, timeout=10.0)

    def request(
        self, method: str, path: str, body: Object | None = None, content: str = "application/json"
    ) -> tuple[int, Object]:
        """(status, answer). Tried again while the server is away or says that it starts; raises after a minute."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        data = None if body is None else json.dumps(body).encode()
        while True:
            try:
                answer = self._pool.request(method, self._url + path, body=data, headers={"Content-Type": content})
                if answer.status < 500 and answer.status not in (401, 403, 429):
                    # A path that is not served is answered in plain text.
                    is_json = "json" in answer.headers.get("Content-Type", "")
                    return answer.status, json.loads(answer.data) if is_json else {}
                said = answer.data[:300].decode(errors="replace")
            except urllib3.exceptions.HTTPError as error:
                said = repr(error)
            if time.monotonic() > deadline:
                raise AssertionError(f"{method} {path}: {said}")
            time.sleep(0.2)

    def merge(self, path: str, body: Object) -> int:
        return self.request("PATCH", path, body, "application/merge-patch+json")[0]

    def delete(self, path: str, uid: str, grace: int | None = None) -> int:
        options: Object = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        return self.request("DELETE", path, options)[0]


def path_of(item: Object, subresource: str = "") -> str:
    plurals = {"Pod": "pods", "Service": "services", "ConfigMap": "configmaps", "GRPOJob": "grpojobs"}
    plurals |= {"PodGroup": "podgroups", "Workload": "workloads"}
    metadata, version = item["metadata"], item["apiVersion"]
    root = "/apis/" if "/" in version else "/api/"
    path = f"{root}{version}/namespaces/{metadata['namespace']}/{plurals[item['kind']]}/{metadata['name']}"
    return path + (f"/{subresource}" if subresource else "")


class Record(threading.Thread):
    """Every change of the kinds of interest, in the one order in which etcd made them: no restart leaves a gap.

    `see(revision, old, new)` is called for each, with None for what does not exist before or after.
    """

    KINDS = ("GRPOJob", "Pod", "Service", "ConfigMap", "PodGroup", "Workload")
    _OF_INTEREST = ("/pods/", "/grpojobs/", "/services/specs/", "/configmaps/", "/podgroups/", "/workloads/")

    def __init__(self, plane: ControlPlane, see: Callable[[int, Object | None, Object | None], None]) -> None:
        super().__init__(name="record", daemon=True)
        port = (plane.directory / "ports").read_text().split()[1]
        self._url, self._see = f"http://127.0.0.1:{port}/v3/watch", see
        self._objects: dict[str, Object] = {}
        self.lock = threading.RLock()
        """Held while `see` runs and while others look at what it made."""
        self.error: BaseException | None = None

    def objects(self, kind: str) -> list[Object]:
        with self.lock:
            return [item for item in self._objects.values() if item["kind"] == kind]

    def run(self) -> None:
        try:
            self._follow()
        except BaseException as error:  # the main thread asks for it
            self.error = error

    def _follow(self) -> None:
        encode = lambda text: base64.b64encode(text.encode()).decode()  # noqa: E731
        create = {"key": encode("/registry/"), "range_end": encode("/registry0"), "start_revision": "1"}
        asked = urllib.request.Request(self._url, json.dumps({"create_request": create}).encode())
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked) as answer:
            for line in answer:
                for event in json.loads(line)["result"].get("events") or []:
                    self._take(event)

    def _take(self, event: Object) -> None:
        key = base64.b64decode(event["kv"]["key"]).decode()
        if not any(part in key for part in self._OF_INTEREST):
            return
        new = None
        if event.get("type") != "DELETE":
            new = json.loads(base64.b64decode(event["kv"]["value"]))
            if new["kind"] not in self.KINDS:
                return
        with self.lock:
            old = self._objects.pop(key, None)
            if new is not None:
                self._objects[key] = new
            if old is not None or new is not None:
                self._see(int(event["kv"]["mod_revision"]), old, new)
