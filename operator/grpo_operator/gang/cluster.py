"""Nodes and pods as `gated` counts them: what a pod asks for, which nodes would take it, and what holds place there.

Amounts are in thousandths of a resource's unit (cores, bytes, pieces), by its name. Looked at: allocatable amounts,
requests, node selectors, required node affinity, taints, readiness, cordons, and required pod affinity and
anti-affinity. Left to the scheduler: volumes, host ports, spread constraints, and the anti-affinity of other pods.
"""

from dataclasses import dataclass, field
from typing import Any

from grpo_api.quantity import amount
from grpo_operator.children.meta import Object

Amounts = dict[str, int]
HOSTNAME = "kubernetes.io/hostname"
MILLI = 1000


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    labels: dict[str, str]
    allocatable: Amounts
    taints: tuple[tuple[str, str, str], ...] = ()
    """(key, value, effect) of those that keep pods away."""
    open: bool = True
    """Ready and not cordoned."""


@dataclass(frozen=True, slots=True)
class Use:
    """A pod that holds place on a node, or is about to."""

    node: str
    requests: Amounts
    priority: int = 0
    ends: bool = True
    """It is expected to end: its restart policy is not Always, as a Deployment's is."""
    started: float = 0.0
    """When it took the place (seconds since 1970)."""
    movable: bool = True
    """Preemption helps: it is not a DaemonSet's or the node's own."""
    namespace: str = ""
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cluster:
    nodes: tuple[Node, ...]
    uses: tuple[Use, ...]


@dataclass(frozen=True)
class Term:
    """A required term of pod affinity or anti-affinity."""

    topology_key: str
    selector: Object
    namespaces: frozenset[str] | None
    """None for all."""

    def meets(self, namespace: str, labels: dict[str, str]) -> bool:
        return (self.namespaces is None or namespace in self.namespaces) and _selects(self.selector, labels)


@dataclass(frozen=True)
class Needs:
    """What each pod of a gang asks of its node."""

    requests: Amounts
    node_selector: dict[str, str] = field(default_factory=dict)
    node_terms: tuple[Object, ...] = ()
    """Required node affinity: one of these must hold, where there are any."""
    tolerations: tuple[Object, ...] = ()
    together: tuple[Term, ...] = ()
    apart: tuple[Term, ...] = ()
    namespace: str = ""
    labels: dict[str, str] = field(default_factory=dict)

    def takes(self, node: Node) -> bool:
        """Whether the pods may be on this node, if there is room."""
        return (
            node.open
            and all(node.labels.get(key) == value for key, value in self.node_selector.items())
            and (not self.node_terms or any(_term_holds(term, node) for term in self.node_terms))
            and all(any(_tolerates(one, taint) for one in self.tolerations) for taint in node.taints)
        )


def node_of(item: Object) -> Node:
    status, spec = item.get("status", {}), item.get("spec", {})
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or [])
    taints = ((one["key"], one.get("value", ""), one["effect"]) for one in spec.get("taints") or [])
    return Node(
        name=item["metadata"]["name"],
        labels=item["metadata"].get("labels") or {},
        allocatable=_amounts(status.get("allocatable") or {}),
        taints=tuple(taint for taint in taints if taint[2] != "PreferNoSchedule"),
        open=ready and not spec.get("unschedulable"),
    )


def use_of(pod: Object, node: str) -> Use | None:
    """The place that a pod holds on a node; None for one that has ended."""
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return None
    spec, metadata = pod["spec"], pod["metadata"]
    owners = {owner.get("kind") for owner in metadata.get("ownerReferences") or []}
    return Use(
        node=node,
        requests=requests_of(spec),
        priority=spec.get("priority") or 0,
        ends=spec.get("restartPolicy", "Always") != "Always",
        movable=not owners & {"DaemonSet", "Node"},
        namespace=metadata["namespace"],
        labels=metadata.get("labels") or {},
    )


def needs_of(pod: Object) -> Needs:
    spec, metadata = pod["spec"], pod["metadata"]
    affinity = spec.get("affinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = ((affinity.get("nodeAffinity") or {}).get(required) or {}).get("nodeSelectorTerms") or []
    namespace = metadata["namespace"]
    together = tuple(_term(one, namespace) for one in (affinity.get("podAffinity") or {}).get(required) or [])
    apart = tuple(_term(one, namespace) for one in (affinity.get("podAntiAffinity") or {}).get(required) or [])
    return Needs(
        requests=requests_of(spec),
        node_selector=spec.get("nodeSelector") or {},
        node_terms=tuple(terms),
        tolerations=tuple(spec.get("tolerations") or []),
        together=together,
        apart=apart,
        # Of no concern without such terms, and without them the needs of two jobs alike are the same.
        namespace=namespace if together or apart else "",
        labels=metadata.get("labels") or {} if together or apart else {},
    )


def requests_of(spec: Object) -> Amounts:
    """Effective requests of a pod, as the scheduler counts them: containers and sidecars together, or the greatest
    init container with the sidecars before it, whichever is more; and the runtime's overhead (KEP-753)."""
    whole: Amounts = {}
    sidecars: Amounts = {}
    starting: Amounts = {}
    for container in spec.get("containers") or []:
        _add(whole, _asked(container))
    for container in spec.get("initContainers") or []:
        asked = _asked(container)
        if container.get("restartPolicy") == "Always":
            _add(whole, asked)
            _add(sidecars, asked)
        else:
            for name, value in asked.items():
                starting[name] = max(starting.get(name, 0), value + sidecars.get(name, 0))
    for name, value in _amounts((spec.get("resources") or {}).get("requests") or {}).items():
        whole[name] = value  # pod-level resources
    for name, value in starting.items():
        whole[name] = max(whole.get(name, 0), value)
    _add(whole, _amounts(spec.get("overhead") or {}))
    whole["pods"] = MILLI
    return {name: value for name, value in whole.items() if value}


def _asked(container: Object) -> Amounts:
    resources = container.get("resources") or {}
    return _amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _amounts(quantities: dict[str, Any]) -> Amounts:
    return {name: int(amount(value) * MILLI) for name, value in quantities.items()}


def _add(whole: Amounts, more: Amounts) -> None:
    for name, value in more.items():
        whole[name] = whole.get(name, 0) + value


def _term(item: Object, namespace: str) -> Term:
    named = item.get("namespaces")
    every = item.get("namespaceSelector") is not None  # which namespaces have its labels is not known here
    return Term(
        topology_key=item["topologyKey"],
        selector=item.get("labelSelector") or {},
        namespaces=None if every else frozenset(named or [namespace]),
    )


def _selects(selector: Object, labels: dict[str, str]) -> bool:
    """A label selector; an empty one selects nothing here, as a term without one does."""
    wanted, expressions = selector.get("matchLabels") or {}, selector.get("matchExpressions") or []
    if not wanted and not expressions:
        return False
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _holds(one, labels) for one in expressions
    )


def _term_holds(term: Object, node: Node) -> bool:
    labels, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    return (
        bool(labels or fields)
        and all(_holds(one, node.labels) for one in labels)
        and all(_holds(one, {"metadata.name": node.name}) for one in fields)
    )


def _holds(expression: Object, labels: dict[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            if value is None or not value.lstrip("-").isdecimal():
                return False
            return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])
    return False


def _tolerates(toleration: Object, taint: tuple[str, str, str]) -> bool:
    key, value, effect = taint
    if toleration.get("effect") not in (None, "", effect):
        return False
    if not toleration.get("key"):
        return bool(toleration.get("operator") == "Exists")
    if toleration["key"] != key:
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == value
