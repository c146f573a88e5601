"""What schedulers that are installed beside Kubernetes' own have in common: a PodGroup an attempt, and their name."""

import copy
from typing import Any, ClassVar

from grpo_api.job import GRPOJob
from grpo_operator.children.meta import Object, metadata
from grpo_operator.gang.base import Gang, GangBackend
from grpo_operator.gang.native import attempt_labels
from grpo_operator.gang.topology import prefer_one_domain
from grpo_operator.kube import full_kind


def group_name(job: GRPOJob, attempt: int) -> str:
    """A group an attempt, by a name of at most 63 characters (it is the value of a label) that no other job's has, be
    it in another namespace or a namesake that is gone.

    By their published sources, KAI knows groups by their bare names in all namespaces (`snapshotPodGroups`), and
    Coscheduling counts pods which are no more as long as they are of a group of this name (`assignedPodsByPG`, where
    the group went before a pod that waited in Permit).
    """
    return f"{job.name[:45]}-{attempt}-{job.metadata['uid'][:8]}"


class PodGroupGang(GangBackend):
    """A subclass says the PodGroup's `spec` and how a pod joins it."""

    automatic = False
    product: ClassVar[str]
    """The scheduler's project, for messages."""
    api_version: ClassVar[str]
    scheduler: ClassVar[str]
    """Name that its own chart gives the scheduler; another one is set in `template.podOverlay`."""

    def spec(self, job: GRPOJob) -> dict[str, Any]:
        raise NotImplementedError

    def join(self, pod: Object, group: str, job: GRPOJob) -> None:
        """Make the pod a member of the group, in place."""
        raise NotImplementedError

    def __init_subclass__(cls) -> None:
        cls.kinds = (full_kind(cls.api_version, "PodGroup"),)

    def reason(self) -> str:
        return f"the cluster serves {self.api_version}"

    def refusal(self, job: GRPOJob) -> str | None:
        if not self.capabilities.has(*self.kinds):
            return (
                f"the cluster does not serve {self.api_version} PodGroups, or the operator's role does not allow them: "
                f"install {self.product} and have {self.name} in the chart's rbac.gangBackends, or set the backend to "
                "auto"
            )
        spec = job.spec.gang_scheduling
        if spec.topology_key and spec.topology_mode == "Required":
            return (
                f"{self.product} does not keep a gang within one {spec.topology_key} by that label: set "
                "gangScheduling.topologyMode to Preferred, or the backend to native or kueue"
            )
        return None

    def objects(self, gang: Gang) -> list[Object]:
        name = group_name(gang.job, gang.attempt)
        return [
            {
                "apiVersion": self.api_version,
                "kind": "PodGroup",
                "metadata": metadata(gang.job, name, more_labels=attempt_labels(gang.attempt)),
                "spec": self.spec(gang.job),
            }
        ]

    def decorate(self, pod: Object, gang: Gang) -> Object:
        made = copy.deepcopy(prefer_one_domain(pod, gang))
        made["metadata"].setdefault("annotations", {})
        made["spec"].setdefault("schedulerName", self.scheduler)
        self.join(made, group_name(gang.job, gang.attempt), gang.job)
        return made

    def group(self, gang: Gang) -> Object:
        """The PodGroup as it is observed; empty where it is not."""
        return gang.children.get((self.kinds[0], group_name(gang.job, gang.attempt)), {})
