"""Kubernetes' own gang scheduling: Workload and PodGroup of scheduling.k8s.io (feature gate GenericWorkload).

The API's shape has changed with each release; the newest that the cluster serves is used:

| Kubernetes | version | group | of the pod |
|---|---|---|---|
| 1.37 | v1beta1 | PodGroup, `workloadRef` | `schedulingGroup` |
| 1.36 | v1alpha2 | PodGroup, `podGroupTemplateRef` | `schedulingGroup` |
| 1.35 | v1alpha1 | in the Workload, no topology, no disruption mode | `workloadRef` |
"""

from grpo_api import names
from grpo_api.job import GRPOJob
from grpo_api.names import State
from grpo_operator.children.meta import Object, belongs_to, goes_last, metadata
from grpo_operator.gang.base import Gang, GangBackend, Waiting
from grpo_operator.gang.topology import prefer_one_domain
from grpo_operator.kube import full_kind
from grpo_operator.reasons import Reason

GROUP = "scheduling.k8s.io"
V1BETA1, V1ALPHA2, V1ALPHA1 = (f"{GROUP}/{version}" for version in ("v1beta1", "v1alpha2", "v1alpha1"))
KINDS = {
    V1BETA1: (full_kind(V1BETA1, "Workload"), full_kind(V1BETA1, "PodGroup")),
    V1ALPHA2: (full_kind(V1ALPHA2, "Workload"), full_kind(V1ALPHA2, "PodGroup")),
    V1ALPHA1: (full_kind(V1ALPHA1, "Workload"),),
}
"""What each version needs, newest first."""
TEMPLATE = "gang"


def pod_group_name(job: GRPOJob, attempt: int) -> str:
    """A group an attempt: its condition PodGroupInitiallyScheduled never reverts."""
    return f"{job.name}-{attempt}"


def attempt_labels(attempt: int) -> dict[str, str]:
    return {names.LABEL_ATTEMPT: str(attempt)}


class NativeGang(GangBackend):
    name = "native"
    kinds = tuple(kind for kinds in KINDS.values() for kind in kinds)

    @property
    def version(self) -> str | None:
        return next((version for version, kinds in KINDS.items() if self.capabilities.has(*kinds)), None)

    def reason(self) -> str:
        return f"the cluster serves {self.version}"

    def refusal(self, job: GRPOJob) -> str | None:
        scheduling = job.spec.gang_scheduling
        if self.version is None:
            return (
                f"the cluster does not serve {V1BETA1} PodGroups, or the operator's role does not allow them: switch "
                "on the feature gate GenericWorkload and that API, and have native in the chart's rbac.gangBackends, "
                "or set the backend to auto or none"
            )
        if scheduling.topology_key and scheduling.topology_mode == "Required" and not self.capabilities.native_topology:
            return (
                f"the cluster takes no topology from a PodGroup, and gangScheduling.topologyKey "
                f"({scheduling.topology_key}) asks for one: switch on the feature gate "
                "TopologyAwareWorkloadScheduling, or set the backend to gated, or topologyMode to Preferred"
            )
        return None

    def objects(self, gang: Gang) -> list[Object]:
        job, version = gang.job, self.version
        template = _template(job, version)
        assert version is not None
        workload: Object = {
            "apiVersion": version,
            "kind": "Workload",
            "metadata": metadata(job, job.name),
            "spec": {
                "controllerRef": {"apiGroup": names.GROUP, "kind": names.KIND, "name": job.name},
                "podGroups" if version == V1ALPHA1 else "podGroupTemplates": [{"name": TEMPLATE, **template}],
            },
        }
        if version == V1ALPHA1:
            return [workload]
        reference: Object = {"workloadRef": {"workloadName": job.name, "templateName": TEMPLATE}}
        if version == V1ALPHA2:
            named = {"workloadName": job.name, "podGroupTemplateName": TEMPLATE}
            reference = {"podGroupTemplateRef": {"workload": named}}
        group: Object = {
            "apiVersion": version,
            "kind": "PodGroup",
            "metadata": metadata(job, pod_group_name(job, gang.attempt), more_labels=attempt_labels(gang.attempt)),
            "spec": {**reference, **template},
        }
        # Kubernetes itself keeps a PodGroup until its last pod has ended.
        return [goes_last(workload), belongs_to(group, version, "Workload", job.name)]

    def decorate(self, pod: Object, gang: Gang) -> Object:
        pod = prefer_one_domain(pod, gang)
        membership: Object = {"schedulingGroup": {"podGroupName": pod_group_name(gang.job, gang.attempt)}}
        if self.version == V1ALPHA1:
            replica = str(gang.attempt)  # pods of one key are a gang
            group = {"name": gang.job.name, "podGroup": TEMPLATE, "podGroupReplicaKey": replica}
            membership = {"workloadRef": group}
        return {**pod, "spec": {**pod["spec"], **membership}}

    def waiting(self, gang: Gang) -> Waiting | None:
        """The scheduler's word on the group, after what the gang needs."""
        name = pod_group_name(gang.job, gang.attempt)
        group = next((item for (kind, held), item in gang.children.items() if kind in self.kinds and held == name), {})
        told = next(
            (
                one
                for one in (group.get("status") or {}).get("conditions") or []
                if one["type"] in ("PodGroupInitiallyScheduled", "PodGroupScheduled") and one["status"] == "False"
            ),
            None,
        )
        if told is None:
            return None
        spec = gang.job.spec
        within = f" in one {spec.gang_scheduling.topology_key}" if spec.gang_scheduling.topology_key else ""
        needs = f"{spec.trainer.nnodes} x {spec.trainer.n_gpus_per_node} {spec.template.gpu_resource_name}{within}"
        message = " ".join((told.get("message") or told["reason"]).split())[:1000]
        return Waiting(State.SCHEDULING, Reason.UNSCHEDULABLE, f"needs {needs}; the scheduler: {message}")


def _template(job: GRPOJob, version: str | None) -> Object:
    gang = {"gang": {"minCount": job.spec.trainer.nnodes}}
    if version == V1ALPHA1:
        return {"policy": gang}
    scheduling, priority_class = job.spec.gang_scheduling, job.spec.template.priority_class_name
    made: Object = {
        "schedulingPolicy": gang,
        "disruptionMode": "PodGroup" if version == V1ALPHA2 else {"all": {}},
    }
    if scheduling.topology_key is not None and scheduling.topology_mode == "Required":
        made["schedulingConstraints"] = {"topology": [{"key": scheduling.topology_key}]}
    if priority_class is not None:
        made["priorityClassName"] = priority_class
    return made


def probe(version: str, namespace: str) -> Object:
    """A PodGroup with a topology, which an API server whose feature gate is off drops, in a dry run too."""
    reference: Object = {}
    if version == V1ALPHA2:
        reference = {"podGroupTemplateRef": {"workload": {"workloadName": "probe", "podGroupTemplateName": TEMPLATE}}}
    return {
        "apiVersion": version,
        "kind": "PodGroup",
        "metadata": {"generateName": "grpo-operator-probe-", "namespace": namespace},
        "spec": {
            **reference,
            "schedulingPolicy": {"gang": {"minCount": 1}},
            "schedulingConstraints": {"topology": [{"key": "topology.kubernetes.io/zone"}]},
        },
    }
