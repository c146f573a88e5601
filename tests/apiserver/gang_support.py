"""A control plane of three nodes with two GPUs each, an operator, and the history of everything, for gang backends."""

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
from local_cluster.control_plane import ControlPlane
from tests.apiserver.chaos.api import FLAGS, Api, Object, Record, path_of
from tests.apiserver.chaos.kubelet import Kubelet, ended, last_words
from tests.apiserver.operator_process import Operator

ROOT = Path(__file__).parents[2]
NODES = {"node-0": "rack-a", "node-1": "rack-b", "node-2": "rack-b"}
GPUS = 2
RACK = "example.com/rack"
URGENT = "urgent"
JOBS_PATH = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}"
POD_GPUS = 1


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
    _deleted: set[str] = field(default_factory=set)
    _whole: set[tuple[str, int]] = field(default_factory=set)

    def see(self, revision: int, old: Object | None, new: Object | None) -> None:
        item = new or old
        assert item is not None
        metadata = item["metadata"]
        if item["kind"] == "GRPOJob":
            self.jobs[metadata["uid"]] = item
            if new is None:
                self._deleted.add(metadata["uid"])
        elif item["kind"] == "Pod" and (owner := _owner(item)):
            self._pod(revision, owner, item, gone=new is None)
        elif new is None and (owner := _owner(item)) and item["kind"] in ("PodGroup", "Workload"):
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
        if item["kind"] == "Workload" and owner in self._deleted:
            return  # a template; Kubernetes' garbage collector takes a deleted job's objects in any order
        label = item["metadata"]["labels"].get(names.LABEL_ATTEMPT)
        alive = [
            one.name
            for one in self.pods.values()
            if one.job == owner and not one.gone and label in (None, str(one.attempt))
        ]
        if alive:
            self.broken.append(f"revision {revision}: {item['kind']} {item['metadata']['name']} went before {alive}")


def _owner(item: Object) -> str | None:
    owners = item["metadata"].get("ownerReferences") or []
    return next((owner["uid"] for owner in owners if owner["kind"] == names.KIND), None)


class GangSite:
    """Jobs of `backend` on the control plane; `run` is what pods do by themselves, `finish` ends a job well."""

    def __init__(self, directory: Path) -> None:
        self.plane = ControlPlane(directory, extra=FLAGS)
        self.history = History()
        self.operator = Operator(self.plane, directory / "operator.log")
        self.backend = ""
        self._template = YAML(typ="safe").load((ROOT / "examples" / "arithmetic.yaml").read_text())

    def start(self) -> None:
        self.plane.start()
        self.api = Api(self.plane)
        self.api.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd())
        self.record = Record(self.plane, self.history.see)
        self.record.start()
        self.kubelet = Kubelet(self.api, self.record, list(NODES), random.Random(0), gpus=GPUS)
        self.kubelet.start()
        for node, rack in NODES.items():
            self.api.merge(
                f"/api/v1/nodes/{node}", {"metadata": {"labels": {RACK: rack, "kubernetes.io/hostname": node}}}
            )
        urgent = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": URGENT},
            "value": 9,
        }
        self.api.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", urgent)
        self.wait("jobs served", lambda: self.api.request("GET", JOBS_PATH)[0] == 200)
        self.operator.start()

    def stop(self) -> None:
        self.operator.kill()
        if hasattr(self, "kubelet"):
            self.kubelet.stop()
        self.plane.stop()

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
        kinds = [*self.record.objects("PodGroup"), *self.record.objects("Workload")]
        return [item for item in kinds if item["metadata"]["labels"].get(names.LABEL_JOB_NAME) == name]

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
        """Nothing of the gang's is left but pods that have ended."""
        over = all(pod.get("status", {}).get("phase") in ("Succeeded", "Failed") for pod in self.pods(name))
        return over and not self.groups(name)

    def clear(self) -> None:
        """Delete all jobs; nothing of them may be left."""
        self.api.request("DELETE", JOBS_PATH)
        kinds = ("GRPOJob", "Pod", "PodGroup", "Workload")
        self.wait("end of all objects", lambda: not [one for kind in kinds for one in self.record.objects(kind)])
