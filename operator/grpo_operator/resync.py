"""Lists everything at the start and now and then: the cache is whole, and what a watch missed is found."""

import logging

from grpo_api import names
from grpo_operator.cache import Cache
from grpo_operator.cluster_view import ClusterView
from grpo_operator.handlers import WATCHED_CHILDREN
from grpo_operator.kube import Kube, KubeError
from grpo_operator.watch_health import WatchHealth
from grpo_operator.workqueue import WorkQueue

logger = logging.getLogger(__name__)


class Resync:
    """Fills the cache from lists, so that it is whole before the first plan, and repairs it later."""

    def __init__(
        self, kube: Kube, cache: Cache, queue: WorkQueue, namespaces: tuple[str, ...], view: ClusterView
    ) -> None:
        self._kube, self._cache, self._queue, self._namespaces, self._view = kube, cache, queue, namespaces, view
        self.health = WatchHealth(namespaces)

    async def run(self) -> None:
        """One pass. A namespace that may not be read is told and left out: the others go on."""
        kinds = (names.KIND, *WATCHED_CHILDREN, *sorted(self._cache.capabilities.kinds))
        for namespace in self._namespaces or ("",):
            for kind in kinds:
                try:
                    await self._list(kind, namespace)
                except KubeError as error:
                    if error.code != 403 or not namespace:
                        raise
                    logger.warning(
                        "namespace %s: %s: give the operator its role there (the chart's `watchNamespaces`), "
                        "or take the namespace off the list",
                        namespace,
                        error.message,
                    )

        if self._cache.capabilities.sees_cluster:
            await self._list_cluster()

    async def _list_cluster(self) -> None:
        nodes = await self._kube.list("Node")
        self.health.listed("Node", "", nodes)
        for item in nodes:
            self._view.put_node(item)
        self._view.keep_nodes({item["metadata"]["name"] for item in nodes})
        before = self._view.pods()  # what is made while the list is on its way is not in it, and yet not gone
        pods = await self._kube.list("Pod")
        for item in pods:
            self._view.put_pod(item)
        self._view.forget_pods(before - {item["metadata"]["uid"] for item in pods})

    async def _list(self, kind: str, namespace: str) -> None:
        cache = self._cache
        selector = "" if kind == names.KIND else f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
        # What is made while the list is on its way is not in it, and yet not gone.
        before = {item["metadata"]["uid"] for item in cache.vanished(kind, set())}
        items = await self._kube.list(kind, namespace, selector)
        self.health.listed(kind, namespace, items)
        seen = {item["metadata"]["uid"] for item in items}
        for item in items:
            key = cache.put_job(item) if kind == names.KIND else cache.put_child(kind, item)
            if key is not None:
                self._queue.add(key)
        for item in cache.vanished(kind, seen):
            if item["metadata"]["uid"] not in before:
                continue
            if namespace and item["metadata"]["namespace"] != namespace:
                continue
            if kind == names.KIND:
                cache.drop_job(item)
            elif (key := cache.drop_child(kind, item)) is not None:
                self._queue.add(key)
