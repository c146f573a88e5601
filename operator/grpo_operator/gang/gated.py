"""Our own gang scheduling, for any Kubernetes from 1.30: pods carry a scheduling gate until there is room for all.

`line.decide` says which gangs may go; the gatekeeper takes the gates away, one patch a pod, which also plans a node for
it. All that is to be remembered stands in the pods, so an operator that starts anew goes on where another stopped.
"""

from datetime import datetime

from grpo_api import names
from grpo_api.job import GRPOJob
from grpo_api.names import State
from grpo_operator.children.meta import Object
from grpo_operator.gang.base import Gang, GangBackend, Waiting
from grpo_operator.gang.topology import prefer_one_domain
from grpo_operator.reasons import Reason


class GatedGang(GangBackend):
    name = "gated"

    def reason(self) -> str:
        return "the cluster serves no gang API, and the operator sees its nodes: it releases a gang when all of it fits"

    def refusal(self, job: GRPOJob) -> str | None:
        if not self.capabilities.sees_cluster:
            return (
                "the operator may not see nodes and pods of the whole cluster: have gated in the chart's "
                "rbac.gangBackends and no watchNamespaces, or set the backend to auto or none"
            )
        return None

    def decorate(self, pod: Object, gang: Gang) -> Object:
        pod = prefer_one_domain(pod, gang)
        gates = [*(pod["spec"].get("schedulingGates") or []), {"name": names.SCHEDULING_GATE}]
        return {**pod, "spec": {**pod["spec"], "schedulingGates": gates}}

    def waiting(self, gang: Gang) -> Waiting | None:
        if not any(map(is_gated, gang.pods)):
            return None
        looks = Reason.WAITING_FOR_CAPACITY, "the operator looks for room for all pods of the gang"
        return Waiting(State.QUEUED, *(gang.told or looks))


def is_gated(pod: Object) -> bool:
    return any(gate["name"] == names.SCHEDULING_GATE for gate in pod["spec"].get("schedulingGates") or [])


def released_at(pod: Object) -> float | None:
    """When its gate was lifted (seconds since 1970), or None."""
    return _time((pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_RELEASED_AT))


def planned_node(pod: Object) -> str | None:
    """The node that was planned for a released pod."""
    return (pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_PLANNED_NODE)


def keeps_from(pod: Object) -> float | None:
    """`line.WaitingGang.keeps_from`, as written to the gang's first pod."""
    return _time((pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_KEEPS_ROOM_FROM))


def _time(text: str | None) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:  # edited by somebody
        return None


def release(pod: Object, node: str, pins: dict[str, str], now: datetime) -> Object:
    """The merge patch that lifts our gate, and no other's; `pins` are labels that the pod's node must have."""
    others = [gate for gate in pod["spec"]["schedulingGates"] if gate["name"] != names.SCHEDULING_GATE]
    annotations = {names.ANNOTATION_RELEASED_AT: now.isoformat(), names.ANNOTATION_PLANNED_NODE: node}
    return {
        "metadata": {"uid": pod["metadata"]["uid"], "annotations": annotations},
        "spec": {"schedulingGates": others or None, **({"nodeSelector": pins} if pins else {})},
    }
