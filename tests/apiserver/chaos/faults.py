"""The faults, each a method of `Faults` that does one thing to something that it picks, and says whether it could."""

import random
from collections import Counter
from collections.abc import Callable

from grpo_api import names
from tests.apiserver.chaos.api import Api, Object, Record, path_of
from tests.apiserver.chaos.history import FOREIGN, Job, attempt_label, own_words
from tests.apiserver.chaos.judge import MISFIT, Judge
from tests.apiserver.chaos.kubelet import Kubelet, ended, last_words

CHILDREN = ("Service", "ConfigMap", "PodGroup", "Workload")
JOBS_PATH = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}"
JOB_NAMES = [f"job-{number}" for number in range(100)]
MAX_FOREIGN = 5


class Faults:
    """Everything random comes from `chance`; `make(name)` is a new job's manifest."""

    def __init__(
        self,
        api: Api,
        record: Record,
        judge: Judge,
        kubelet: Kubelet,
        chance: random.Random,
        make: Callable[[str], Object],
    ) -> None:
        self.api, self.record, self.judge, self.kubelet = api, record, judge, kubelet
        self.chance, self.make = chance, make
        self.done: Counter[str] = Counter()
        self._deck: list[Callable[[Faults], bool]] = []

    def strike(self) -> None:
        """One fault of the table; each has had its turn before one comes again."""
        if not self._deck:
            self._deck = self.chance.sample(self.TABLE, len(self.TABLE))
        self._do(self._deck.pop())

    def strike_missing(self) -> list[str]:
        """Faults that have never found anything to strike, each tried once more. Returns those that are left."""
        for fault in self.TABLE:
            if fault.__name__ not in self.done:
                self._do(fault)
        return sorted({fault.__name__ for fault in self.TABLE} - self.done.keys())

    def _do(self, fault: "Callable[[Faults], bool]") -> None:
        if fault(self):
            self.done[fault.__name__] += 1

    def jobs(self, fit: Callable[[Job], bool]) -> list[Job]:
        with self.record.lock:
            live = [job for job in self.judge.jobs.values() if not job.deleted and job.name != MISFIT]
            return [job for job in live if fit(job)]

    def _job(self, fit: Callable[[Job], bool] = lambda job: not job.ended) -> Job | None:
        found = self.jobs(fit)
        return self.chance.choice(found) if found else None

    def _pod(self, *, head: bool | None = None) -> Object | None:
        """A pod that runs on a live node, of the present attempt of a whole gang."""
        with self.record.lock:
            found = [
                pod
                for job in self.jobs(lambda job: not job.ended)
                if job.status.get("createdAttempt") == job.attempt
                for pod in job.pods.values()
                if attempt_label(pod) == job.attempt
                and not pod["metadata"].get("deletionTimestamp")
                and pod["spec"].get("nodeName") not in self.kubelet.dead
                and pod.get("status", {}).get("phase") == "Running"
                and own_words(pod) is None
                and (head is None or pod["metadata"]["name"].endswith("-0") is head)
            ]
        return self.chance.choice(found) if found else None

    def _exit(self, code: int, reason: str = "Error", message: str = "", head: bool | None = None) -> bool:
        if (pod := self._pod(head=head)) is None:
            return False
        self.kubelet.end(pod, ended(code, reason, message))
        return True

    # Pods

    def fails(self) -> bool:
        return self._exit(self.chance.choice([1, 2, 134, 139]), message="Traceback: boom")

    def out_of_memory(self) -> bool:
        return self._exit(137, "OOMKilled")

    def loses_a_peer(self) -> bool:
        """Each says that it lost the other."""
        return self._gang_ends(75)

    def fails_twice(self) -> bool:
        """One fails, the other loses its peer: the failure is the cause."""
        return self._gang_ends(75, 1)

    def _gang_ends(self, *codes: int) -> bool:
        if (pod := self._pod()) is None:
            return False
        with self.record.lock:
            job = self.judge.jobs[pod["metadata"]["ownerReferences"][0]["uid"]]
            gang = [held for held in job.pods.values() if held["spec"].get("nodeName") and own_words(held) is None]
        for number, held in enumerate(gang):
            self.kubelet.end(held, ended(codes[number % len(codes)]))
        return True

    def users_fault(self) -> bool:
        return self._exit(self.chance.choice([64, 65]), message=last_words(65, "RewardError"))

    def succeeds(self) -> bool:
        return self._exit(0, "Completed", last_words(0, "Completed"), head=True)

    def second_rank_exits_0(self) -> bool:
        return self._exit(0, "Completed", last_words(0, "Completed"), head=False)

    def runs_no_trainer(self) -> bool:
        return self._exit(0, "Completed", head=True)

    def evicted_by_kubelet(self) -> bool:
        if (pod := self._pod()) is None:
            return False
        self.kubelet.end(pod, {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource"})
        return True

    def evicted_by_api(self) -> bool:
        """What `kubectl drain` does."""
        if (pod := self._pod()) is None:
            return False
        metadata = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
        options = {"preconditions": {"uid": pod["metadata"]["uid"]}}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options}
        self.api.request("POST", path_of(pod, "eviction"), body)
        return True

    def preempted(self) -> bool:
        if (pod := self._pod()) is None:
            return False
        why = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "preempted"}
        self.kubelet.set_status(pod, {"conditions": [why]})
        self.judge.will_delete(pod["metadata"]["uid"])
        self.api.delete(path_of(pod), pod["metadata"]["uid"])
        return True

    def deleted(self) -> bool:
        if (pod := self._pod()) is None:
            return False
        self.judge.will_delete(pod["metadata"]["uid"])
        self.api.delete(path_of(pod), pod["metadata"]["uid"], grace=self.chance.choice([None, 0]))
        return True

    def relabelled(self) -> bool:
        """As if it were of another attempt."""
        if (pod := self._pod()) is None:
            return False
        self.judge.will_delete(pod["metadata"]["uid"])
        labels = {"grpo.dev/attempt": "77"}
        self.api.merge(path_of(pod), {"metadata": {"uid": pod["metadata"]["uid"], "labels": labels}})
        return True

    def annotated(self) -> bool:
        """An edit that is nobody's business."""
        if (pod := self._pod()) is None:
            return False
        self.api.merge(path_of(pod), {"metadata": {"uid": pod["metadata"]["uid"], "annotations": {"note": "mine"}}})
        return True

    def head_misbehaves(self) -> bool:
        if (pod := self._pod(head=True)) is None:
            return False
        mode = self.chance.choice(["hangs", "garbage", "endless", "error", "well"])
        self.kubelet.heads.modes[self.kubelet.address(pod)] = mode
        return True

    # Other children

    def _child(self, *kinds: str) -> Object | None:
        found = [
            item
            for kind in kinds
            for item in self.record.objects(kind)
            if item["metadata"].get("ownerReferences") and not item["metadata"].get("deletionTimestamp")
            if not item["metadata"]["name"].startswith(MISFIT)
        ]
        return self.chance.choice(found) if found else None

    def child_deleted(self) -> bool:
        if (item := self._child(*CHILDREN)) is None:
            return False
        self.judge.will_delete(item["metadata"]["uid"])
        self.api.delete(path_of(item), item["metadata"]["uid"])
        return True

    def service_edited(self) -> bool:
        if (item := self._child("Service")) is None:
            return False
        edit = self.chance.choice([{"selector": {"app": "another"}}, {"publishNotReadyAddresses": False}])
        self.api.merge(path_of(item), {"metadata": {"uid": item["metadata"]["uid"]}, "spec": edit})
        return True

    def child_unlabelled(self) -> bool:
        """The watches, which select by this label, see it go."""
        if (item := self._child("Service", "ConfigMap")) is None:
            return False
        labels = {"app.kubernetes.io/managed-by": None}
        self.api.merge(path_of(item), {"metadata": {"uid": item["metadata"]["uid"], "labels": labels}})
        return True

    # Jobs

    def suspended(self) -> bool:
        return self._set_suspend(self._job(lambda job: not job.ended and not job.suspend), True)

    def resumed(self) -> bool:
        return self._set_suspend(self._job(lambda job: not job.ended and job.suspend), False)

    def _set_suspend(self, job: Job | None, value: bool) -> bool:
        if job is None:
            return False
        body = {"metadata": {"uid": job.manifest["metadata"]["uid"]}, "spec": {"runPolicy": {"suspend": value}}}
        self.api.merge(path_of(job.manifest), body)
        return True

    def job_deleted(self) -> bool:
        if (job := self._job(lambda job: True)) is None:
            return False
        self.delete_job(job)
        return True

    def job_replaced(self) -> bool:
        """What `kubectl replace --force` does: one of the same name while the first one's pods are going."""
        if (job := self._job()) is None:
            return False
        self.replace_job(job)
        return True

    def replace_job(self, job: Job) -> None:
        self.delete_job(job)
        self.api.request("POST", JOBS_PATH, self.make(job.name))

    def delete_job(self, job: Job) -> None:
        self.judge.will_delete(job.manifest["metadata"]["uid"])
        self.api.delete(path_of(job.manifest), job.manifest["metadata"]["uid"])

    def free_names(self) -> list[str]:
        taken = {job.name for job in self.jobs(lambda job: True)}
        return [name for name in JOB_NAMES if name not in taken]

    def foreign_object(self) -> bool:
        """A job's child has the name of what is somebody else's, until `foreign_objects_go`."""
        name, namespace = self.chance.choice(self.free_names()), {"namespace": "default"}
        held: Object = {"containers": [{"name": "c", "image": "i"}], "schedulingGates": [{"name": "chaos/never"}]}
        item: Object = self.chance.choice(
            [
                {"kind": "Pod", "metadata": {"name": f"{name}-1", **namespace}, "spec": held},
                {"kind": "ConfigMap", "metadata": {"name": f"{name}-config", **namespace}, "data": {"mine": "1"}},
                {"kind": "Service", "metadata": {"name": name, **namespace}, "spec": {"ports": [{"port": 1}]}},
            ]
        )
        ours = {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_JOB_NAME: name}  # not even these make it ours
        item = {"apiVersion": "v1", **item, "metadata": {**item["metadata"], "labels": {**ours, FOREIGN: ""}}}
        if len(self._foreign()) >= MAX_FOREIGN:
            return False
        self.api.request("POST", path_of(item).rpartition("/")[0], item)
        self.api.request("POST", JOBS_PATH, self.make(name))
        return True

    def _foreign(self) -> list[Object]:
        items = [item for kind in ("Pod", "ConfigMap", "Service") for item in self.record.objects(kind)]
        return [item for item in items if FOREIGN in (item["metadata"].get("labels") or {})]

    def foreign_objects_go(self) -> None:
        for item in self._foreign():
            self.judge.will_delete(item["metadata"]["uid"])
            self.api.delete(path_of(item), item["metadata"]["uid"], grace=0)

    def meddled_with(self) -> bool:
        """Somebody else writes into a job, and into what is the operator's to write."""
        if (job := self._job()) is None:
            return False
        metadata: Object = {"uid": job.manifest["metadata"]["uid"]}
        self.api.merge(path_of(job.manifest), {"metadata": {**metadata, "annotations": {"note": "mine"}}})
        status = {"message": "mine", "nodes": None}
        self.api.merge(path_of(job.manifest, "status"), {"metadata": metadata, "status": status})
        return True

    # Nodes

    def node_lost(self) -> bool:
        """At most one at a time, until `node_returns`; the first one stays, the misfit's pod is there."""
        if self.kubelet.dead:
            return False
        self.kubelet.dead.add(self.chance.choice(self.kubelet.nodes[1:]))
        return True

    def node_returns(self) -> bool:
        if not self.kubelet.dead:
            return False
        self.kubelet.dead.clear()
        return True

    TABLE = (
        *(fails, out_of_memory, loses_a_peer, evicted_by_api, evicted_by_kubelet, preempted, deleted) * 4,
        *(suspended, job_deleted, child_deleted, service_edited, child_unlabelled, head_misbehaves) * 3,
        *(fails_twice, second_rank_exits_0, relabelled, annotated, meddled_with, job_replaced, foreign_object) * 2,
        *(resumed,) * 5,
        *(users_fault, succeeds, runs_no_trainer),
    )
    """The number of times that one stands here is its weight."""
