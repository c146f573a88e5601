"""Why pods do not run: image, configuration, scheduling, in words that name the repair."""

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
    for pod in pods:
        scheduled = condition(pod, "PodScheduled")
        # SchedulerError is not here: mostly a conflict that the scheduler resolves by itself (see placement_problem).
        if not is_scheduled(pod) and scheduled.get("status") == "False" and scheduled.get("reason") in _UNPLACED:
            return (
                Reason.UNSCHEDULABLE,
                f"{pod['metadata']['name']}: {scheduled.get('message') or scheduled.get('reason')}",
            )
    return None


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
