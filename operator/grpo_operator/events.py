"""Events of a job, for `kubectl describe`: what is worth one, and how they are written."""

import hashlib
from datetime import datetime
from typing import Any

from grpo_api import names
from grpo_operator import status as statuses
from grpo_operator.kube import Kube, KubeError, Object
from grpo_operator.reasons import Cause, Reason
from grpo_operator.workqueue import Key

Told = tuple[str, str, str]
"""(type, reason, message)."""
CHECKPOINT = "Checkpoint"
MAX_SERIES = 16
"""Events of one job that are remembered, so that their like is counted up."""


def told(old: dict[str, Any], new: dict[str, Any]) -> list[Told]:
    """(type, reason, message) of what a person wants to read in `kubectl describe` between two statuses."""
    found: list[Told] = []
    state, reason, message = new.get("state", ""), new.get("reason", ""), new.get("message", "")
    if (entry := statuses.new_restart(old, new)) is not None:
        found.append(("Warning", "Restarting", f"attempt {new['attempt']}: {entry['cause']}: {message}"))
        return found
    trains = state == names.State.RUNNING != old.get("state")
    made_pods = new.get("createdAttempt") is not None and new.get("createdAttempt") != old.get("createdAttempt")
    if made_pods and not trains:  # pods that all run by now are told of once
        total = (new.get("nodes") or {}).get("total")
        found.append(("Normal", "PodsCreated", f"{total} pods of attempt {new['createdAttempt']}"))
    if state != old.get("state"):
        if trains:
            found.append(("Normal", "Training", _training(new)))
        elif state == names.State.SUCCEEDED:
            found.append(("Normal", "Succeeded", message))
        elif state == names.State.FAILED:
            found.append(("Warning", "Failed", f"{reason}: {message}"))
        elif state == names.State.SUSPENDED:
            found.append(("Normal", reason, message))
    if reason == Reason.RESUMED and reason != old.get("reason"):
        found.append(("Normal", reason, message))
    if reason in (Reason.NODE_UNREACHABLE, Reason.NOT_MANAGED_BY_KUEUE) and reason != old.get("reason"):
        found.append(("Warning", reason, message))
    saved, before = new.get("checkpoint") or {}, old.get("checkpoint") or {}
    if saved.get("step") is not None and saved.get("step") != before.get("step"):
        found.append(("Normal", CHECKPOINT, f"step {saved['step']} is saved at {saved.get('path', '')}"))
    ordinary = {
        *(Reason.CREATING_PODS, Reason.WAITING_FOR_SCHEDULER, Reason.WAITING_FOR_CAPACITY, Reason.STARTING),
        *(Reason.BACKOFF, Reason.RESTARTING),
    }
    waiting = state in (
        *(names.State.PENDING, names.State.QUEUED, names.State.SCHEDULING, names.State.STARTING),
        names.State.RESTARTING,
    )
    pulling = {reason, old.get("reason")} <= {"ErrImagePull", "ImagePullBackOff"}  # the kubelet goes to and fro
    if (
        waiting
        and not pulling
        and reason != old.get("reason")
        and reason not in ordinary | {Reason.RESUMED} | set(Cause)
    ):
        found.append(("Warning", reason, message))
    return found


def _training(new: dict[str, Any]) -> str:
    attempt, last = new.get("attempt", 0), (new.get("restarts") or [{}])[-1]
    resumed = last.get("fromStep") if last.get("attempt") == attempt - 1 else None
    origin = f" on from step {resumed}" if resumed is not None else ""
    return f"all pods are ready; attempt {attempt} trains{origin}"


class EventWriter:
    """Writes Events. What is told again counts the first Event up, as kubectl shows it (`x12 over 2h`): a job that
    saves for weeks leaves one for its checkpoints. One that is refused is dropped: nothing rests on Events."""

    def __init__(self, kube: Kube, identity: str) -> None:
        self._kube, self._identity = kube, identity
        self._series: dict[Key, dict[str, tuple[str, int]]] = {}
        """Name and count of each job's Events, by a digest of what makes two of them alike."""

    async def write(self, job: Object, events: list[Told], now: datetime) -> None:
        key = (job["metadata"]["namespace"], job["metadata"]["name"])
        for kind, reason, message in events:
            # The step differs from one checkpoint to the next, and its Event tells the newest.
            alike = _digest(job["metadata"]["uid"], reason, "" if reason == CHECKPOINT else message)
            series = self._series.setdefault(key, {})
            name, count = series.pop(alike, ("", 0))
            try:
                if not name or not await self._count_up(key[0], name, count + 1, message, now):
                    name, count = f"{key[1]}.{_digest(alike, now.isoformat())}", 0
                    await self._kube.create("Event", self._event(job, name, kind, reason, message, now))
            except KubeError:
                return
            series[alike] = (name, count + 1)
            while len(series) > MAX_SERIES:
                del series[next(iter(series))]

    def forget(self, key: Key) -> None:
        self._series.pop(key, None)

    async def _count_up(self, namespace: str, name: str, count: int, message: str, now: datetime) -> bool:
        """False where the Event is not there any more: the API server keeps them for an hour."""
        change = {"count": count, "lastTimestamp": statuses.timestamp(now), "message": message[:1024]}
        try:
            await self._kube.patch("Event", namespace, name, change)
        except KubeError as error:
            if error.code == 404:
                return False
            raise
        return True

    def _event(self, job: Object, name: str, kind: str, reason: str, message: str, now: datetime) -> Object:
        metadata = job["metadata"]
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "type": kind,
            "reason": reason,
            "message": message[:1024],
            "source": {"component": names.FIELD_MANAGER},
            "reportingComponent": names.FIELD_MANAGER,
            "reportingInstance": self._identity[:128],
            "firstTimestamp": statuses.timestamp(now),
            "lastTimestamp": statuses.timestamp(now),
            "count": 1,
        }


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
