"""All nodes and pods of the cluster as `gated` counts them, kept from watches and lists."""

import asyncio
from dataclasses import replace
from datetime import datetime

from grpo_operator.gang import gated
from grpo_operator.gang.cluster import Cluster, Node, Use, node_of, use_of
from grpo_operator.kube import Object
from grpo_operator.policies.podstate import condition


class ClusterView:
    """`changed` is set by whatever may let a gang go: room, or another gang that waits."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.changed = asyncio.Event()
        self._uses: dict[str, Use] = {}
        """By the pod's UID."""
        self._gated: set[str] = set()
        self._versions: dict[str, int] = {}
        self._bound: dict[str, bool] = {}
        self._looked_at: dict[str, tuple[object, ...]] = {}
        """All of a pod that `_uses` rests on, its spec by its generation."""

    def cluster(self) -> Cluster:
        return Cluster(tuple(self.nodes.values()), tuple(self._uses.values()))

    def any_gated(self) -> bool:
        return bool(self._gated)

    def put_node(self, item: Object) -> None:
        node = node_of(item)
        if self.nodes.get(node.name) != node:
            self.nodes[node.name] = node
            self.changed.set()

    def drop_node(self, item: Object) -> None:
        if self.nodes.pop(item["metadata"]["name"], None) is not None:
            self.changed.set()

    def put_pod(self, pod: Object) -> None:
        uid, version = pod["metadata"]["uid"], int(pod["metadata"].get("resourceVersion") or 0)
        if version < self._versions.get(uid, 0):
            return  # the watch is behind a patch of ours
        self._versions[uid] = version
        waits = gated.is_gated(pod)
        looked_at = (
            pod["spec"].get("nodeName"),
            gated.planned_node(pod),
            waits,
            pod.get("status", {}).get("phase") in ("Succeeded", "Failed"),
            pod["metadata"].get("generation"),
        )
        if self._looked_at.get(uid) == looked_at:
            return  # most events are news of a pod's containers, and reading quantities takes its time
        self._looked_at[uid] = looked_at
        self._gated.add(uid) if waits else self._gated.discard(uid)
        self._bound[uid] = bool(pod["spec"].get("nodeName"))
        # A pod that has been released takes its place before the scheduler puts it there.
        place = pod["spec"].get("nodeName") or (None if waits else gated.planned_node(pod))
        use = use_of(pod, place) if place else None
        if use is not None:
            # The scheduler preempts pods that have nodes; one that is on its way would be left over.
            use = replace(use, started=_started(pod), movable=use.movable and self._bound[uid])
        if waits or use != self._uses.get(uid):
            self.changed.set()
        if use is None:
            self._uses.pop(uid, None)
        else:
            self._uses[uid] = use

    def drop_pod(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        self._versions.pop(uid, None)
        self._bound.pop(uid, None)
        self._gated.discard(uid)
        self._looked_at.pop(uid, None)
        if self._uses.pop(uid, None) is not None:
            self.changed.set()

    def has_places(self, uids: list[str]) -> bool:
        """Whether all these pods have nodes, as far as they are still there."""
        return all(self._bound.get(uid, True) for uid in uids)

    def pods(self) -> set[str]:
        """UIDs of the pods that are known."""
        return set(self._versions)

    def keep_nodes(self, names: set[str]) -> None:
        """Forget nodes that a list did not show."""
        for name in self.nodes.keys() - names:
            del self.nodes[name]
            self.changed.set()

    def forget_pods(self, uids: set[str]) -> None:
        """Forget pods that were known before a list and are not in it."""
        for uid in uids:
            self.drop_pod({"metadata": {"uid": uid}})


def _started(pod: Object) -> float:
    """When it took its place: by our release, else when it got its node, else when it was made."""
    if (time := gated.released_at(pod)) is not None:
        return time
    placed = condition(pod, "PodScheduled")
    text = placed.get("lastTransitionTime") if placed.get("status") == "True" else None
    text = text or pod["metadata"].get("creationTimestamp")
    return datetime.fromisoformat(text).timestamp() if text else 0.0
