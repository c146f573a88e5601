"""What jobs may do, kept apart from the operator's code: reads their whole history and names each broken rule.

A pod's own record and the log of what the test did say what befell an attempt. Every decision that the operator wrote
must rest on one of these, must count as that one counts, and every one of these must have led to a decision.
"""

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]

OUTSIDE = {"Preempted", "Evicted", "Drained", "NodeLost", "PodDeleted", "ScheduleTimeout"}
"""Causes that spend no restart (design, operator, rule 2)."""
_DISRUPTIONS = {
    "PreemptionByScheduler": "Preempted",
    "EvictionByEvictionAPI": "Drained",
    "TerminationByKubelet": "Evicted",
    "DeletionByTaintManager": "NodeLost",
    "DeletionByPodGC": "NodeLost",
}
PLACEMENT_SLACK_SECONDS = 50.0
"""Over scheduleTimeoutSeconds: a standby may have to wait for the Lease, and then for the API server."""
MANAGED_BY = "app.kubernetes.io/managed-by"


@dataclass
class Attempt:
    """What befell the pods of one attempt."""

    faults: list[tuple[int, str]] = field(default_factory=list)
    """(revision, cause): a restart's cause, or `Succeeded`, `UserFault`, `NotTrained`."""
    suspended: bool = False
    partly_placed_since: float | None = None

    def causes(self) -> set[str]:
        return {cause for _, cause in self.faults}


@dataclass
class Job:
    """One job by its UID."""

    name: str
    manifest: Object
    attempts: dict[int, Attempt] = field(default_factory=lambda: defaultdict(Attempt))
    pods: dict[str, Object] = field(default_factory=dict)
    """By UID."""
    failures: int = 0
    deleted: bool = False

    @property
    def status(self) -> Object:
        return self.manifest.get("status") or {}

    @property
    def attempt(self) -> int:
        return self.status.get("attempt", 0)

    @property
    def ended(self) -> bool:
        return self.status.get("state") in ("Succeeded", "Failed")

    @property
    def suspend(self) -> bool:
        return bool(self.manifest["spec"].get("runPolicy", {}).get("suspend"))


def attempt_label(pod: Object) -> int:
    return int(pod["metadata"]["labels"]["grpo.dev/attempt"])


def head_of(pod: Object) -> bool:
    return pod["metadata"]["name"].endswith("-0")


def own_words(pod: Object) -> str | None:
    """What the pod's record says of its end: a cause, or None where it goes on."""
    status = pod.get("status", {})
    for condition in status.get("conditions") or []:
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            return _DISRUPTIONS[condition["reason"]]
    if status.get("reason") == "Evicted":
        return "Evicted"
    for container in status.get("containerStatuses") or []:
        ended = container.get("state", {}).get("terminated")
        if ended:
            code = ended["exitCode"]
            if code == 0:
                if not head_of(pod):
                    return None
                return "Succeeded" if ended.get("message") else "NotTrained"
            if code in (64, 65):
                return "UserFault"
            if ended.get("reason") == "OOMKilled":
                return "OOMKilled"
            return "PeerLost" if code == 75 else "Failed"
    return None


def silent(pod: Object) -> bool:
    """The node controller has taken back Ready, which the kubelet had said."""
    found = {item["type"]: item["status"] for item in pod.get("status", {}).get("conditions") or []}
    return found.get("Ready") == "False" and found.get("ContainersReady") == "True"


class Judge:
    """`see` is called with each change in order; `broken` lists what should never have happened."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.broken: list[str] = []
        self.changed_jobs = 0
        self.restarts: dict[str, int] = defaultdict(int)
        self._deleted_by_test: set[str] = set()

    def will_delete(self, uid: str) -> None:
        """The test is about to delete or relabel this pod: to be said before it is done."""
        self._deleted_by_test.add(uid)

    def see(self, revision: int, old: Object | None, new: Object | None) -> None:
        item = new or old
        assert item is not None
        if item["kind"] == "GRPOJob":
            self._job(revision, old, new)
        elif (job := self._owner(item)) is not None:
            if item["kind"] == "Pod":
                self._pod(revision, job, old, new)
            elif old is None and job.ended:
                self._break(revision, job, f"{item['kind']} {item['metadata']['name']} was made after the end")

    def _owner(self, item: Object) -> Job | None:
        owners = [owner["uid"] for owner in item["metadata"].get("ownerReferences") or []]
        return next((self.jobs[uid] for uid in owners if uid in self.jobs), None)

    def _break(self, revision: int, job: Job, text: str) -> None:
        self.broken.append(f"revision {revision}: {job.name}, attempt {job.attempt}: {text}")

    # Pods

    def _pod(self, revision: int, job: Job, old: Object | None, new: Object | None) -> None:
        pod = new or old
        assert pod is not None
        uid = pod["metadata"]["uid"]
        if old is None:
            self._made(revision, job, pod)
        number = attempt_label(job.pods.get(uid, pod))  # the label that it was made with
        attempt = job.attempts[number]
        if new is None:
            if not (old or {})["metadata"].get("deletionTimestamp") and own_words(pod) is None:
                self._gone(revision, job, number, pod)
            job.pods.pop(uid, None)
        else:
            before = own_words(old) if old is not None else None
            if (words := own_words(new)) is not None and words != before:
                attempt.faults.append((revision, words))
            going = new["metadata"].get("deletionTimestamp")
            if going and not (old or new)["metadata"].get("deletionTimestamp") and words is None:
                self._gone(revision, job, number, pod)
            elif attempt_label(new) != number and uid in self._deleted_by_test:
                attempt.faults.append((revision, "PodDeleted"))
            made_with = (job.pods.get(uid) or new)["metadata"]["labels"]
            job.pods[uid] = {**new, "metadata": {**new["metadata"], "labels": made_with}}
        self._watch_placement(job)

    def _made(self, revision: int, job: Job, pod: Object) -> None:
        number, name = attempt_label(pod), pod["metadata"]["name"]
        others = {attempt_label(held) for held in job.pods.values()} - {number}
        if others:
            self._break(revision, job, f"{name} of attempt {number} was made beside pods of {sorted(others)}")
        if job.ended:
            self._break(revision, job, f"{name} was made after the end")
        if job.status.get("state") == "Suspended":
            self._break(revision, job, f"{name} was made while the job is Suspended")
        if number != job.attempt:
            self._break(revision, job, f"{name} carries attempt {number}, which the status does not")

    def _gone(self, revision: int, job: Job, number: int, pod: Object) -> None:
        """A healthy pod is told to go: by the test, or by the operator, which then must have decided so before."""
        if pod["metadata"]["uid"] in self._deleted_by_test:
            job.attempts[number].faults.append((revision, "PodDeleted"))
        elif not (job.deleted or job.ended or job.attempts[number].suspended or number != job.attempt):
            self._break(revision, job, f"{pod['metadata']['name']} was deleted by nobody who may")

    def _watch_placement(self, job: Job) -> None:
        """Rule 1: since when part of a gang holds nodes while another part has none."""
        attempt, now = job.attempts[job.attempt], time.monotonic()
        live = [
            pod
            for pod in job.pods.values()
            if attempt_label(pod) == job.attempt and not pod["metadata"].get("deletionTimestamp")
        ]
        placed = sum(bool(pod["spec"].get("nodeName")) for pod in live)
        if 0 < placed < job.manifest["spec"]["trainer"]["nnodes"] and not job.ended:
            attempt.partly_placed_since = attempt.partly_placed_since or now
        else:
            attempt.partly_placed_since = None

    # Jobs

    def _job(self, revision: int, old: Object | None, new: Object | None) -> None:
        self.changed_jobs += 1
        if new is None:
            assert old is not None
            self.jobs[old["metadata"]["uid"]].deleted = True
            return
        uid = new["metadata"]["uid"]
        if uid not in self.jobs:
            self.jobs[uid] = Job(new["metadata"]["name"], new)
        job = self.jobs[uid]
        before, after = job.status, new.get("status") or {}
        number = before.get("attempt", 0)
        if job.ended:
            for name in ("state", "attempt", "failures", "restarts", "completionTime"):
                if before.get(name) != after.get(name):
                    self._break(revision, job, f"{name} changed after the end: {after.get(name)}")
        elif after.get("attempt", 0) != number:
            self._next_attempt(revision, job, before, after)
        elif after.get("state") in ("Succeeded", "Failed"):
            self._end(revision, job, after)
        elif after.get("failures", 0) != job.failures:
            self._break(revision, job, f"failures became {after.get('failures')} without a restart")
        job.manifest = new
        if job.suspend:
            job.attempts[job.attempt].suspended = True
        self._watch_placement(job)

    def _next_attempt(self, revision: int, job: Job, before: Object, after: Object) -> None:
        number = before.get("attempt", 0)
        attempt = job.attempts[number]
        if after["attempt"] != number + 1:
            self._break(revision, job, f"attempt became {after['attempt']}")
        entry = (after.get("restarts") or [{}])[-1]
        if entry.get("attempt") != number:
            if not attempt.suspended:
                self._break(revision, job, "a new attempt without a restart or a suspension")
        elif not self._explained(job, attempt, entry["cause"]):
            self._break(revision, job, f"restart for {entry['cause']}, but its history is {attempt.faults}")
        else:
            self.restarts[entry["cause"]] += 1
            counted = entry["cause"] not in OUTSIDE
            if entry["counted"] is not counted:
                self._break(revision, job, f"{entry['cause']} was counted: {entry['counted']}")
            if counted and before.get("createdAttempt") == number and attempt.faults[0][1] in OUTSIDE:
                self._break(revision, job, f"{entry['cause']} was counted after {attempt.faults}")
            job.failures += counted
        if after["failures"] != job.failures:
            self._break(revision, job, f"failures is {after['failures']}, its history has {job.failures}")

    def _explained(self, job: Job, attempt: Attempt, cause: str) -> bool:
        if cause == "ScheduleTimeout":
            allowed = job.manifest["spec"]["gangScheduling"]["scheduleTimeoutSeconds"]
            since = attempt.partly_placed_since
            return since is not None and time.monotonic() - since > allowed - 5
        if cause == "NodeLost" and "PeerLost" in attempt.causes() and any(map(silent, job.pods.values())):
            return True
        # An operator that was away may find a pod gone, and no record of why.
        return cause in attempt.causes() or (cause == "PodDeleted" and bool(attempt.causes() & OUTSIDE))

    def _end(self, revision: int, job: Job, after: Object) -> None:
        causes, reason = job.attempts[after.get("attempt", 0)].causes(), after["reason"]
        if after["state"] == "Succeeded":
            right = "Succeeded" in causes
        elif reason == "MaxRestartsReached":
            job.failures += 1
            limit = job.manifest["spec"]["runPolicy"]["maxRestarts"]
            right = bool(causes - OUTSIDE) and job.failures == limit + 1 and after["failures"] == job.failures
        elif reason == "TrainerNotRun":
            right = "NotTrained" in causes
        else:
            right = reason == "RewardError" and "UserFault" in causes
        if not right:
            self._break(revision, job, f"ended {after['state']} {reason}, but its history is {sorted(causes)}")

    # Verdicts

    def placement_faults(self) -> list[str]:
        """Rule 1, at this moment."""
        told = []
        for job in self.jobs.values():
            allowed = job.manifest["spec"]["gangScheduling"]["scheduleTimeoutSeconds"] + PLACEMENT_SLACK_SECONDS
            attempt = job.attempts[job.attempt]
            if job.deleted or attempt.partly_placed_since is None:
                continue
            if (held := time.monotonic() - attempt.partly_placed_since) > allowed:
                told.append(f"{job.name}: part of the gang has held nodes for {held:.0f} s while another has none")
        return told

    def unfinished(self) -> list[str]:
        """Jobs that are not yet in the state that their history implies, with the reason."""
        told = []
        for job in self.jobs.values():
            if job.deleted:
                if job.pods:
                    told.append(f"{job.name}: deleted, but has pods")
                continue
            state, pods = job.status.get("state"), list(job.pods.values())
            where = f"{job.name}: state {state}, {job.status.get('message', '')[:200]!r}"
            if job.ended:
                if any(not _ended(pod) for pod in pods):
                    told.append(f"{where}: pods run after the end")
            elif job.suspend:
                if state != "Suspended" or pods:
                    told.append(f"{where}: should be suspended without pods")
            elif job.attempts[job.attempt].causes():
                told.append(f"{where}: no decision on {job.attempts[job.attempt].faults}")
            elif state != "Running" or len(pods) != job.manifest["spec"]["trainer"]["nnodes"]:
                told.append(f"{where}: should be Running")
        return told

    def orphans(self, items: list[Object]) -> list[str]:
        """Our objects whose job is gone, and gang objects of jobs that have ended or are suspended."""
        told = []
        for item in items:
            metadata = item["metadata"]
            owners = [owner["uid"] for owner in metadata.get("ownerReferences") or []]
            if item["kind"] == "GRPOJob" or (metadata.get("labels") or {}).get(MANAGED_BY) != "grpo-operator":
                continue
            job = next((self.jobs[uid] for uid in owners if uid in self.jobs), None)
            if job is None or job.deleted:
                told.append(f"{item['kind']} {metadata['name']}")
            elif item["kind"] in ("PodGroup", "Workload") and (job.ended or job.status.get("state") == "Suspended"):
                told.append(f"{item['kind']} {metadata['name']} of a job that is {job.status['state']}")
        return told


def _ended(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
