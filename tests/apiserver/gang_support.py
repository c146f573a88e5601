"""A control plane of three nodes with two GPUs each, with Kueue, an operator under the chart's role, and the history of
everything, for gang backends."""

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from grpo_api import names
from grpo_api.crd import crd
from grpo_operator.policies.podstate import condition
from local_cluster.control_plane import COMPONENTS, ControlPlane
from tests.apiserver.chaos.api import FLAGS, Api, Object, Record, path_of
from tests.apiserver.chaos.kubelet import Kubelet, ended, last_words
from tests.apiserver.conftest import AUDIT_LOG, AUDIT_POLICY, AUDITED_USER
from tests.apiserver.kueue import KUEUE_API, Kueue, kueue_object, queue_objects
from tests.apiserver.operator_process import Operator
from tests.apiserver.test_role import NAMESPACE, roles_and_bindings

ROOT = Path(__file__).parents[2]
NODES = {"node-0": "rack-a", "node-1": "rack-b", "node-2": "rack-b"}
GPUS = 2
RACK = "example.com/rack"
URGENT = "urgent"
POOL = {"pool": "reserved"}
"""Label of all nodes, which Kueue's flavors stand for."""
BACKENDS = ("native", "gated", "kueue")
QUEUE, QUEUE_BY_RACK, QUEUE_IN_ORDER = "gangs", "gangs-by-rack", "gangs-in-order"
JOBS_PATH = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}"
ADMISSION = "--enable-admission-plugins=OwnerReferencesPermissionEnforcement"
"""As in OpenShift: who names an owner that is to wait must be allowed to."""


@dataclass
class PodHistory:
    """One pod, by its record."""

    name: str
    job: str
    """UID of its owner."""
    attempt: int
    placed: bool = False
    gone: bool = False
    """It has ended or is no more: its GPUs are free."""
    exists: bool = True


@dataclass
class History:
    """What etcd's history shows of gangs, revision by revision; `broken` lists what should never have been."""

    jobs: dict[str, Object] = field(default_factory=dict)
    pods: dict[str, PodHistory] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    """Names of jobs in the order in which their gangs had all their nodes, once an attempt."""
    broken: list[str] = field(default_factory=list)
    one_at_a_time: bool = True
    """Gangs get their nodes one after the other. A scheduler that has decided for two may write down both at once; then
    it must have room for what they lack."""
    let_in: list[tuple[str, str]] = field(default_factory=list)
    """(job's name, when its Workload was made, to a second) in the order in which Kueue gave gangs their quota."""
    _owners: dict[str, str | None] = field(default_factory=dict)
    """UID of the job by that of its child: the garbage collector takes a deleted job out of the references."""
    _whole: set[tuple[str, int]] = field(default_factory=set)

    def see(self, revision: int, old: Object | None, new: Object | None) -> None:
        item = new or old
        assert item is not None
        metadata = item["metadata"]
        owner = self._owners.setdefault(metadata["uid"], _owner(item))
        if item["kind"] == "GRPOJob":
            self.jobs[metadata["uid"]] = item
        elif item["kind"] == "Pod" and owner:
            self._pod(revision, owner, item, gone=new is None)
        elif item["apiVersion"] == KUEUE_API:
            if new is not None and _has_quota(new) and not (old and _has_quota(old)):
                self.let_in.append((metadata["name"].rsplit("-", 2)[0], metadata["creationTimestamp"]))
        elif new is None and owner and item["kind"] in ("PodGroup", "Workload"):
            self._group_gone(revision, owner, item)

    def _pod(self, revision: int, owner: str, item: Object, gone: bool) -> None:
        metadata = item["metadata"]
        attempt = int(metadata["labels"][names.LABEL_ATTEMPT])
        pod = self.pods.setdefault(metadata["uid"], PodHistory(metadata["name"], owner, attempt))
        pod.placed = pod.placed or bool(item["spec"].get("nodeName"))
        pod.gone = gone or item.get("status", {}).get("phase") in ("Succeeded", "Failed")
        pod.exists = not gone
        gang = (owner, attempt)
        placed = sum(one.placed for one in self.pods.values() if (one.job, one.attempt) == gang)
        if gang not in self._whole and placed == self.jobs[owner]["spec"]["trainer"]["nnodes"]:
            self._whole.add(gang)
            self.started.append(self.jobs[owner]["metadata"]["name"])
        partial = self.partial()
        if len(partial) > 1 and self.one_at_a_time:
            self.broken.append(f"revision {revision}: parts of several gangs hold GPUs: {sorted(partial)}")
        if partial and (asked := self._asked()) > GPUS * len(NODES):
            self.broken.append(f"revision {revision}: {sorted(partial)} cannot all be completed: {asked} GPUs in all")

    def _asked(self) -> int:
        """GPUs in use by whole gangs, and those that gangs ask for part of which has any. A gang that has lost a pod,
        as by preemption, is giving back what it has."""
        holding = [one for one in self.pods.values() if one.placed and not one.gone]
        sizes = {uid: job["spec"]["trainer"] for uid, job in self.jobs.items()}
        stays = self._whole - {(one.job, one.attempt) for one in self.pods.values() if one.gone}
        in_use = sum(sizes[one.job]["nGpusPerNode"] for one in holding if (one.job, one.attempt) in stays)
        partial = {(one.job, one.attempt) for one in holding} - self._whole
        return in_use + sum(sizes[job]["nGpusPerNode"] * sizes[job]["nnodes"] for job, _ in partial)

    def partial(self) -> set[str]:
        """Names of jobs part of whose gang holds GPUs while the rest never had any."""
        holding = {(one.job, one.attempt) for one in self.pods.values() if one.placed and not one.gone}
        return {self.jobs[job]["metadata"]["name"] for job, attempt in holding - self._whole}

    def _group_gone(self, revision: int, owner: str, item: Object) -> None:
        label = item["metadata"]["labels"].get(names.LABEL_ATTEMPT)
        alive = [
            one.name
            for one in self.pods.values()
            if one.job == owner and not one.gone and label in (None, str(one.attempt))
        ]
        if alive:
            self.broken.append(f"revision {revision}: {item['kind']} {item['metadata']['name']} went before {alive}")


def _has_quota(workload: Object) -> bool:
    return condition(workload, "QuotaReserved").get("status") == "True"


def _owner(item: Object) -> str | None:
    owners = item["metadata"].get("ownerReferences") or []
    return next((owner["uid"] for owner in owners if owner["kind"] == names.KIND), None)


def _scheduler_configuration(directory: Path) -> Object:
    """As a cluster's, but what does not fit is tried again after a second or two and not after up to seventeen."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(directory / "scheduler.kubeconfig"), "qps": 1000, "burst": 2000},
        "leaderElection": {"leaderElect": False},
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 1,
    }


class Thorough(random.Random):
    """Kubelets that always say how a pod ended before it is gone, as real ones do."""

    def random(self) -> float:
        return 0.0


class GangSite:
    """Jobs of `backend` on the control plane; `finish` ends a job well, and `fail` for good."""

    def __init__(self, directory: Path) -> None:
        policy = directory / "audit.json"
        policy.write_text(json.dumps(AUDIT_POLICY))
        self.audit_log = directory / AUDIT_LOG
        audit = [f"--audit-policy-file={policy}", f"--audit-log-path={self.audit_log}"]
        scheduler = directory / "scheduler.json"
        scheduler.write_text(json.dumps(_scheduler_configuration(directory)))
        flags = {**FLAGS, "kube-apiserver": [*FLAGS["kube-apiserver"], *audit, ADMISSION]}
        flags["kube-scheduler"] = [f"--config={scheduler}"]
        self.plane = ControlPlane(directory, extra=flags)
        self.history = History()
        self.operator = Operator(self.plane, directory / "operator.log")
        self.kueue = Kueue(self.plane, directory)
        self.backend = ""
        self._template = YAML(typ="safe").load((ROOT / "examples" / "arithmetic.yaml").read_text())

    def start(self) -> None:
        self.plane.start()
        self.api = Api(self.plane)
        self.api.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd())
        self.record = Record(self.plane, self.history.see)
        self.record.start()
        self.kubelet = Kubelet(self.api, self.record, list(NODES), Thorough(), gpus=GPUS)
        self.kubelet.start()
        for node, rack in NODES.items():
            labels = {RACK: rack, "kubernetes.io/hostname": node, **POOL}
            self.api.merge(f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}})
        self.kueue.install()
        self.kueue.start()
        self.plane.kill("kube-controller-manager")  # its garbage collector looks for new kinds every 30 s only
        self.plane.start_component("kube-controller-manager")
        urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": URGENT}}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        all_gpus = GPUS * len(NODES)
        by_rack = {"levels": [{"nodeLabel": RACK}, {"nodeLabel": "kubernetes.io/hostname"}]}
        self.kueue.create(
            {**urgent, "value": 9},
            kueue_object("WorkloadPriorityClass", URGENT, value=9),
            kueue_object("Topology", "racks", by_rack),
            kueue_object("ResourceFlavor", "reserved", {"nodeLabels": POOL}),
            kueue_object("ResourceFlavor", "racks", {"nodeLabels": POOL, "topologyName": "racks"}),
            *queue_objects(QUEUE, all_gpus, "reserved", preemption={"withinClusterQueue": "LowerPriority"}),
            *queue_objects(QUEUE_BY_RACK, all_gpus, "racks"),
            *queue_objects(QUEUE_IN_ORDER, all_gpus, "reserved", queueingStrategy="StrictFIFO"),
            namespace,
            *roles_and_bindings(",".join(BACKENDS)),
        )
        self.wait("jobs served", lambda: self.api.request("GET", JOBS_PATH)[0] == 200)
        self.start_operator()

    def start_operator(self) -> None:
        kubeconfig = self.plane.directory / "operator.kubeconfig"
        self.plane.authority.kubeconfig(kubeconfig, AUDITED_USER, f"/CN={AUDITED_USER}", self.plane.url)
        self.operator.start(KUBECONFIG=str(kubeconfig), GRPO_LEASE_NAMESPACE=NAMESPACE)

    def kill_operator(self) -> None:
        """Its Lease goes too, so that the next one need not wait."""
        self.operator.kill()
        self.operator.identity = ""
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/grpo-operator"
        assert self.api.request("DELETE", lease)[0] == 200

    def stop(self) -> None:
        self.operator.kill()
        if hasattr(self, "kubelet"):
            self.kubelet.stop()
        for program in filter(self.plane.processes.alive, ("kueue", *reversed(COMPONENTS))):
            self.plane.kill(program)  # nothing of it is needed any more

    def wait(self, what: str, ready: Callable[[], Any], seconds: float = 60) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := ready()):
            if time.monotonic() > deadline:
                states = {job["metadata"]["name"]: (job.get("status") or {}).get("message") for job in self.jobs()}
                log = self.operator.log.read_text()[-3000:]
                raise AssertionError(f"no {what} within {seconds} s; {json.dumps(states, indent=1)}\n{log}")
            if hasattr(self, "kubelet"):
                assert not self.kubelet.errors, repr(self.kubelet.errors)
                ended = self.operator.identity and not self.operator.alive()
                assert not ended, f"the operator has ended:\n{self.operator.log.read_text()[-3000:]}"
            time.sleep(0.1)
        return found

    def apply(self, name: str, pods: int = 2, *, gpus: int = 1, **sections: Object) -> str:
        """A job of so many pods of so many GPUs each; returns its name, which begins with the backend's."""
        made: Object = json.loads(json.dumps(self._template))
        full = f"{self.backend}-{name}"
        made["metadata"] = {"name": full, "namespace": "default"}
        made["spec"]["trainer"] |= {"nnodes": pods, "nGpusPerNode": gpus}
        made["spec"] |= {"checkpoint": {}, "metrics": {"port": self.kubelet.heads.port}}
        made["spec"]["gangScheduling"] = {"backend": self.backend}
        if self.backend == "kueue":
            by_rack = "topologyKey" in sections.get("gangScheduling", {})
            made["spec"]["gangScheduling"]["queue"] = QUEUE_BY_RACK if by_rack else QUEUE
        for section, fields in sections.items():
            made["spec"].setdefault(section, {}).update(fields)
        code, answer = self.api.request("POST", JOBS_PATH, made)
        assert code == 201, answer
        return full

    def jobs(self) -> list[Object]:
        with self.record.lock:
            return self.record.objects("GRPOJob")

    def job(self, name: str) -> Object:
        return next(job for job in self.jobs() if job["metadata"]["name"] == name)

    def status(self, name: str) -> Object:
        return next((job.get("status") or {} for job in self.jobs() if job["metadata"]["name"] == name), {})

    def wait_state(self, name: str, *states: str, seconds: float = 60) -> Object:
        self.wait(f"{name} in {states}", lambda: self.status(name).get("state") in states, seconds)
        return self.status(name)

    def pods(self, name: str) -> list[Object]:
        found = [
            pod for pod in self.record.objects("Pod") if pod["metadata"]["labels"].get(names.LABEL_JOB_NAME) == name
        ]
        return sorted(found, key=lambda pod: pod["metadata"]["name"])

    def groups(self, name: str) -> list[Object]:
        """The gang's objects; of Kueue's, those that have not ended."""
        kinds = [*self.record.objects("PodGroup"), *self.record.objects("Workload")]
        ours = [item for item in kinds if item["metadata"].get("labels", {}).get(names.LABEL_JOB_NAME) == name]
        return ours + [item for item in self.workloads(name) if condition(item, "Finished").get("status") != "True"]

    def workloads(self, name: str) -> list[Object]:
        """Kueue's."""
        found = [item for item in self.record.objects("Workload") if item["apiVersion"] == KUEUE_API]
        return [item for item in found if item["metadata"]["name"].rsplit("-", 2)[0] == name]

    def has_nodes(self, name: str) -> bool:
        return any(pod["spec"].get("nodeName") for pod in self.pods(name))

    def merge(self, name: str, body: Object) -> None:
        assert self.api.merge(f"{JOBS_PATH}/{name}", body) == 200

    def suspend(self, name: str, suspended: bool) -> None:
        self.merge(name, {"spec": {"runPolicy": {"suspend": suspended}}})

    def finish(self, name: str) -> None:
        """The head's program ends well."""
        self.kubelet.end(self.pods(name)[0], ended(0, "Completed", last_words(0, "Completed")))

    def fail(self, name: str) -> None:
        """The head's program finds the user's fault in the spec: no retry."""
        self.kubelet.end(self.pods(name)[0], ended(65, "Error", last_words(65, "RewardError")))

    def delete_pod(self, pod: Object) -> None:
        self.api.delete(path_of(pod), pod["metadata"]["uid"])

    def delete(self, name: str) -> None:
        job = self.job(name)
        self.api.delete(path_of(job), job["metadata"]["uid"])

    def released(self, name: str) -> bool:
        """Nothing of the gang's is left but pods that have ended, which nobody holds."""
        pods = self.pods(name)
        over = all(pod.get("status", {}).get("phase") in ("Succeeded", "Failed") for pod in pods)
        return over and not any(pod["metadata"].get("finalizers") for pod in pods) and not self.groups(name)

    def clear(self) -> None:
        """Delete all jobs; nothing of them may be left."""
        self.api.request("DELETE", JOBS_PATH)
        kinds = ("GRPOJob", "Pod", "PodGroup", "Workload")
        self.wait("end of all objects", lambda: not [one for kind in kinds for one in self.record.objects(kind)])
