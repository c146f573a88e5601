"""What is known of each job from the record of its objects: its pods, its attempts, and what befell them."""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
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
FOREIGN = "chaos/foreign"
"""Label of objects that have the name of a job's child and are somebody else's."""


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
    def policy(self) -> Object:
        return self.manifest["spec"].get("runPolicy") or {}

    @property
    def suspend(self) -> bool:
        return bool(self.policy.get("suspend"))

    def until_ttl(self, now: float) -> float | None:
        """Seconds until the job may be deleted for its age, or None where it never may."""
        limit, end = self.policy.get("ttlSecondsAfterFinished"), self.status.get("completionTime")
        return None if limit is None or end is None or not self.ended else seconds(end) + limit - now

    def until_deadline(self, now: float) -> float | None:
        """Seconds until the job has been active for too long, or None where there is no such limit now."""
        limit, start = self.policy.get("activeDeadlineSeconds"), self.status.get("startTime")
        at_rest = self.ended or self.status.get("reason") in ("Suspending", "Suspended")
        return None if limit is None or start is None or at_rest else seconds(start) + limit - now


def seconds(timestamp: str) -> float:
    """Seconds since 1970 of an RFC 3339 time."""
    return datetime.fromisoformat(timestamp).timestamp()


def attempt_label(item: Object) -> int:
    return int(item["metadata"]["labels"]["grpo.dev/attempt"])


def head_of(pod: Object) -> bool:
    return str(pod["metadata"]["name"]).endswith("-0")


def has_ended(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


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


def pause_before_next(restarts: list[Object]) -> float:
    """Seconds between the last restart's decision and its pods, as docs/recovery.md has them (no head saves here)."""
    if restarts[-1]["cause"] == "ScheduleTimeout":
        return 30.0
    in_a_row = 0
    for entry in reversed(restarts):
        if not entry["counted"]:
            break
        in_a_row += 1
    return min(300.0, 5.0 * 2 ** (in_a_row - 1)) if in_a_row else 0.0
