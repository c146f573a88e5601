"""Coscheduling of scheduler-plugins: a PodGroup of scheduling.x-k8s.io/v1alpha1.

By the project's published sources (v0.34.1-devel): the CRD in `config/crd/bases`, the pods' label in
`pkg/coscheduling/README.md`, the scheduler's name in `manifests/install/charts/as-a-second-scheduler`. Where the plugin
runs in the cluster's only scheduler, `template.podOverlay` says `schedulerName: default-scheduler`.
"""

from typing import Any

from grpo_api.job import GRPOJob
from grpo_operator.children.meta import Object
from grpo_operator.gang.pod_group import PodGroupGang

GROUP = "scheduling.x-k8s.io/pod-group"


class CoschedulingGang(PodGroupGang):
    name = "coscheduling"
    product = "the Coscheduling plugin of scheduler-plugins"
    api_version = "scheduling.x-k8s.io/v1alpha1"
    scheduler = "scheduler-plugins-scheduler"

    def spec(self, job: GRPOJob) -> dict[str, Any]:
        """Pods that have found a node wait there for the rest of the group, and the scheduler gives up by itself."""
        return {
            "minMember": job.spec.trainer.nnodes,
            "scheduleTimeoutSeconds": job.spec.gang_scheduling.schedule_timeout_seconds,
        }

    def join(self, pod: Object, group: str, job: GRPOJob) -> None:
        pod["metadata"]["labels"][GROUP] = group
