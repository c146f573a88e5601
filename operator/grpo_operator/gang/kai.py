"""KAI scheduler: a PodGroup of scheduling.run.ai/v2alpha2 that KAI's own pod grouper leaves alone.

By KAI's published sources (v0.17.0; such external groups exist since v0.15.0, before which the grouper would put the
pods into a group of one): the CRD in `deployments/kai-scheduler/crds`, the annotations in
`docs/developer/designs/external-podgroups`, the queue's label in `docs/queues`, the scheduler's name in its chart. Its
topology needs a Topology object by name, so it cannot keep a gang within a `topologyKey` alone.
"""

from typing import Any

from grpo_api.job import GRPOJob
from grpo_api.names import State
from grpo_operator.children.meta import Object
from grpo_operator.gang.base import Gang, Waiting
from grpo_operator.gang.pod_group import PodGroupGang
from grpo_operator.reasons import Reason

GROUP = "pod-group-name"
SKIP_GROUPER = "kai.scheduler/skip-podgrouper"
QUEUE = "kai.scheduler/queue"


class KaiGang(PodGroupGang):
    name = "kai"
    product = "KAI scheduler"
    api_version = "scheduling.run.ai/v2alpha2"
    scheduler = "kai-scheduler"
    has_queues = True

    def spec(self, job: GRPOJob) -> dict[str, Any]:
        made: dict[str, Any] = {"minMember": job.spec.trainer.nnodes, "queue": job.spec.gang_scheduling.queue}
        if job.spec.template.priority_class_name is not None:
            made["priorityClassName"] = job.spec.template.priority_class_name
        return made

    def join(self, pod: Object, group: str, job: GRPOJob) -> None:
        pod["metadata"]["annotations"] |= {GROUP: group, SKIP_GROUPER: "true"}
        pod["metadata"]["labels"][QUEUE] = job.spec.gang_scheduling.queue

    def waiting(self, gang: Gang) -> Waiting | None:
        conditions = (self.group(gang).get("status") or {}).get("schedulingConditions") or []
        messages = [item["message"] for item in conditions if item.get("message")]
        return Waiting(State.SCHEDULING, Reason.UNSCHEDULABLE, messages[-1]) if messages else None
