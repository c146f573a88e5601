"""Which waiting gangs may go to the scheduler now. Pure: (cluster, waiting gangs, now) -> decision.

The order is priority, then time of joining. Going down the line, a gang that has room for all its pods is released onto
the nodes found; its place counts as taken at once. The first that has no room is the head of the line. Gangs behind it
are released where they fit, which keeps GPUs busy; but once the head has been one for PATIENCE_SECONDS, room on a set
of nodes is kept for it, and what would take that is not released any more. Of the sets that only pods from before that
time keep it from, it is the one of which least has to become free still.

    So a head waits at most for its patience and then for the longest of the pods that ran by then: nothing that has
    started since stands in its way. The k-th in line waits at most for k such times. Gangs of higher priority go before
    it, however late they come; and pods that are not expected to end (restart policy Always) are not waited for.

A gang that no ending pod can make room for is told so and holds nobody up. A gang part of which has been released
comes first. A gang whose priority allows preemption is also released where the pods of lower priority give it room;
the scheduler preempts those. Each pool of nodes has its own head: a gang that is to wait on other nodes than the head
does becomes a head there.
"""

from dataclasses import dataclass, field, replace

from grpo_operator.gang.cluster import Cluster, Needs, Node
from grpo_operator.gang.room import Room
from grpo_operator.reasons import Reason
from grpo_operator.workqueue import Key


@dataclass(frozen=True)
class WaitingGang:
    key: Key
    pods: int
    """Pods that have no node yet and are to be placed."""
    needs: Needs
    since: str = ""
    """When it joined the line (RFC 3339)."""
    priority: int = 0
    preempts: bool = True
    """Its preemption policy is not Never."""
    topology_key: str | None = None
    required: bool = True
    """All pods in one domain of `topology_key`, else in one where that has room."""
    domain: str | None = None
    """The domain in which pods of it have a node already, where it must be one."""
    keeps_from: float | None = None
    """From when on room is kept for it while it is head (seconds since 1970); None before it is one."""
    begun: bool = False
    """Part of it has been released to the scheduler, or has a node."""


@dataclass
class Decision:
    release: dict[Key, list[Node]] = field(default_factory=dict)
    """A node for each of a gang's pods."""
    heads: dict[Key, float] = field(default_factory=dict)
    """`keeps_from` of heads of a line for which it is another from now on."""
    told: dict[Key, tuple[str, str]] = field(default_factory=dict)
    """(reason, message) for each gang that waits on."""


PATIENCE_SECONDS = 3600.0
"""With no patience, GPUs idled 10% longer than under an oracle instead of 7%, and gangs waited a quarter longer in the
mean (`make simulate-gangs`, whose runs take hours as real ones do)."""


def decide(cluster: Cluster, gangs: list[WaitingGang], now: float) -> Decision:
    made, room = Decision(), Room(cluster)
    kept_for: set[str] = set()
    """Nodes on which a head waits."""
    refused: dict[str, tuple[bool, str]] = {}
    """(whether it may wait, why) by shape: room only shrinks on the way down the line, so the like need no look."""
    ahead = 0
    for gang in sorted(gangs, key=lambda one: (not one.begun, -one.priority, one.since, one.key)):
        shape = repr(replace(gang, key=("", ""), since="", keeps_from=None))
        if shape not in refused:
            nodes = room.place(gang) or room.place(gang, preempting=True)
            if nodes is not None:
                room.take(nodes, gang.needs.requests)
                made.release[gang.key] = nodes
                continue
            later = room.plan(gang)
            refused[shape] = later is not None, room.explain(gang, later is not None)
            eligible = {node.name for node in room.nodes if gang.needs.takes(node)}
            if later is not None and (gang.begun or not eligible & kept_for):
                kept_for |= eligible
                _keep_for_head(made, room, gang, later, now)
        may_wait, why = refused[shape]
        if not may_wait:
            made.told[gang.key] = Reason.LARGER_THAN_CLUSTER, why
            continue
        made.told[gang.key] = Reason.WAITING_FOR_CAPACITY, f"{why}; {ahead} gang{'' if ahead == 1 else 's'} ahead"
        ahead += 1
    return made


def _keep_for_head(made: Decision, room: Room, gang: WaitingGang, later: list[Node], now: float) -> None:
    keeps_from = now + PATIENCE_SECONDS if gang.keeps_from is None else gang.keeps_from
    if gang.begun:
        keeps_from = now
    elif now >= keeps_from and (kept := room.plan(gang, since=keeps_from)) is not None:
        later = kept
    else:
        # What was kept may be gone: a node is lost, or a gang of higher priority has it.
        keeps_from = max(now, keeps_from)
    if not gang.begun and keeps_from != gang.keeps_from:
        made.heads[gang.key] = keeps_from
    if now >= keeps_from:
        room.take(later, gang.needs.requests)
