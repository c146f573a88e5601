"""A real API server, scheduler and controller-manager with the CRD; nodes without a kubelet, whose pods tests drive."""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from grpo_api import names
from grpo_api.crd import crd
from local_cluster import paths
from local_cluster.control_plane import ControlPlane
from tests.apiserver.operator_process import Operator

ROOT = Path(__file__).parents[2]
OPERATOR_LOG = "operator.log"
AUDIT_LOG = "audit.log"
AUDITED_USER = "grpo-operator"
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "rules": [
        {"level": "Metadata", "users": [AUDITED_USER], "omitStages": ["ResponseStarted", "ResponseComplete"]},
        {"level": "None"},
    ],
}
HEARTBEAT_SECONDS = 10.0
"""The node controller gives a silent node up after about 50 s, and then nothing is scheduled onto it."""
Object = dict[str, Any]


class Rig:
    """kubectl on the control plane, an operator that can be stopped, and a hand in the kubelet's place."""

    nodes = ("node-0", "node-1")

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self.plane, self.directory = plane, directory
        self.operator = Operator(plane, directory / OPERATOR_LOG)

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        command = [str(paths.binary("kubectl")), "--kubeconfig", str(self.plane.kubeconfig), *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
        if check and done.returncode:
            raise AssertionError(done.stderr)
        return done.stdout + ("" if check else done.stderr)

    def apply(self, item: Object) -> str:
        return self.kubectl("apply", "-f", "-", stdin=json.dumps(item))

    def get(self, kind: str, name: str) -> Object:
        return json.loads(self.kubectl("get", kind, name, "-o", "json"))

    def items(self, kind: str, job: str) -> dict[str, Object]:
        text = self.kubectl("get", kind, "-l", f"{names.LABEL_JOB_NAME}={job}", "-o", "json")
        return {item["metadata"]["name"]: item for item in json.loads(text)["items"]}

    def status(self, job: str) -> Object:
        return self.get("grpojob", job).get("status") or {}

    def wait(self, what: str, ready: Callable[[], Any], seconds: float = 30) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := ready()):
            if time.monotonic() > deadline:
                log = (self.directory / OPERATOR_LOG).read_text()[-3000:]
                raise AssertionError(f"no {what} within {seconds} s; operator:\n{log}")
            time.sleep(0.2)
        return found

    def wait_state(self, job: str, state: str, seconds: float = 30) -> Object:
        try:
            self.wait(f"state {state}", lambda: self.status(job).get("state") == state, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\nstatus: {json.dumps(self.status(job), indent=1)}") from None
        return self.status(job)

    def set_pod_status(self, pod: str, status: Object) -> None:
        self.kubectl("patch", "pod", pod, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))

    def patch_node(self, node: str, status: Object) -> None:
        self.kubectl(
            *("patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
        )

    def keep_nodes_alive(self, stop: threading.Event) -> None:
        """As a kubelet would: say now and then that the node is ready."""
        while not stop.wait(HEARTBEAT_SECONDS):
            for node in self.nodes:
                self.patch_node(node, {"conditions": [ready()]})

    def run_pods(self, job: str) -> None:
        """As a kubelet would: every pod runs and is ready."""
        for name in self.wait("pods on nodes", lambda: self.placed(job)):
            self.run_pod(name)

    def run_pod(self, name: str) -> None:
        self.set_pod_status(
            name,
            {
                "phase": "Running",
                "podIP": "127.0.0.1",
                "podIPs": [{"ip": "127.0.0.1"}],
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [container_status({"running": {}})],
            },
        )

    def placed(self, job: str) -> list[str]:
        pods = self.items("pods", job)
        return list(pods) if len(pods) == 2 and all(pod["spec"].get("nodeName") for pod in pods.values()) else []

    def end_pod(self, name: str, code: int, message: str = "", reason: str = "Error") -> None:
        ended = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
        phase = "Succeeded" if code == 0 else "Failed"
        self.set_pod_status(name, {"phase": phase, "containerStatuses": [container_status(ended)]})

    def confirm_deletions(self, job: str) -> None:
        """As a kubelet would: a pod that is to go is gone."""
        for name, pod in self.items("pods", job).items():
            if pod["metadata"].get("deletionTimestamp"):
                self.kubectl("delete", "pod", name, "--force", "--grace-period=0", "--ignore-not-found")

    def start_operator(self) -> None:
        self.operator.start()

    def stop_operator(self, *, kill: bool = False) -> None:
        if kill:
            self.operator.kill()
        elif (code := self.operator.stop()) is not None:
            assert code == 0, "a stop that was asked for is no failure"
            assert self.get("lease", "grpo-operator")["spec"]["holderIdentity"] == "", "the next one need not wait"

    @property
    def metrics_port(self) -> int:
        return self.operator.metrics_port


def ready() -> Object:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "Ready", "status": "True", "lastHeartbeatTime": now}


def container_status(state: Object) -> Object:
    return {
        "name": "trainer",
        "state": state,
        "ready": "running" in state,
        "restartCount": 0,
        "image": "i",
        "imageID": "i",
    }


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    directory = tmp_path_factory.mktemp("control-plane")
    policy = directory / "audit.yaml"
    policy.write_text(json.dumps(AUDIT_POLICY))
    audit = [f"--audit-policy-file={policy}", f"--audit-log-path={directory / AUDIT_LOG}"]
    plane = ControlPlane(directory, extra={"kube-apiserver": audit})
    plane.start()
    rig = Rig(plane, directory)
    stop = threading.Event()
    heart = threading.Thread(target=rig.keep_nodes_alive, args=(stop,), daemon=True)
    try:
        rig.apply(crd())
        established = ("wait", "--for=condition=Established", "crd/grpojobs.grpo.dev", "--timeout=20s")
        deadline = time.monotonic() + 20
        while "condition met" not in (said := rig.kubectl(*established, check=False)):  # none at all at first
            assert time.monotonic() < deadline, said
        for node in rig.nodes:
            rig.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
            capacity = {"cpu": "64", "memory": "512Gi", "pods": "500", names.GPU_RESOURCE: "8"}
            rig.patch_node(node, {"capacity": capacity, "allocatable": capacity, "conditions": [ready()]})
            rig.kubectl("taint", "node", node, "node.kubernetes.io/not-ready-", check=False)
        heart.start()
        yield rig
    finally:
        stop.set()
        if heart.is_alive():
            heart.join()
        rig.stop_operator()
        plane.stop()


@pytest.fixture
def rig(plane: Rig) -> Iterator[Rig]:
    """A running operator, and no job left over."""
    plane.start_operator()
    yield plane
    plane.stop_operator()
    plane.kubectl("delete", "grpojobs", "--all", "--wait=false")
    plane.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
    plane.kubectl("delete", "pvc", "--all", "--wait=false")


@pytest.fixture
def job() -> Callable[..., Object]:
    """A job of two pods without a claim (no storage here), with fields of sections replaced."""
    base = YAML(typ="safe").load((ROOT / "examples" / "arithmetic.yaml").read_text())

    def make(name: str, **sections: Object) -> Object:
        made = json.loads(json.dumps(base))
        made["metadata"]["name"] = name
        made["spec"]["checkpoint"] = {}
        for section, fields in sections.items():
            made["spec"].setdefault(section, {}).update(fields)
        return made

    return make


@pytest.fixture(scope="session")
def gang_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A `GangSite`, one for all that is about gangs: it takes its time to start."""
    from tests.apiserver.gang_support import GangSite  # it takes from here

    site = GangSite(tmp_path_factory.mktemp("gangs"))
    try:
        site.start()
        yield site
    finally:
        site.stop()
