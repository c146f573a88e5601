"""Volcano: a PodGroup of scheduling.volcano.sh/v1beta1, which Volcano's own scheduler places whole.

By Volcano's published sources (v1.16.0-alpha.1): the CRD in `config/crd/volcano/bases`; the pods' annotation
`scheduling.k8s.io/group-name` (KubeGroupNameAnnotationKey, `apis/pkg/apis/scheduling/v1beta1/labels.go`); phases and
conditions in `types.go` beside it; the scheduler's name in its chart. Its topology speaks of HyperNodes and their tiers
and not of node labels, so it cannot keep a gang within a `topologyKey`.
"""

from decimal import Decimal
from typing import Any

from grpo_api.job import GRPOJob
from grpo_api.names import State
from grpo_api.quantity import amount
from grpo_operator.children.meta import Object
from grpo_operator.gang.base import Gang, Waiting
from grpo_operator.gang.pod_group import PodGroupGang
from grpo_operator.policies.podstate import condition
from grpo_operator.reasons import Reason

GROUP = "scheduling.k8s.io/group-name"
DEFAULT_QUEUE = "default"
NOT_ADMITTED = "Pending"
"""Phase of a PodGroup that its queue has not let in."""


class VolcanoGang(PodGroupGang):
    name = "volcano"
    product = "Volcano"
    api_version = "scheduling.volcano.sh/v1beta1"
    scheduler = "volcano"
    has_queues = True

    def spec(self, job: GRPOJob) -> dict[str, Any]:
        """`minResources` is what a queue lets the group in by."""
        template, queue = job.spec.template, job.spec.gang_scheduling.queue or DEFAULT_QUEUE
        wanted = {**template.resources.requests, template.gpu_resource_name: job.spec.trainer.n_gpus_per_node}
        size = job.spec.trainer.nnodes
        made: dict[str, Any] = {
            "minMember": size,
            "minResources": {name: _times(size, quantity) for name, quantity in wanted.items()},
            "queue": queue,
        }
        if template.priority_class_name is not None:
            made["priorityClassName"] = template.priority_class_name
        return made

    def join(self, pod: Object, group: str, job: GRPOJob) -> None:
        pod["metadata"]["annotations"][GROUP] = group

    def waiting(self, gang: Gang) -> Waiting | None:
        group = self.group(gang)
        told = condition(group, "Unschedulable")
        message = told.get("message") if told.get("status") == "True" else None
        if (group.get("status") or {}).get("phase") == NOT_ADMITTED:
            queue = f"waits in queue {gang.job.spec.gang_scheduling.queue or DEFAULT_QUEUE}"
            return Waiting(State.QUEUED, Reason.WAITING_FOR_QUOTA, f"{queue}: {message}" if message else queue)
        return Waiting(State.SCHEDULING, Reason.UNSCHEDULABLE, message) if message else None


def _times(count: int, quantity: int | str) -> str:
    """`count` times a quantity, in its base unit."""
    return f"{(amount(quantity) * count).normalize() + Decimal(0):f}"
