"""Kubernetes' own gang scheduling: Workload and PodGroup of scheduling.k8s.io/v1beta1 (1.37, gate GenericWorkload)."""

from grpo_api import names
from grpo_api.job import GRPOJob
from grpo_operator.children.meta import Object, metadata

API_VERSION = "scheduling.k8s.io/v1beta1"
TEMPLATE = "gang"


def pod_group_name(job: GRPOJob, attempt: int) -> str:
    """A group an attempt: its condition PodGroupInitiallyScheduled never reverts."""
    return f"{job.name}-{attempt}"


class NativeGang:
    name = "native"

    def objects(self, job: GRPOJob, attempt: int) -> list[Object]:
        policy = {"gang": {"minCount": job.spec.trainer.nnodes}}
        return [
            {
                "apiVersion": API_VERSION,
                "kind": "Workload",
                "metadata": metadata(job, job.name),
                "spec": {
                    "controllerRef": {"apiGroup": names.GROUP, "kind": names.KIND, "name": job.name},
                    "podGroupTemplates": [{"name": TEMPLATE, "schedulingPolicy": policy}],
                },
            },
            {
                "apiVersion": API_VERSION,
                "kind": "PodGroup",
                "metadata": metadata(
                    job, pod_group_name(job, attempt), more_labels={names.LABEL_ATTEMPT: str(attempt)}
                ),
                "spec": {
                    "workloadRef": {"workloadName": job.name, "templateName": TEMPLATE},
                    "schedulingPolicy": policy,
                    "disruptionMode": {"all": {}},
                },
            },
        ]

    def decorate(self, pod: Object, job: GRPOJob, attempt: int) -> Object:
        return {**pod, "spec": {**pod["spec"], "schedulingGroup": {"podGroupName": pod_group_name(job, attempt)}}}
