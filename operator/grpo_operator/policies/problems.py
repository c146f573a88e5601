"""Why pods do not run: image, configuration, volumes, scheduling, in words that name the repair."""

import re
from datetime import datetime

from grpo_operator.policies.podstate import Object, condition, is_scheduled, seconds_since
from grpo_operator.reasons import Reason

_WAITING = {
    "ErrImagePull": "check template.image, the registry and template.imagePullSecrets",
    "ImagePullBackOff": "check template.image, the registry and template.imagePullSecrets",
    "InvalidImageName": "correct template.image",
    "ErrImageNeverPull": "load the image onto the node, or change template.imagePullPolicy",
    "ImageInspectError": "check template.image and the node's container runtime",
    "RegistryUnavailable": "check template.image, the registry and template.imagePullSecrets",
    "SignatureValidationFailed": "check template.image and the node's signature policy",
    "CreateContainerConfigError": "make the Secret or ConfigMap that the pod refers to",
    "CreateContainerError": "check the pod's mounts and command",
    "RunContainerError": "check the pod's mounts and command",
}


_UNPLACED = ("Unschedulable", "SchedulingGated")

_KUBELET_EVENTS = {
    "FailedMount": "make the Secret, ConfigMap or claim that the volume names, or correct template.podOverlay",
    "FailedMapVolume": "check the claim's volume and its driver",
    "FailedAttachVolume": "another node may still hold the volume: see its claim's accessModes and its driver",
    "FailedCreatePodSandBox": "the node's network or container runtime is at fault: tell the cluster's administrators",
}
"""Reasons that a kubelet gives in Events alone, while the pod's status says ContainerCreating for ever."""
STUCK_SECONDS = 15.0
"""A pod that has had its node for so long and runs no container may be stuck: its Events are read."""
_PREEMPTION = re.compile(r"\s*(no new claims to deallocate, )?preemption: .*$", re.DOTALL)
_UNBOUND = re.compile(r"unbound immediate PersistentVolumeClaims|persistentvolumeclaim \S+ not found", re.IGNORECASE)


def pod_problem(pods: list[Object]) -> tuple[str, str] | None:
    """(reason, message) of the first pod that cannot start, or None."""
    for pod in pods:
        name = pod["metadata"]["name"]
        told = pod.get("status", {})
        statuses = [*(told.get("initContainerStatuses") or []), *(told.get("containerStatuses") or [])]
        containers = [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]
        images = {container["name"]: container.get("image", "") for container in containers}
        for status in statuses:
            waiting = status.get("state", {}).get("waiting") or {}
            if (reason := waiting.get("reason")) in _WAITING:
                image = f" image {images.get(status.get('name'), '')}" if "image" in _WAITING[reason].lower() else ""
                text = (waiting.get("message") or "").strip()
                return reason, f"{name}:{image} {reason}: {text}; {_WAITING[reason]}"
    # SchedulerError is not here: mostly a conflict that the scheduler resolves by itself (see placement_problem).
    unplaced = [
        (pod, told)
        for pod in pods
        if not is_scheduled(pod)
        and (told := condition(pod, "PodScheduled")).get("status") == "False"
        and told.get("reason") in _UNPLACED
    ]
    if not unplaced:
        return None
    pod, told = unplaced[0]
    message = summed_up(told.get("message") or told["reason"])
    who = pod["metadata"]["name"] + (f" and {len(unplaced) - 1} more" if len(unplaced) > 1 else "")
    if _UNBOUND.search(message) and (claims := _claims_of(pod)):
        named = ", ".join(claims)
        advice = f"`kubectl describe pvc {' '.join(claims)}` says why; correct checkpoint, or make the storage class"
        return Reason.CLAIM_NOT_BOUND, f"{who}: {message}; the pod's claims: {named}: {advice}"
    return Reason.UNSCHEDULABLE, f"{who}: {message}"


def summed_up(message: str) -> str:
    """The scheduler's message in one line, without the part on preemption, which says the same once more."""
    return " ".join(_PREEMPTION.sub("", message).split())[:1000]


def _claims_of(pod: Object) -> list[str]:
    volumes = pod["spec"].get("volumes") or []
    return [item["persistentVolumeClaim"]["claimName"] for item in volumes if "persistentVolumeClaim" in item]


def stuck_pod(pods: list[Object], now: datetime) -> tuple[Object | None, float | None]:
    """(a pod that has a node and yet runs no container, without a word of why; seconds until one would be that)."""
    soonest: float | None = None
    for pod in pods:
        told = pod.get("status", {})
        statuses = [*(told.get("initContainerStatuses") or []), *(told.get("containerStatuses") or [])]
        begun = any(set(status.get("state", {})) - {"waiting"} for status in statuses)
        if not is_scheduled(pod) or begun or told.get("phase", "Pending") != "Pending":
            continue
        age = seconds_since(condition(pod, "PodScheduled").get("lastTransitionTime"), now)
        if age >= STUCK_SECONDS:
            return pod, None
        soonest = min(STUCK_SECONDS - age, soonest or STUCK_SECONDS)
    return None, soonest


def from_events(events: list[Object]) -> tuple[str, str] | None:
    """(reason, message) of the newest of a pod's Events that says why it does not start, or None."""
    faults = [event for event in events if event.get("reason") in _KUBELET_EVENTS]
    if not faults:
        return None
    newest = max(faults, key=_last_time)
    text = " ".join((newest.get("message") or "").split())[:1000]
    return newest["reason"], f"{text}; {_KUBELET_EVENTS[newest['reason']]}"


def _last_time(event: Object) -> str:
    """RFC 3339 times in UTC compare as text."""
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")


PLACEMENT_PATIENCE_SECONDS = 20.0
"""Binding a claim and a scheduler's conflicts take a moment; what stands longer is told."""


def placement_problem(
    pods: list[Object], claims: list[Object], now: datetime
) -> tuple[tuple[str, str] | None, float | None]:
    """((reason, message) of what keeps pods from nodes for longer than usual, or None; seconds until it would be)."""
    waiting = [pod for pod in pods if not is_scheduled(pod)]
    unbound = [claim for claim in claims if (claim.get("status") or {}).get("phase", "Pending") != "Bound"]
    errors = [pod for pod in waiting if condition(pod, "PodScheduled").get("reason") == "SchedulerError"]
    if not waiting or not (unbound or errors):
        return None, None
    age = max(seconds_since(pod["metadata"].get("creationTimestamp"), now) for pod in waiting)
    if age < PLACEMENT_PATIENCE_SECONDS:
        return None, PLACEMENT_PATIENCE_SECONDS - age
    if unbound:
        name, spec = unbound[0]["metadata"]["name"], unbound[0].get("spec") or {}
        kind = f"storage class {spec['storageClassName']}" if spec.get("storageClassName") else "no storage class"
        return (
            Reason.CLAIM_NOT_BOUND,
            f"claim {name} ({kind}) is not bound: `kubectl describe pvc {name}` says why; correct "
            "checkpoint.claimTemplate, or make the storage class",
        ), None
    pod = errors[0]
    return (Reason.UNSCHEDULABLE, f"{pod['metadata']['name']}: {condition(pod, 'PodScheduled').get('message')}"), None
