"""What jobs may do, kept apart from the operator's code: reads their whole history and names each broken rule.

A pod's own record and the log of what the test did say what befell an attempt. Every decision that the operator wrote
must rest on one of these, must count as that one counts, and every one of these must have led to a decision.
"""

import time
from collections import defaultdict

from tests.apiserver.chaos.history import (
    FOREIGN,
    OUTSIDE,
    Attempt,
    Job,
    Object,
    attempt_label,
    has_ended,
    own_words,
    pause_before_next,
    seconds,
    silent,
)

SLACK_SECONDS = 50.0
"""What an operator that leads may take, beside a slow machine and API server, to act on what time alone decides."""
MANAGED_BY = "app.kubernetes.io/managed-by"
MAX_ANNOTATIONS = 8192
MISFIT = "misfit"
"""The job of this name never finds room for more than a part of its gang."""


class Judge:
    """`see` is called with each change in order; `broken` lists what should never have happened."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.broken: list[str] = []
        self.changed_jobs = 0
        self.restarts: dict[str, int] = defaultdict(int)
        self.ends: dict[str, int] = defaultdict(int)
        self.going: dict[str, float] = {}
        """When the grace of each pod that was told to go is over, by UID."""
        self._deleted_by_test: set[str] = set()

    def will_delete(self, uid: str) -> None:
        """The test is about to delete or relabel this object: to be said before it is done."""
        self._deleted_by_test.add(uid)

    def see(self, revision: int, old: Object | None, new: Object | None) -> None:
        item = new or old
        assert item is not None
        if sum(map(len, (item["metadata"].get("annotations") or {}).values())) > MAX_ANNOTATIONS:
            self.broken.append(f"revision {revision}: annotations of {item['kind']} {item['metadata']['name']}")
        if item["kind"] == "GRPOJob":
            self._job(revision, old, new)
        elif FOREIGN in (item["metadata"].get("labels") or {}):
            self._foreign(revision, old, new)
        elif (job := self._owner(item)) is not None:
            if item["kind"] == "Pod":
                self._pod(revision, job, old, new)
            elif old is None and job.ended:
                self._break(revision, job, f"{item['kind']} {item['metadata']['name']} was made after the end")
            elif item["kind"] in ("PodGroup", "Workload") and old is not None:
                self._gang_object(revision, job, old, new)

    def _owner(self, item: Object) -> Job | None:
        owners = [owner["uid"] for owner in item["metadata"].get("ownerReferences") or []]
        return next((self.jobs[uid] for uid in owners if uid in self.jobs), None)

    def _break(self, revision: int, job: Job, text: str) -> None:
        self.broken.append(f"revision {revision}: {job.name}, attempt {job.attempt}: {text}")

    def _may_go(self, old: Object, new: Object | None) -> bool:
        """Whether nothing was deleted just now, or something that the test or the garbage collector deletes."""
        going = new is None or new["metadata"].get("deletionTimestamp")
        told = old["metadata"].get("deletionTimestamp") or old["metadata"]["uid"] in self._deleted_by_test
        return bool(not going or told)

    def _foreign(self, revision: int, old: Object | None, new: Object | None) -> None:
        """What is not ours is neither deleted nor changed."""
        if old is None:
            return
        same = new is None or all(
            (old.get(part), old["metadata"].get(part)) == (new.get(part), new["metadata"].get(part))
            for part in ("spec", "data", "labels", "ownerReferences")
        )
        if not (same and self._may_go(old, new)):
            self.broken.append(f"revision {revision}: foreign {old['kind']} {old['metadata']['name']} was touched")

    def _gang_object(self, revision: int, job: Job, old: Object, new: Object | None) -> None:
        """Rule 5: never before the last pod of its gang."""
        if job.deleted or self._may_go(old, new):
            return
        its = [pod for pod in job.pods.values() if not has_ended(pod)]
        if old["kind"] == "PodGroup":
            its = [pod for pod in its if attempt_label(pod) == attempt_label(old)]
        if its:
            self._break(revision, job, f"{old['kind']} {old['metadata']['name']} went before {len(its)} of its pods")

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
            if going:
                self.going.setdefault(uid, seconds(going))  # a later deletion without grace changes it
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
        if job.status.get("createdAttempt") == number:
            self._break(revision, job, f"{name} was made anew within an attempt whose gang was whole")
        restarts = job.status.get("restarts") or []
        if restarts and restarts[-1]["attempt"] == number - 1:
            waited = seconds(pod["metadata"]["creationTimestamp"]) - seconds(restarts[-1]["time"])
            if waited < pause_before_next(restarts):
                self._break(revision, job, f"{name} was made {waited:.0f} s after {restarts[-1]}: too soon")

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
            job = self.jobs[old["metadata"]["uid"]]
            left = job.until_ttl(time.time())
            if not self._may_go(old, new) and (left is None or left > 0):
                self._break(revision, job, "the job was deleted by nobody who may")
            job.deleted = True
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
        if before != after:
            self._conditions(revision, job, after)
        job.manifest = new
        if after.get("state") == "Suspended":
            # No pod is left to decide on; and a gang that was never whole keeps its number when it is resumed.
            job.attempts[job.attempt].faults.clear()
        if job.suspend:
            job.attempts[job.attempt].suspended = True
        self._watch_placement(job)

    def _conditions(self, revision: int, job: Job, after: Object) -> None:
        """Rule 3: the conditions say what the state says."""
        true = {item["type"] for item in after.get("conditions") or [] if item["status"] == "True"}
        state = after.get("state")
        for kind in ("Running", "Suspended", "Succeeded", "Failed"):
            leaving = kind == "Running" and after.get("reason") == "Suspending"
            if (kind in true) is not (state == kind) and not leaving:
                self._break(revision, job, f"state is {state}, and the conditions are {sorted(true)}")

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
            if job.failures > job.policy["maxRestarts"]:
                self._break(revision, job, f"restart number {job.failures}, maxRestarts is {job.policy['maxRestarts']}")
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
        self.ends[reason] += 1
        if after["state"] == "Succeeded":
            right = "Succeeded" in causes
        elif reason == "MaxRestartsReached":
            job.failures += 1
            limit = job.policy["maxRestarts"]
            right = bool(causes - OUTSIDE) and job.failures == limit + 1 and after["failures"] == job.failures
        elif reason == "DeadlineExceeded":
            left = job.until_deadline(time.time())
            right = left is not None and left <= 0
        elif reason == "TrainerNotRun":
            right = "NotTrained" in causes
        else:
            right = reason == "RewardError" and "UserFault" in causes
        if not right:
            self._break(revision, job, f"ended {after['state']} {reason}, but its history is {sorted(causes)}")

    # Verdicts

    def overdue(self, led: tuple[float, float]) -> list[str]:
        """What time alone decides, at this moment: rule 1, deadlines, and the age of jobs that have ended.

        `led` is since when and until when, as far as is known, the present leader has had the Lease: time without a
        leader is nobody's fault.
        """
        told, now = [], time.time()
        for job in self.jobs.values():
            if job.deleted:
                continue
            due = {"deadline": job.until_deadline(now), "TTL": job.until_ttl(now)}
            if (since := job.attempts[job.attempt].partly_placed_since) is not None:
                allowed = job.manifest["spec"]["gangScheduling"]["scheduleTimeoutSeconds"]
                due["hold on a part of its gang's nodes"] = since + allowed - time.monotonic()
            for what, left in due.items():
                late = -1.0 if left is None else led[1] - max(now + left, led[0])
                if late > SLACK_SECONDS:
                    told.append(f"{job.name}: its {what} should have ended {late:.0f} s ago")
        return told

    def unfinished(self) -> list[str]:
        """Jobs that are not yet in the state that their history implies, with the reason."""
        told = []
        for job in self.jobs.values():
            if job.deleted:
                if job.pods:
                    told.append(f"{job.name}: deleted, but has pods")
                continue
            state, pods, now = job.status.get("state"), list(job.pods.values()), time.time()
            where = f"{job.name}: state {state}, {job.status.get('message', '')[:200]!r}"
            if job.ended:
                kept = [] if job.policy.get("cleanPodPolicy") == "All" else [pod for pod in pods if has_ended(pod)]
                if len(pods) != len(kept):
                    told.append(f"{where}: pods are there after the end")
                if job.until_ttl(now) is not None:
                    told.append(f"{where}: will be deleted for its age")
            elif job.suspend:
                if state != "Suspended" or pods:
                    told.append(f"{where}: should be suspended without pods")
            elif job.attempts[job.attempt].causes():
                told.append(f"{where}: no decision on {job.attempts[job.attempt].faults}")
            elif state != "Running" or len(pods) != job.manifest["spec"]["trainer"]["nnodes"]:
                told.append(f"{where}: should be Running")
            elif job.until_deadline(now) is not None:
                told.append(f"{where}: will end by its deadline")
        return told

    def left_to_kubernetes(self, pod: Object) -> bool:
        """A pod on a lost node whose job is deleted, with no job of its name: it is in nobody's way."""
        job = self._owner(pod)
        return job is not None and job.name not in {held.name for held in self.jobs.values() if not held.deleted}

    def orphans(self, items: list[Object]) -> list[str]:
        """Our objects whose job is gone, and gang objects without a gang: of an end, a suspension, another attempt."""
        told = []
        for item in items:
            metadata, labels = item["metadata"], item["metadata"].get("labels") or {}
            owners = [owner["uid"] for owner in metadata.get("ownerReferences") or []]
            if item["kind"] == "GRPOJob" or labels.get(MANAGED_BY) != "grpo-operator" or FOREIGN in labels:
                continue
            job = next((self.jobs[uid] for uid in owners if uid in self.jobs), None)
            if job is None or job.deleted:
                told.append(f"{item['kind']} {metadata['name']}")
            elif item["kind"] in ("PodGroup", "Workload") and (job.ended or job.status.get("state") == "Suspended"):
                told.append(f"{item['kind']} {metadata['name']} of a job that is {job.status['state']}")
            elif item["kind"] == "PodGroup" and attempt_label(item) != job.attempt:
                told.append(f"PodGroup {metadata['name']} of an earlier attempt")
        return told
