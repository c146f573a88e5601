"""Free room by node: whether all pods of a gang fit, and which nodes would suit it when others have ended."""

import heapq
from collections.abc import Iterator
from typing import Protocol

from grpo_operator.gang.cluster import HOSTNAME, MILLI, Amounts, Cluster, Needs, Node, Term


class Asks(Protocol):
    """What a gang asks of the cluster; see `line.WaitingGang`."""

    @property
    def pods(self) -> int: ...
    @property
    def needs(self) -> Needs: ...
    @property
    def priority(self) -> int: ...
    @property
    def preempts(self) -> bool: ...
    @property
    def topology_key(self) -> str | None: ...
    @property
    def required(self) -> bool: ...
    @property
    def domain(self) -> str | None: ...


class Room:
    """Amounts by node, which shrink as gangs are placed."""

    def __init__(self, cluster: Cluster) -> None:
        self.nodes = sorted((node for node in cluster.nodes if node.open), key=lambda node: node.name)
        self._uses = cluster.uses
        self._labels = {node.name: node.labels for node in cluster.nodes}
        self._free: dict[str, Amounts] = {node.name: dict(node.allocatable) for node in self.nodes}
        self._later: dict[str, Amounts] = {node.name: dict(node.allocatable) for node in self.nodes}
        """What will be free when all that is expected to end has ended."""
        for use in cluster.uses:
            if use.node in self._free:
                _add(self._free[use.node], use.requests, -1)
                if not use.ends:
                    _add(self._later[use.node], use.requests, -1)

    def take(self, nodes: list[Node], requests: Amounts) -> None:
        """Nobody who asks from now on may use this room, be it free now or later."""
        for node in nodes:
            _add(self._free[node.name], requests, -1)

    def place(self, gang: Asks, preempting: bool = False) -> list[Node] | None:
        """A node for each pod, or None; with `preempting`, as if pods of lower priority were gone.

        The fullest nodes and the fullest domain that fit are taken, so that wide room stays whole.
        """
        free = self._without_lower(gang, self._free) if preempting else self._free
        if free is None:
            return None
        requests, best = gang.needs.requests, None
        for nodes in self._domains(gang):
            counted = [(self._most(gang, free[node.name]), node) for node in nodes]
            whole = sum(most for most, _ in counted)
            if whole >= gang.pods and (best is None or whole < best[0]):
                counted.sort(key=lambda one: (one[0], _left(free[one[1].name], requests), one[1].name))
                best = whole, [node for most, node in counted for _ in range(most)][: gang.pods]
        return best[1] if best else None

    def plan(self, gang: Asks, since: float | None = None) -> list[Node] | None:
        """The nodes of which least must become free for the gang; None where no end of other pods makes it room.

        With `since`, pods that have started after that time are taken to stay.
        """
        later = self._without_lower(gang, self._later) or self._later
        if since is not None:
            later = {name: dict(held) for name, held in later.items()}
            for use in self._uses:
                if use.ends and use.started > since and use.node in later:
                    _add(later[use.node], use.requests, -1)
        best: tuple[float, list[Node]] | None = None
        for nodes in self._domains(gang, waits=True):
            found = self._least_missing(gang, nodes, later)
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        return best[1] if best else None

    def explain(self, gang: Asks, may_wait: bool) -> str:
        """What the gang needs and how much of it there is."""
        requests = gang.needs.requests
        main = next((name for name in sorted(requests) if "/" in name), "cpu")
        where = f" in one {gang.topology_key}" if gang.topology_key and gang.required else ""
        amounts = self._free if may_wait else self._later
        domains = list(self._domains(gang, waits=not may_wait))
        there = max((sum(self._most(gang, amounts[node.name]) for node in nodes) for nodes in domains), default=0)
        text = f"needs {gang.pods} x {requests.get(main, 0) / MILLI:g} {main}{where}"
        if may_wait:
            text += f"; there is room for {min(there, gang.pods)} now"
        else:
            text += f", and the cluster has room for {there} in all: ask for less, or add nodes"
        short = [name for name in requests if self._alone(domains, amounts, name, requests[name]) < gang.pods]
        if short and main not in short:
            text += f" (short of {', '.join(sorted(short))})"
        return text

    def _alone(self, domains: list[list[Node]], amounts: dict[str, Amounts], name: str, value: int) -> int:
        """Pods for which there is enough of one resource."""
        counts = (sum(max(0, amounts[node.name].get(name, 0) // value) for node in nodes) for nodes in domains)
        return max(counts, default=0)

    def _without_lower(self, gang: Asks, amounts: dict[str, Amounts]) -> dict[str, Amounts] | None:
        """Amounts if the pods that the gang may preempt were gone; None where there are none."""
        lower = [
            use
            for use in self._uses
            if gang.preempts and use.movable and use.priority < gang.priority and use.node in amounts
        ]
        if amounts is self._later:
            lower = [use for use in lower if not use.ends]  # the others are not counted there
        if not lower:
            return None
        found = {name: dict(held) for name, held in amounts.items()}
        for use in lower:
            _add(found[use.node], use.requests, 1)
        return found

    def _least_missing(
        self, gang: Asks, nodes: list[Node], later: dict[str, Amounts]
    ) -> tuple[float, list[Node]] | None:
        requests = gang.needs.requests
        most = {node.name: self._most(gang, later[node.name]) for node in nodes}
        if sum(most.values()) < gang.pods:
            return None
        heap = [(self._missing(node, 1, requests), node.name, 1, node) for node in nodes if most[node.name]]
        heapq.heapify(heap)
        whole, chosen = 0.0, list[Node]()
        while len(chosen) < gang.pods:
            missing, name, number, node = heapq.heappop(heap)
            whole += missing
            chosen.append(node)
            if number < most[name]:
                more = self._missing(node, number + 1, requests) - self._missing(node, number, requests)
                heapq.heappush(heap, (more, name, number + 1, node))
        return whole, chosen

    def _missing(self, node: Node, number: int, requests: Amounts) -> float:
        """What must become free for `number` pods on a node, in pods: 0.5 where half a pod's GPUs are in use."""
        free = self._free[node.name]
        return max(max(0, number * value - free.get(name, 0)) / value for name, value in requests.items())

    def _most(self, gang: Asks, free: Amounts) -> int:
        """Pods of the gang for which a node has room."""
        count = min(free.get(name, 0) // value for name, value in gang.needs.requests.items())
        alone = any(term.topology_key == HOSTNAME for term in _among_themselves(gang, gang.needs.apart))
        return max(0, min(count, 1 if alone else gang.pods))

    def _domains(self, gang: Asks, waits: bool = False) -> Iterator[list[Node]]:
        """Sets of nodes within one of which the gang must be; where a domain is only preferred, all nodes come too,
        whose room is never less than a domain's. `waits`: other pods' affinity does not count, they may go."""
        nodes = [node for node in self.nodes if gang.needs.takes(node)]
        keys = [term.topology_key for term in _among_themselves(gang, gang.needs.together)]
        if not waits:
            nodes = [node for node in nodes if self._suits_others(gang, node)]
        if gang.topology_key is not None:
            keys.append(gang.topology_key)
        if not keys:
            yield nodes
            return
        domains: dict[tuple[str, ...], list[Node]] = {}
        for node in nodes:
            if all(key in node.labels for key in keys):
                domains.setdefault(tuple(node.labels[key] for key in keys), []).append(node)
        for values, members in domains.items():
            if gang.domain in (None, values[-1]):
                yield members
        if gang.topology_key is not None and not gang.required:
            yield nodes

    def _suits_others(self, gang: Asks, node: Node) -> bool:
        """Whether the gang's affinity to other pods allows this node."""
        needs = gang.needs
        if not needs.apart and not needs.together:
            return True

        def met(term: Term) -> bool:
            domain = node.labels.get(term.topology_key)
            return domain is not None and any(
                self._labels.get(use.node, {}).get(term.topology_key) == domain
                and term.meets(use.namespace, use.labels)
                for use in self._uses
            )

        others = [term for term in needs.together if term not in _among_themselves(gang, needs.together)]
        return not any(map(met, needs.apart)) and all(map(met, others))


def _among_themselves(gang: Asks, terms: tuple[Term, ...]) -> list[Term]:
    """Terms that the gang's own pods meet."""
    return [term for term in terms if term.meets(gang.needs.namespace, gang.needs.labels)]


def _left(free: Amounts, requests: Amounts) -> int:
    """What a node has left of the resource that makes it scarce: GPUs where the pods ask for any."""
    main = next((name for name in requests if "/" in name), "cpu")
    return free.get(main, 0)


def _add(amounts: Amounts, more: Amounts, sign: int) -> None:
    for name, value in more.items():
        amounts[name] = amounts.get(name, 0) + sign * value
