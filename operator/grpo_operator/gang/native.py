"""Kubernetes' own gang scheduling: Workload and PodGroup of scheduling.k8s.io (feature gate GenericWorkload)."""

from grpo_api import names
from grpo_api.job import GRPOJob
from grpo_operator.children.meta import Object, metadata
from grpo_operator.gang.base import Gang, GangBackend
from grpo_operator.gang.topology import prefer_one_domain
from grpo_operator.kube import full_kind

API_VERSION = "scheduling.k8s.io/v1beta1"
TEMPLATE = "gang"


def pod_group_name(job: GRPOJob, attempt: int) -> str:
    """A group an attempt: its condition PodGroupInitiallyScheduled never reverts."""
    return f"{job.name}-{attempt}"


def attempt_labels(attempt: int) -> dict[str, str]:
    return {names.LABEL_ATTEMPT: str(attempt)}


class NativeGang(GangBackend):
    name = "native"
    kinds = (full_kind(API_VERSION, "Workload"), full_kind(API_VERSION, "PodGroup"))

    def reason(self) -> str:
        return f"the cluster serves {API_VERSION}"

    def refusal(self, job: GRPOJob) -> str | None:
        if not self.capabilities.has(*self.kinds):
            return (
                f"the cluster does not serve {API_VERSION} PodGroups, or the operator's role does not allow them: "
                "switch on the feature gate GenericWorkload and that API, and have native in the chart's "
                "rbac.gangBackends, or set the backend to auto or none"
            )
        return None

    def objects(self, gang: Gang) -> list[Object]:
        job = gang.job
        scheduling, priority_class = job.spec.gang_scheduling, job.spec.template.priority_class_name
        template: Object = {
            "schedulingPolicy": {"gang": {"minCount": job.spec.trainer.nnodes}},
            "disruptionMode": {"all": {}},
        }
        if scheduling.topology_key is not None and scheduling.topology_mode == "Required":
            template["schedulingConstraints"] = {"topology": [{"key": scheduling.topology_key}]}
        if priority_class is not None:
            template["priorityClassName"] = priority_class
        return [
            {
                "apiVersion": API_VERSION,
                "kind": "Workload",
                "metadata": metadata(job, job.name),
                "spec": {
                    "controllerRef": {"apiGroup": names.GROUP, "kind": names.KIND, "name": job.name},
                    "podGroupTemplates": [{"name": TEMPLATE, **template}],
                },
            },
            {
                "apiVersion": API_VERSION,
                "kind": "PodGroup",
                "metadata": metadata(job, pod_group_name(job, gang.attempt), more_labels=attempt_labels(gang.attempt)),
                "spec": {
                    "workloadRef": {"workloadName": job.name, "templateName": TEMPLATE},
                    **template,
                },
            },
        ]

    def decorate(self, pod: Object, gang: Gang) -> Object:
        pod = prefer_one_domain(pod, gang)
        group = {"podGroupName": pod_group_name(gang.job, gang.attempt)}
        return {**pod, "spec": {**pod["spec"], "schedulingGroup": group}}
