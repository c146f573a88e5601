"""Kueue: the gang waits in a queue for its quota as a plain pod group, and Kueue evicts it whole.

The pods are a plain pod group (https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/, KEP-976) and not pods behind a
Workload of our own, for what a Workload's maker must do itself Kueue does for pod groups: it reads priority classes,
hands the flavor's node selector and tolerations to the pods, lifts the gates by topology, reports readiness and gives
quota back. All of that would take rights to cluster-wide objects and to the Workload's status, by which a job could
admit itself. The price is a finalizer on each pod, and these facts of Kueue 0.17 keep it from holding a pod:

- a group an attempt, by a name that no other job had: Kueue keeps the finalizers of lost pods until pods replace them,
  and ours have the same names as those;
- `retriable-in-group: false` on every pod says that none is replaced. The group has then ended, and its finalizers go,
  as soon as no pod of it runs;
- pods that no kubelet ends count as running: those that still wait for quota, and those of a silent node. Deleting the
  group's Workload lets go of them (`holder`); without the operator, Kubernetes' own pod collector does within 20 s,
  except on a silent node, where pods stay with or without Kueue.

The gate is on the pods from the start and not only by Kueue's webhook, so that pods which Kueue does not manage hold
nothing. Their number is fixed: a pod group has no `minCount`, so nothing is admitted in part.
"""

import copy

from grpo_api.job import GRPOJob
from grpo_api.names import State
from grpo_operator.children.meta import Object
from grpo_operator.gang.base import Capabilities, Gang, GangBackend, Waiting
from grpo_operator.kube import full_kind
from grpo_operator.policies.podstate import condition, is_scheduled
from grpo_operator.reasons import Reason

QUEUE = "kueue.x-k8s.io/queue-name"
GROUP = "kueue.x-k8s.io/pod-group-name"
TOTAL = "kueue.x-k8s.io/pod-group-total-count"
RETRIABLE = "kueue.x-k8s.io/retriable-in-group"
FAST_ADMISSION = "kueue.x-k8s.io/pod-group-fast-admission"
MANAGED = "kueue.x-k8s.io/managed"
"""Label and finalizer of the pods that Kueue manages."""
GATE = "kueue.x-k8s.io/admission"
WORKLOADS = tuple(full_kind(f"kueue.x-k8s.io/{version}", "Workload") for version in ("v1beta2", "v1beta1"))
"""Newest first; both versions say the same in what is read here."""


def group_name(job: GRPOJob, attempt: int) -> str:
    """Of at most 63 characters. Part of the job's UID keeps it apart from an earlier namesake's, which may linger."""
    return f"{job.name}-{attempt}-{job.metadata['uid'][:4]}"


def served(capabilities: Capabilities) -> str | None:
    return next((kind for kind in WORKLOADS if capabilities.has(kind)), None)


def holder(pods: list[Object], capabilities: Capabilities, overdue: list[Object]) -> tuple[str, str] | None:
    """(kind, name) of the Workload that keeps deleted pods from going though nothing of them runs, or None.

    `overdue` are the pods that nobody waits for any longer. Before that, a group goes only where none of its pods has
    a node: its quota is free with the Workload.
    """
    held = [pod for pod in pods if pod["metadata"].get("deletionTimestamp") and MANAGED in _finalizers(pod)]
    kind = served(capabilities)
    for pod in held:
        group = pod["metadata"]["labels"].get(GROUP)
        members = [other for other in pods if other["metadata"]["labels"].get(GROUP) == group]
        if kind and group and (pod in overdue or not any(map(is_scheduled, members))):
            return kind, group
    return None


def _finalizers(pod: Object) -> list[str]:
    return pod["metadata"].get("finalizers") or []


class KueueGang(GangBackend):
    name = "kueue"
    reads = WORKLOADS
    has_queues = True

    def reason(self) -> str:
        return "the job names a queue, and the cluster serves kueue.x-k8s.io"

    def refusal(self, job: GRPOJob) -> str | None:
        if served(self.capabilities) is None:
            return (
                f"the cluster does not serve Kueue's Workloads, or the operator's role does not allow them: install "
                f"Kueue and have kueue in the chart's rbac.gangBackends, or remove gangScheduling.queue "
                f"({job.spec.gang_scheduling.queue})"
            )
        return None

    def decorate(self, pod: Object, gang: Gang) -> Object:
        spec, made = gang.job.spec.gang_scheduling, copy.deepcopy(pod)
        made["metadata"]["labels"] |= {QUEUE: spec.queue, GROUP: group_name(gang.job, gang.attempt)}
        annotations = made["metadata"].setdefault("annotations", {})
        annotations.pop(FAST_ADMISSION, None)
        annotations |= {TOTAL: str(gang.job.spec.trainer.nnodes), RETRIABLE: "false"}
        if spec.topology_key is not None:
            annotations[f"kueue.x-k8s.io/podset-{spec.topology_mode.lower()}-topology"] = spec.topology_key
        gates = made["spec"].setdefault("schedulingGates", [])
        if {"name": GATE} not in gates:
            gates.append({"name": GATE})
        return made

    def consults(self, gang: Gang) -> tuple[str, str] | None:
        kind = served(self.capabilities)
        return (kind, group_name(gang.job, gang.attempt)) if kind and any(map(_is_gated, gang.pods)) else None

    def waiting(self, gang: Gang) -> Waiting | None:
        gated = [pod for pod in gang.pods if _is_gated(pod)]
        if not gated:
            return None
        unknown = [pod["metadata"]["name"] for pod in gated if MANAGED not in pod["metadata"]["labels"]]
        if unknown:
            message = (
                f"Kueue does not manage {unknown[0]}: switch on the integration `pod` in Kueue's configuration, and "
                f"let its managedJobsNamespaceSelector match the namespace {gang.job.namespace}"
            )
            return Waiting(State.QUEUED, Reason.NOT_MANAGED_BY_KUEUE, message)
        queue = f"waits in queue {gang.job.spec.gang_scheduling.queue}"
        return Waiting(State.QUEUED, Reason.WAITING_FOR_QUOTA, f"{queue}: {_told(gang.consulted)}")


def _is_gated(pod: Object) -> bool:
    return {"name": GATE} in (pod["spec"].get("schedulingGates") or [])


def _told(workload: Object | None) -> str:
    """Kueue's own words for why a Workload is not admitted."""
    reserved = condition(workload or {}, "QuotaReserved")
    if reserved.get("status") != "True":
        return reserved.get("message") or "Kueue has not looked at it yet"
    checks = ((workload or {}).get("status") or {}).get("admissionChecks") or []
    pending = [
        f"{check['name']}: {check.get('message') or check['state']}" for check in checks if check["state"] != "Ready"
    ]
    return (
        f"{reserved.get('message')}; admission checks: {'; '.join(pending)}"
        if pending
        else str(reserved.get("message"))
    )
