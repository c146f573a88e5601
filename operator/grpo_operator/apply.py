"""Carries out a plan: one status patch, then deletions, then creations, then Events."""

import hashlib
from datetime import datetime
from typing import Any

from grpo_api import names
from grpo_operator import status as statuses
from grpo_operator.cache import Cache, key_of
from grpo_operator.kube import Kube, KubeError, Object
from grpo_operator.observe import CreateFault
from grpo_operator.plan import Plan
from grpo_operator.policies.podstate import seconds_since
from grpo_operator.reasons import Cause, Reason

FORCE_AFTER_SECONDS = 90.0
"""A pod that is still there this long after its deletion is deleted without grace."""

PROGRESS_FIELDS = ("progress", "checkpoint")


def without_progress(status: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in status.items() if key not in PROGRESS_FIELDS}


async def patch_status(kube: Kube, cache: Cache, job: Object, new: dict[str, Any]) -> None:
    """Write the status; fields that `new` lacks are removed."""
    old = job.get("status") or {}
    body = {**{key: None for key in old if key not in new}, **_with_nulls(old, new)}
    metadata = job["metadata"]
    written = await kube.patch_status(names.KIND, metadata["namespace"], metadata["name"], metadata["uid"], body)
    cache.put_job(written)


def _with_nulls(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """A merge patch keeps what it does not name: name what must go."""
    result: dict[str, Any] = {}
    for key, value in new.items():
        held = old.get(key)
        if isinstance(value, dict) and isinstance(held, dict):
            result[key] = {**{gone: None for gone in held if gone not in value}, **_with_nulls(held, value)}
        else:
            result[key] = value
    return result


async def delete_all(kube: Kube, plan: Plan) -> None:
    for kind, item in plan.delete:
        metadata = item["metadata"]
        await kube.delete(kind, metadata["namespace"], metadata["name"], metadata["uid"])


async def force_stuck(kube: Kube, pods: list[Object], now: datetime) -> None:
    """Pods of a node that does not answer never confirm their deletion; nobody waits for them for ever."""
    for pod in pods:
        metadata = pod["metadata"]
        if (
            metadata.get("deletionTimestamp")
            and seconds_since(metadata["deletionTimestamp"], now) > FORCE_AFTER_SECONDS
        ):
            await kube.delete("Pod", metadata["namespace"], metadata["name"], metadata["uid"], grace=0)


async def create_all(kube: Kube, cache: Cache, job: Object, plan: Plan) -> CreateFault | None:
    """Make the children in order. Returns why the API server refused one; the rest is then left for later."""
    claim_checked = False
    for manifest in plan.create:
        kind, metadata = manifest["kind"], manifest["metadata"]
        if kind == "Pod" and not claim_checked:
            if (missing := await _claim_missing(kube, job)) is not None:
                return missing
            claim_checked = True
        try:
            made = await kube.create(kind, manifest)
        except KubeError as error:
            if error.code == 409 and error.reason == "AlreadyExists":
                if (fault := await _take_ours(kube, cache, job, manifest)) is None:
                    continue
                return fault
            if error.code in (400, 403, 404, 422):
                reason = Reason.QUOTA_EXCEEDED if "exceeded quota" in error.message else Reason.CREATE_REFUSED
                # Admission (quota, webhooks) may change its mind; the API server's own validation does not.
                final = error.code == 422 or (error.code == 400 and "admission webhook" not in error.message)
                return CreateFault(reason, f"{kind} {metadata['name']}: {error.message}", final)
            raise
        cache.put_child(kind, made)
    return None


async def _claim_missing(kube: Kube, job: Object) -> CreateFault | None:
    """A claim that the spec names must be there: the scheduler's words for pods without it do not name it."""
    namespace, name = job["metadata"]["namespace"], (job["spec"].get("checkpoint") or {}).get("claimName")
    if name is None or await kube.get("PersistentVolumeClaim", namespace, name) is not None:
        return None
    message = f"claim {name} does not exist in namespace {namespace}: make it, or correct checkpoint.claimName"
    return CreateFault(Reason.CLAIM_MISSING, message)


async def _take_ours(kube: Kube, cache: Cache, job: Object, manifest: Object) -> CreateFault | None:
    """An object of that name exists. Ours: the watch has not shown it yet. A kept claim is ours by its label."""
    kind, metadata = manifest["kind"], manifest["metadata"]
    found = await kube.get(kind, metadata["namespace"], metadata["name"])
    owners = {owner["uid"]: owner for owner in (found or {}).get("metadata", {}).get("ownerReferences") or []}
    ours = job["metadata"]["uid"] in owners
    of_namesake = any(
        owner["kind"] == names.KIND and owner["name"] == job["metadata"]["name"] for owner in owners.values()
    )
    if found is None or found["metadata"].get("deletionTimestamp") or (of_namesake and not ours):
        return CreateFault(Reason.CREATING_PODS, f"waits until {kind} {metadata['name']} of an earlier job is deleted")
    kept_claim = kind == "PersistentVolumeClaim" and not owners and key_of(found) == key_of(manifest)
    if ours or kept_claim:
        cache.put_child(kind, found)
        return None
    message = (
        f"a {kind} named {metadata['name']} exists that is not this job's; it is not touched: delete or rename it, "
        "or give the job another name"
    )
    return CreateFault(Reason.NAME_CONFLICT, message)


def events(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(type, reason, message) of what a person wants to read in `kubectl describe` between two statuses."""
    told: list[tuple[str, str, str]] = []
    state, reason, message = new.get("state", ""), new.get("reason", ""), new.get("message", "")
    if (entry := statuses.new_restart(old, new)) is not None:
        told.append(("Warning", "Restarting", f"attempt {new['attempt']}: {entry['cause']}: {message}"))
        return told
    if new.get("createdAttempt") is not None and new.get("createdAttempt") != old.get("createdAttempt"):
        total = (new.get("nodes") or {}).get("total")
        told.append(("Normal", "PodsCreated", f"{total} pods of attempt {new['createdAttempt']}"))
    if state != old.get("state"):
        if state == names.State.RUNNING:
            told.append(("Normal", "Training", _training(new)))
        elif state == names.State.SUCCEEDED:
            told.append(("Normal", "Succeeded", message))
        elif state == names.State.FAILED:
            told.append(("Warning", "Failed", f"{reason}: {message}"))
        elif state == names.State.SUSPENDED:
            told.append(("Normal", reason, message))
    if reason == Reason.RESUMED and reason != old.get("reason"):
        told.append(("Normal", reason, message))
    saved, before = new.get("checkpoint") or {}, old.get("checkpoint") or {}
    if saved.get("step") is not None and saved.get("step") != before.get("step"):
        told.append(("Normal", "Checkpoint", f"step {saved['step']} is saved at {saved.get('path', '')}"))
    ordinary = {Reason.CREATING_PODS, Reason.WAITING_FOR_SCHEDULER, Reason.STARTING, Reason.BACKOFF, Reason.RESTARTING}
    waiting = state in (names.State.PENDING, names.State.SCHEDULING, names.State.STARTING, names.State.RESTARTING)
    pulling = {reason, old.get("reason")} <= {"ErrImagePull", "ImagePullBackOff"}  # the kubelet goes to and fro
    if (
        waiting
        and not pulling
        and reason != old.get("reason")
        and reason not in ordinary | {Reason.RESUMED} | set(Cause)
    ):
        told.append(("Warning", reason, message))
    return told


def _training(new: dict[str, Any]) -> str:
    attempt, last = new.get("attempt", 0), (new.get("restarts") or [{}])[-1]
    resumed = last.get("fromStep") if last.get("attempt") == attempt - 1 else None
    origin = f" on from step {resumed}" if resumed is not None else ""
    return f"all pods are ready; attempt {attempt} trains{origin}"


async def emit(kube: Kube, job: Object, told: list[tuple[str, str, str]], now: datetime, identity: str) -> None:
    """Write Events. One that is refused is dropped: nothing rests on Events."""
    metadata = job["metadata"]
    for kind, reason, message in told:
        digest = hashlib.sha256(f"{metadata['uid']}{reason}{message}{now.timestamp()}".encode()).hexdigest()[:16]
        body: Object = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name']}.{digest}", "namespace": metadata["namespace"]},
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
            "reportingInstance": identity[:128],
            "firstTimestamp": statuses.timestamp(now),
            "lastTimestamp": statuses.timestamp(now),
            "count": 1,
        }
        try:
            await kube.create("Event", body)
        except KubeError:
            return
