"""PodGroups of schedulers whose programs the tests do not run, as their published CRDs describe them.

Written down from these files, of projects under the Apache License 2.0: every field of `spec` with its type, bounds,
default and pattern, without the descriptions and below the first level only what is not plainly an object. A field
that is not here is refused by strict validation, as it would be by the real CRD.

- Volcano v1.16.0-alpha.1: config/crd/volcano/bases/scheduling.volcano.sh_podgroups.yaml
- scheduler-plugins v0.34.1-devel: config/crd/bases/scheduling.x-k8s.io_podgroups.yaml
- KAI scheduler v0.17.0: deployments/kai-scheduler/crds/scheduling.run.ai_podgroups.yaml
"""

from typing import Any

Object = dict[str, Any]
QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
TEXT: Object = {"type": "string"}
OPEN: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
AMOUNTS: Object = {
    "type": "object",
    "additionalProperties": {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": QUANTITY,
        "x-kubernetes-int-or-string": True,
    },
}


def _count(least: int | None = None) -> Object:
    return {"type": "integer", "format": "int32"} | ({} if least is None else {"minimum": least})


def _crd(group: str, version: str, spec: Object) -> Object:
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": spec}, "status": OPEN}}
    names = {"kind": "PodGroup", "listKind": "PodGroupList", "plural": "podgroups", "singular": "podgroup"}
    served = {"name": version, "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"podgroups.{group}",
            # Kubernetes asks this of groups of its own domain.
            "annotations": {
                "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"
            },
        },
        "spec": {
            "group": group,
            "names": names,
            "scope": "Namespaced",
            "versions": [served | {"schema": {"openAPIV3Schema": schema}}],
        },
    }


POD_GROUPS = {
    "volcano": _crd(
        "scheduling.volcano.sh",
        "v1beta1",
        {
            "minMember": _count(0),
            "minResources": AMOUNTS,
            "minTaskMember": {"type": "object", "additionalProperties": _count()},
            "networkTopology": OPEN,
            "priorityClassName": TEXT | {"maxLength": 253},
            "queue": TEXT
            | {
                "default": "default",
                "maxLength": 253,
                "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
            },
            "subGroupPolicy": {"type": "array", "items": OPEN},
        },
    ),
    "coscheduling": _crd(
        "scheduling.x-k8s.io",
        "v1alpha1",
        {"minMember": _count(1), "minResources": AMOUNTS, "scheduleTimeoutSeconds": _count()},
    ),
    "kai": _crd(
        "scheduling.run.ai",
        "v2alpha2",
        {
            "markUnschedulable": {"type": "boolean"},
            "minMember": _count(0),
            "minSubGroup": _count(0),
            "preemptibility": TEXT | {"enum": ["preemptible", "non-preemptible"]},
            "preemptionDelay": TEXT,
            "priorityClassName": TEXT,
            "queue": TEXT,
            "schedulingBackoff": _count(),
            "stalenessGracePeriod": TEXT,
            "subGroups": {"type": "array", "items": OPEN},
            "topologyConstraint": OPEN,
        },
    ),
}
"""CustomResourceDefinitions by backend."""
