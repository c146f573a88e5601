"""Lists everything at the start and now and then: the cache is whole, and what a watch missed is found."""

import logging
from collections.abc import AsyncIterator

from grpo_api import names
from grpo_operator.cache import Cache
from grpo_operator.cluster_view import ClusterView
from grpo_operator.handlers import WATCHED_CHILDREN
from grpo_operator.kube import Kube, KubeError, Object
from grpo_operator.watch_health import WatchHealth, version_of
from grpo_operator.workqueue import WorkQueue

logger = logging.getLogger(__name__)


class Resync:
    """Fills the cache from lists, so that it is whole before the first plan, and repairs it later."""

    def __init__(
        self, kube: Kube, cache: Cache, queue: WorkQueue, namespaces: tuple[str, ...], view: ClusterView
    ) -> None:
        self._kube, self._cache, self._queue, self._namespaces, self._view = kube, cache, queue, namespaces, view
        self.health = WatchHealth(namespaces)

    async def run(self, *, plan_all: bool = True) -> None:
        """One pass; jobs of which there is no news are planned for anew where `plan_all`: a clock may have been set.

        A namespace that may not be read is told and left out: the others go on.
        """
        kinds = (names.KIND, *WATCHED_CHILDREN, *sorted(self._cache.capabilities.kinds))
        for namespace in self._namespaces or ("",):
            for kind in kinds:
                try:
                    await self._list(kind, namespace, plan_all)
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
        nodes: dict[str, int] = {}
        async for item in self._listed("Node"):
            nodes[item["metadata"]["name"]] = version_of(item)
            self._view.put_node(item)
        self.health.listed("Node", "", set(nodes.values()))
        self._view.keep_nodes(set(nodes))
        before = self._view.pods()  # what is made while the list is on its way is not in it, and yet not gone
        async for item in self._listed("Pod"):
            before.discard(item["metadata"]["uid"])
            self._view.put_pod(item)
        self._view.forget_pods(before)

    async def _list(self, kind: str, namespace: str, plan_all: bool) -> None:
        cache = self._cache
        selector = "" if kind == names.KIND else f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
        # What is made while the list is on its way is not in it, and yet not gone.
        before = {item["metadata"]["uid"] for item in cache.vanished(kind, set())}
        seen: dict[str, int] = {}
        async for item in self._listed(kind, namespace, selector):
            seen[item["metadata"]["uid"]] = version_of(item)
            key = cache.put_job(item) if kind == names.KIND else cache.put_child(kind, item)
            if kind == names.KIND and plan_all:
                key = (item["metadata"]["namespace"], item["metadata"]["name"])
            if key is not None:
                self._queue.add(key)
        self.health.listed(kind, namespace, set(seen.values()))
        for item in cache.vanished(kind, set(seen)):
            if item["metadata"]["uid"] not in before:
                continue
            if namespace and item["metadata"]["namespace"] != namespace:
                continue
            if kind == names.KIND:
                cache.drop_job(item)
            elif (key := cache.drop_child(kind, item)) is not None:
                self._queue.add(key)

    async def _listed(self, kind: str, namespace: str = "", selector: str = "") -> AsyncIterator[Object]:
        """Without what has been deleted while the list was on its way."""
        self.health.gone.clear()
        async for page in self._kube.pages(kind, namespace, selector):
            for item in page:
                if item["metadata"]["uid"] not in self.health.gone:
                    yield item
