"""Faults of `template`, `checkpoint` and `metrics` that the API server would find only when it is given the pods."""

import re
from typing import Any

from pydantic import ValidationError

from grpo_api import names
from grpo_api.errors import FieldError
from grpo_api.explain import explain
from grpo_api.quantity import amount
from grpo_api.spec.root import GRPOJobSpec
from grpo_api.spec.runtime import PORTS_OF_RAY, TAKEN_MOUNTS, PodOverlay, TemplateSpec

MAX_OVERLAY_DEPTH = 64
"""Objects and lists inside one another in an overlay; a pod needs about a dozen."""


def pod_faults(spec: GRPOJobSpec) -> list[FieldError]:
    """Every fault that a pod or a claim made from this spec would have."""
    return [
        *_checkpoint_faults(spec),
        *_resource_faults(spec),
        *_env_faults(spec.template),
        *_overlay_faults(spec.template),
        *_port_faults(spec.metrics.port),
    ]


def _checkpoint_faults(spec: GRPOJobSpec) -> list[FieldError]:
    checkpoint = spec.checkpoint
    faults: list[FieldError] = []
    if checkpoint.claim_name is not None and checkpoint.claim_template is not None:
        message = "set at most one of claimName and claimTemplate: remove one of them"
        faults.append(FieldError("spec.checkpoint", ["claimName", "claimTemplate"], message))
    if not checkpoint.mount_path.startswith("/"):
        message = f"must be an absolute path: try /{checkpoint.mount_path}"
        faults.append(FieldError("spec.checkpoint.mountPath", checkpoint.mount_path, message))
    if checkpoint.mount_path.rstrip("/") in TAKEN_MOUNTS:
        message = f"is where the pod has other things: try {names.DEFAULT_CHECKPOINT_MOUNT}"
        faults.append(FieldError("spec.checkpoint.mountPath", checkpoint.mount_path, message))
    if checkpoint.claim_template is None:
        return faults
    modes = checkpoint.claim_template.access_modes
    if "ReadWriteOncePod" in modes and spec.trainer.nnodes > 1:
        message = (
            f"ReadWriteOncePod lets one pod mount the claim, and trainer.nnodes asks for {spec.trainer.nnodes}: "
            "use ReadWriteMany"
        )
        faults.append(FieldError("spec.checkpoint.claimTemplate.accessModes", modes, message))
    return faults


def _resource_faults(spec: GRPOJobSpec) -> list[FieldError]:
    resources, gpu = spec.template.resources, spec.template.gpu_resource_name
    faults: list[FieldError] = []
    for kind, amounts in (("requests", resources.requests), ("limits", resources.limits)):
        given = amounts.get(gpu)
        if given is not None and amount(given) != spec.trainer.n_gpus_per_node:
            message = f"GPUs come from trainer.nGpusPerNode ({spec.trainer.n_gpus_per_node}): remove this entry"
            faults.append(FieldError(f"spec.template.resources.{kind}[{gpu}]", given, message))
    for name, request in resources.requests.items():
        limit = resources.limits.get(name)
        if limit is not None and amount(request) > amount(limit):
            message = f"is more than limits.{name} ({limit}): raise the limit or lower the request"
            faults.append(FieldError(f"spec.template.resources.requests.{name}", request, message))
    return faults


def _env_faults(template: TemplateSpec) -> list[FieldError]:
    faults: list[FieldError] = []
    given = [item.name for item in template.env]
    for index, item in enumerate(template.env):
        path = f"spec.template.env[{index}]"
        if not re.fullmatch(r"[ -<>-~]+", item.name):
            faults.append(FieldError(f"{path}.name", item.name, "must be printable ASCII without ="))
        elif given.index(item.name) < index:
            first = given.index(item.name)
            message = f"is set by spec.template.env[{first}] already: remove one of them"
            faults.append(FieldError(f"{path}.name", item.name, message))
        if item.value is not None and item.value_from is not None:
            message = f"{item.name}: set at most one of value and valueFrom: remove one of them"
            faults.append(FieldError(path, ["value", "valueFrom"], message))
    return faults


def _overlay_faults(template: TemplateSpec) -> list[FieldError]:
    if (depth := _depth(template.pod_overlay)) > MAX_OVERLAY_DEPTH:
        message = f"is nested {depth} levels deep, more than {MAX_OVERLAY_DEPTH}: a pod template needs about a dozen"
        return [FieldError("spec.template.podOverlay", None, message)]
    try:
        PodOverlay.model_validate(template.pod_overlay, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        return [explain(item, PodOverlay, "spec.template.podOverlay") for item in error.errors()]
    return []


def _depth(value: Any) -> int:
    """Levels of objects and lists, counted without recursion."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
    return depth


def _port_faults(port: int) -> list[FieldError]:
    for first, last, owner in PORTS_OF_RAY:
        if first <= port <= last:
            message = f"is taken by {owner} in the same pod: try {names.TRAINER_METRICS_PORT}"
            return [FieldError("spec.metrics.port", port, message)]
    return []
