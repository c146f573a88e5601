"""A job of two pods, pods in the states that a kubelet, a scheduler and people leave them in, and a small world."""

import copy
import itertools
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from grpo_api.status import HeadReport
from grpo_operator.gang.base import Capabilities
from grpo_operator.kube import Object, kind_of, resource_of
from grpo_operator.observe import CreateFault, Observed
from grpo_operator.plan import Plan, plan

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
UID = "11111111-2222-3333-4444-555555555555"
EARLIER = "99999999-2222-3333-4444-555555555555"
"""UID of an earlier job of the same name."""
NOTHING = Capabilities()
WORKLOAD, POD_GROUP = "Workload.v1beta1.scheduling.k8s.io", "PodGroup.v1beta1.scheduling.k8s.io"
NATIVE = Capabilities(kinds=frozenset({WORKLOAD, POD_GROUP}), native_topology=True)
"""A cluster with native gang scheduling."""
SEES_NODES = Capabilities(sees_cluster=True)
"""One without, whose nodes and pods the operator sees."""
MAX_ROUNDS = 5
"""Plans that one reconcile carries out at most."""


def raw_job(name: str = "sums", *, nodes: int = 2, status: Object | None = None, **sections: Object) -> Object:
    """A GRPOJob as the API server gives it; `sections` of the spec are merged over the smallest valid ones."""
    spec: Object = {
        "model": {"path": "/models/tiny", "dtype": "float32"},
        "data": {"train": {"files": ["/data/rows.jsonl"]}, "trainBatchSize": 8},
        "reward": {"functions": [{"name": "exact", "builtin": {"rule": "exact_match"}}]},
        "rollout": {"n": 8},
        "actor": {"ppoMiniBatchSize": 8},
        "trainer": {"totalSteps": 20, "nnodes": nodes},
        "gangScheduling": {"backend": "none"},
    }
    for section, fields in sections.items():
        spec[section] = {**spec.get(section, {}), **fields}
    job: Object = {
        "apiVersion": "grpo.dev/v1alpha1",
        "kind": "GRPOJob",
        "metadata": {"name": name, "namespace": "team", "uid": UID, "generation": 1, "resourceVersion": "1"},
        "spec": spec,
    }
    return job if status is None else {**job, "status": status}


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def rfc3339(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def child(kind: str, name: str, *, job: str = "sums", uid: str | None = None, owner: str | None = UID) -> Object:
    """An object of a job; `owner` is the job's UID, or None."""
    made: Object = {
        "apiVersion": resource_of(kind)[0],
        "kind": kind.partition(".")[0],
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": uid or f"{kind}-{name}",
            "labels": {"app.kubernetes.io/managed-by": "grpo-operator", "grpo.dev/job-name": job},
        },
    }
    if owner is not None:
        made["metadata"]["ownerReferences"] = [
            {"apiVersion": "grpo.dev/v1alpha1", "kind": "GRPOJob", "name": job, "uid": owner, "controller": True}
        ]
    return made


def pod(rank: int, attempt: int = 0, *, phase: str = "Pending", node: str | None = None, placed: float = 0) -> Object:
    """A pod as it was made; on `node` since `placed` seconds after NOW."""
    made = child("Pod", f"sums-{rank}", uid=f"pod-{rank}-{attempt}")
    made["metadata"]["labels"] |= {"grpo.dev/node-rank": str(rank), "grpo.dev/attempt": str(attempt)}
    made["metadata"]["creationTimestamp"] = rfc3339(NOW)
    made["spec"] = {"containers": [{"name": "trainer", "image": "registry/trainer:1"}]}
    made["status"] = {"phase": phase, "conditions": []}
    if node is not None:
        made["spec"]["nodeName"] = node
        set_condition(made, "PodScheduled", "True", lastTransitionTime=rfc3339(later(placed)))
    return made


def set_condition(item: Object, kind: str, status: str, **more: str) -> Object:
    conditions = [held for held in item["status"]["conditions"] if held["type"] != kind]
    item["status"]["conditions"] = [*conditions, {"type": kind, "status": status, **more}]
    return item


def running(rank: int, attempt: int = 0, *, ready: bool = True) -> Object:
    made = pod(rank, attempt, phase="Running", node=f"node-{rank}")
    made["status"]["containerStatuses"] = [{"name": "trainer", "state": {"running": {}}}]
    return set_condition(made, "Ready", str(ready))


def end(item: Object, code: int, reason: str = "", message: str = "", at: float = 0) -> Object:
    """Let the trainer's container end `at` seconds after NOW, and with it the pod."""
    message = message or (last_words(0, "Completed") if code == 0 else "")
    ended = {"exitCode": code, "reason": reason or ("Completed" if code == 0 else "Error"), "message": message}
    ended["finishedAt"] = rfc3339(later(at))
    item["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
    item["status"]["containerStatuses"] = [{"name": "trainer", "state": {"terminated": ended}}]
    return set_condition(item, "Ready", "False", reason="PodCompleted")


def ended(rank: int, code: int, reason: str = "", message: str = "", at: float = 0, attempt: int = 0) -> Object:
    return end(running(rank, attempt), code, reason, message, at)


def deleting(item: Object) -> Object:
    item["metadata"]["deletionTimestamp"] = rfc3339(NOW)
    return item


def left_over(rank: int, **metadata: Any) -> Object:
    """A pod that an earlier job of this name has left on a node that does not answer, told to go."""
    item = deleting(running(rank))
    item["metadata"]["ownerReferences"][0]["uid"] = EARLIER
    item["metadata"] |= metadata
    return item


def disrupted(item: Object, reason: str) -> Object:
    """With the condition that the disrupting part of Kubernetes sets."""
    return set_condition(item, "DisruptionTarget", "True", reason=reason, message=f"{reason} did it")


def last_words(code: int, reason: str, message: str = "", **more: Object) -> str:
    """The termination message of a trainer."""
    return json.dumps({"exitCode": code, "reason": reason, "message": message, **more})


def training(step: int = 3, **more: Any) -> HeadReport:
    return HeadReport.model_validate({"phase": "training", "progress": {"step": step, "totalSteps": 20}, **more})


def observe(job: Object, pods: list[Object] | tuple[Object, ...] = (), **more: Any) -> Observed:
    more.setdefault("default_image", "registry/trainer:1")
    more["children"] = {(kind_of(item), item["metadata"]["name"]): item for item in more.get("children", ())}
    return Observed(job=job, pods=copy.deepcopy(list(pods)), **more)


def run(job: Object, *pods: Object, at: float = 0, **more: Any) -> Plan:
    """The plan `at` seconds after NOW."""
    return plan(observe(job, pods, **more), later(at))


def running_job(nodes: int = 2, **sections: Object) -> Object:
    """A job whose gang of attempt 0 trains."""
    job = raw_job(nodes=nodes, **sections)
    made = run(job, *(running(rank) for rank in range(nodes)), head_report=training())
    assert made.status["state"] == "Running"
    return {**job, "status": made.status}


def with_status(job: Object, made: Plan) -> Object:
    return {**job, "status": made.status}


def condition(status: Object, kind: str) -> Object:
    return next((item for item in status.get("conditions", []) if item["type"] == kind), {})


def created(made: Plan, kind: str | None = None) -> list[str]:
    return [item["metadata"]["name"] for item in made.create if kind in (None, item["kind"])]


def deleted(made: Plan, kind: str = "Pod") -> list[str]:
    return [item["metadata"]["name"] for found, item in made.delete if found == kind]


class World:
    """An API server with one job, without a kubelet: tests are the kubelet. Carries out plans as `apply` does."""

    def __init__(self, job: Object, *, capabilities: Capabilities = NOTHING) -> None:
        self.job, self.capabilities = job, capabilities
        self.children: dict[tuple[str, str], Object] = {}
        self.head_report: HeadReport | None = None
        self.refused: set[str] = set()
        """Names of pods that a quota refuses."""
        self.now = NOW
        self.fault: CreateFault | None = None
        self.plans: list[Plan] = []
        self.made_pods: list[Object] = []
        self._uids = itertools.count()

    @property
    def status(self) -> Object:
        return self.job.get("status") or {}

    @property
    def pods(self) -> list[Object]:
        found = [item for (kind, _), item in self.children.items() if kind == "Pod"]
        return sorted(found, key=lambda item: item["metadata"]["name"])

    def pod(self, rank: int) -> Object | None:
        return self.children.get(("Pod", f"sums-{rank}"))

    def plan(self) -> Plan:
        others = [item for (kind, _), item in self.children.items() if kind != "Pod"]
        more: dict[str, Any] = {"children": others, "capabilities": self.capabilities, "create_fault": self.fault}
        return plan(observe(self.job, self.pods, head_report=self.head_report, **more), self.now)

    def reconcile(self, *, crash_after_status: bool = False) -> Plan:
        """Plans until one asks for no other, as the operator does; it then sleeps until something changes."""
        for _ in range(MAX_ROUNDS):
            made = self.plan()
            self.plans.append(made)
            self.job = {**self.job, "status": made.status}
            if crash_after_status:
                return made
            for kind, item in made.delete:
                self._delete(kind, item["metadata"]["name"])
            fault = next((found for item in made.create if (found := self._create(item))), None)
            # The watch shows the end of what goes at once, and that makes the operator plan again.
            again = made.again or bool(made.create) or any(kind != "Pod" for kind, _ in made.delete)
            if fault is not None:
                again = self.fault != fault
            self.fault = fault
            if not again:
                return made
        raise AssertionError(f"plans without end: {made}")

    def _delete(self, kind: str, name: str) -> None:
        if kind == "Pod":
            deleting(self.children[kind, name])  # its kubelet has to confirm
        else:
            del self.children[kind, name]

    def _create(self, manifest: Object) -> CreateFault | None:
        kind, name = kind_of(manifest), manifest["metadata"]["name"]
        assert (kind, name) not in self.children, f"409 AlreadyExists: {kind} {name}"
        if kind == "Pod" and name in self.refused:
            return CreateFault("QuotaExceeded", f"{kind} {name}: exceeded quota: tight")
        made = copy.deepcopy(manifest)
        made["metadata"]["uid"] = f"uid-{next(self._uids)}"
        made["status"] = {"phase": "Pending", "conditions": []} if kind == "Pod" else {}
        if kind == "Service":
            made["spec"] = {**made["spec"], "type": "ClusterIP", "ipFamilyPolicy": "SingleStack"}  # defaults
        if kind == "Pod":
            self.made_pods.append(made)
        self.children[kind, name] = made
        return None

    def start(self, rank: int) -> None:
        """As scheduler and kubelet would: the pod runs and is ready."""
        item = self.pod(rank)
        assert item is not None
        item["spec"]["nodeName"] = f"node-{rank}"
        item["status"]["phase"] = "Running"
        item["status"]["containerStatuses"] = [{"name": "trainer", "state": {"running": {}}}]
        set_condition(item, "PodScheduled", "True", lastTransitionTime=rfc3339(self.now))
        set_condition(item, "Ready", "True")

    def confirm_deletions(self) -> None:
        """As a kubelet would: pods that are to go are gone."""
        for item in self.pods:
            if item["metadata"].get("deletionTimestamp"):
                del self.children["Pod", item["metadata"]["name"]]

    def run_gang(self) -> None:
        """Until every pod runs and the head trains."""
        self.reconcile()
        for rank in range(len(self.pods)):
            self.start(rank)
        self.head_report = training()
        self.reconcile()
        assert self.status["state"] == "Running", self.status
