"""Plain pods, for clusters where every job fits."""

from grpo_api.job import GRPOJob
from grpo_operator.children.meta import Object
from grpo_operator.gang.base import Gang, GangBackend
from grpo_operator.gang.topology import prefer_one_domain


class NoGang(GangBackend):
    name = "none"

    def reason(self) -> str:
        return "the cluster has no gang scheduling that the operator may use; pods are scheduled one by one"

    def decorate(self, pod: Object, gang: Gang) -> Object:
        return prefer_one_domain(pod, gang)

    def refusal(self, job: GRPOJob) -> str | None:
        spec = job.spec.gang_scheduling
        if spec.topology_key and spec.topology_mode == "Required":
            return (
                f"nothing here keeps a gang within one {spec.topology_key}: pods are scheduled one by one; set "
                "gangScheduling.topologyMode to Preferred, or install a gang scheduler (docs/gang-scheduling.md)"
            )
        return None
