"""Carries out a plan: one status patch, then deletions, then creations."""

from datetime import datetime
from typing import Any

from grpo_api import names
from grpo_operator.cache import Cache, key_of
from grpo_operator.gang import kueue
from grpo_operator.gang.base import Capabilities
from grpo_operator.kube import Kube, KubeError, Object, full_kind, kind_of
from grpo_operator.observe import CreateFault, Observed
from grpo_operator.plan import Plan
from grpo_operator.policies import podstate
from grpo_operator.policies.refusal import refusal
from grpo_operator.reasons import Reason
from grpo_operator.status import timestamp
from grpo_operator.workqueue import Key

FORCE_AFTER_SECONDS = 90.0
"""A pod that is still there this long after the end of its grace is deleted without grace."""

PROGRESS_FIELDS = ("progress", "checkpoint")


def without_progress(status: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in status.items() if key not in PROGRESS_FIELDS}


async def patch_status(kube: Kube, cache: Cache, job: Object, new: dict[str, Any], now: datetime) -> None:
    """Write the status, and that it is written `now`; fields that `new` lacks are removed.

    A process that was frozen in the middle of this, and wakes up when another has the Lease, must not take back what
    that one has decided: attempt and state must be as this plan found them.
    """
    metadata, old = job["metadata"], job.get("status") or {}
    new = {**new, "lastUpdateTime": timestamp(now)}
    held = {field: old[field] for field in ("attempt", "state") if field in old}
    written = await kube.patch_status(names.KIND, metadata["namespace"], metadata["name"], metadata["uid"], new, held)
    cache.put_job(written)


async def refresh(kube: Kube, cache: Cache, pods: list[Object]) -> bool:
    """Read these pods from the API server; returns whether the cache was behind.

    A pod that went between an operator's first list and the beginning of its watch is in the cache for some seconds
    more, and one watch may be slower than another. What a pod that is gone by now has told of its own end, stays.
    """
    behind = False
    for pod in pods:
        metadata = pod["metadata"]
        found = await kube.get("Pod", metadata["namespace"], metadata["name"])
        if found is None or found["metadata"]["uid"] != metadata["uid"]:
            if podstate.cause(pod) is None and not podstate.has_ended(pod):
                cache.drop_child("Pod", pod)
                behind = True
        elif found["metadata"].get("resourceVersion") != metadata.get("resourceVersion"):
            behind = True
            if cache.holds("Pod", pod):  # else a watch has told since that it is gone
                cache.put_child("Pod", {**found, "kind": "Pod"})
    return behind


async def delete_all(kube: Kube, cache: Cache, plan: Plan) -> bool:
    """Returns whether something was gone already and no watch had said so, as of what has lost our label."""
    surprised = False
    for kind, item in plan.delete:
        metadata = item["metadata"]
        there = await kube.delete(kind, metadata["namespace"], metadata["name"], metadata["uid"])
        if not there and kind != names.KIND:
            cache.drop_child(kind, item)
            surprised = True
    return surprised


async def force_stuck(kube: Kube, observed: Observed, going: dict[str, float], now: float) -> float | None:
    """Pods of a node that does not answer never confirm their deletion; nobody waits for them for ever: neither for a
    job's own nor for those that an earlier job of its name has left, whose names it needs.

    `going` remembers since when each was seen to go, by UID and by a clock that does not jump: without grace, a pod
    that is still saving its checkpoint would go on beside its successor. Returns the seconds until the next is due.
    """
    pods = [*observed.pods, *observed.left_over]
    told = {pod["metadata"]["uid"]: pod for pod in pods if pod["metadata"].get("deletionTimestamp")}
    for uid in going.keys() - told.keys():
        del going[uid]
    job = observed.job["metadata"]
    waits, overdue = [], []
    for uid, pod in told.items():
        metadata = pod["metadata"]
        grace = metadata.get("deletionGracePeriodSeconds")
        left = going.setdefault(uid, now) + (grace or 0) + FORCE_AFTER_SECONDS - now
        if left > 0:
            waits.append(left)
        elif grace == 0:  # as by `kubectl delete --force`: a finalizer holds it
            overdue.append(pod)
        elif pod not in observed.left_over or job["uid"] in await live_jobs(kube, (job["namespace"], job["name"])):
            await kube.delete("Pod", metadata["namespace"], metadata["name"], uid, grace=0)
            overdue.append(pod)
    await let_go(kube, pods, observed.capabilities, overdue)
    return min(waits, default=None)


async def let_go(kube: Kube, pods: list[Object], capabilities: Capabilities, overdue: list[Object]) -> None:
    """Delete the Workload by which Kueue holds deleted pods that no kubelet ends (`kueue.holder`)."""
    if (held_by := kueue.holder(pods, capabilities, overdue)) is None:
        return
    kind, name = held_by
    namespace = pods[0]["metadata"]["namespace"]
    found = await kube.get(kind, namespace, name)
    if found is not None and not found["metadata"].get("deletionTimestamp"):
        await kube.delete(kind, namespace, name, found["metadata"]["uid"])


async def live_jobs(kube: Kube, key: Key) -> set[str]:
    """UIDs of the jobs of this name, one at most, asked of the API server: a watch that is behind shows a deleted job,
    or none, and what its successor's children belong to is then not to be seen."""
    namespace, name = key
    found = await kube.list(names.KIND, namespace, fields=f"metadata.name={name}")
    return {item["metadata"]["uid"] for item in found}


async def create_all(kube: Kube, cache: Cache, job: Object, plan: Plan) -> CreateFault | None:
    """Make the children in order. Returns why the API server refused one; the rest is then left for later."""
    claim_checked = False
    for manifest in plan.create:
        kind, metadata = kind_of(manifest), manifest["metadata"]
        if kind == "Pod" and not claim_checked:
            if (missing := await _claim_missing(kube, job)) is not None:
                return missing
            claim_checked = True
        _fill_in_owners(manifest, cache)
        try:
            made = await kube.create(kind, manifest)
        except KubeError as error:
            if error.code == 409 and error.reason == "AlreadyExists":
                if (fault := await _take_ours(kube, cache, job, manifest)) is None:
                    continue
                return fault
            if (refused := refusal(kind, metadata["name"], error.code, error.message)) is not None:
                return refused
            raise
        cache.put_child(kind, made)
    return None


def _fill_in_owners(manifest: Object, cache: Cache) -> None:
    """UIDs of owners that this plan, or one before it, has made. One that is gone meanwhile owns nothing."""
    metadata, key = manifest["metadata"], key_of(manifest)
    for owner in [owner for owner in metadata.get("ownerReferences") or [] if not owner["uid"]]:
        held = cache.children(key).get((full_kind(owner["apiVersion"], owner["kind"]), owner["name"])) if key else None
        if held is None:
            metadata["ownerReferences"].remove(owner)
        else:
            owner["uid"] = held["metadata"]["uid"]


async def _claim_missing(kube: Kube, job: Object) -> CreateFault | None:
    """A claim that the spec names must be there: the scheduler's words for pods without it do not name it."""
    namespace, name = job["metadata"]["namespace"], (job["spec"].get("checkpoint") or {}).get("claimName")
    if name is None or await kube.get("PersistentVolumeClaim", namespace, name) is not None:
        return None
    message = f"claim {name} does not exist in namespace {namespace}: make it, or correct checkpoint.claimName"
    return CreateFault(Reason.CLAIM_MISSING, message)


async def _take_ours(kube: Kube, cache: Cache, job: Object, manifest: Object) -> CreateFault | None:
    """An object of that name exists. Ours: the watch has not shown it yet. A kept claim is ours by its label."""
    kind, metadata = kind_of(manifest), manifest["metadata"]
    found = await kube.get(kind, metadata["namespace"], metadata["name"])
    owners = {owner["uid"]: owner for owner in (found or {}).get("metadata", {}).get("ownerReferences") or []}
    ours = job["metadata"]["uid"] in owners
    of_namesake = any(
        owner["kind"] == names.KIND and owner["name"] == job["metadata"]["name"] for owner in owners.values()
    )
    if found is None or found["metadata"].get("deletionTimestamp") or (of_namesake and not ours):
        message = f"waits until {kind} {metadata['name']} of an earlier job is deleted"
        if kind == "Pod":
            message += f"; it is deleted without its node's word {FORCE_AFTER_SECONDS:.0f} s after the end of its grace"
        return CreateFault(Reason.CREATING_PODS, message)
    kept_claim = kind == "PersistentVolumeClaim" and not owners and key_of(found) == key_of(manifest)
    if ours or kept_claim:
        cache.put_child(kind, found)
        return None
    message = (
        f"a {kind} named {metadata['name']} exists that is not this job's; it is not touched: delete or rename it, "
        "or give the job another name"
    )
    return CreateFault(Reason.NAME_CONFLICT, message)
