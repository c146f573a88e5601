"""kopf wiring only: each event goes into the cache, and news enqueues its job. No handler here makes kopf write."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import kopf

from grpo_api import names
from grpo_operator import metrics
from grpo_operator.cache import Cache
from grpo_operator.cluster_view import ClusterView
from grpo_operator.kube import resource_of
from grpo_operator.watch_health import WatchHealth
from grpo_operator.workqueue import WorkQueue

WATCHED_CHILDREN = ("Pod", "Service", "ConfigMap", "PersistentVolumeClaim")


class Backoffs:
    """Pauses between tries of a watch, without end: kopf drops a watch whose tries are used up, and goes on."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.5, 1.0, 2.0), itertools.repeat(5.0))


class NoDiffBase(kopf.DiffBaseStorage):
    """kopf remembers in an object what it last saw of it, for handlers of changes. There are none here, and to compute
    it for each event took a fifth of the operator's time."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        pass


def make_registry(cache: Cache, queue: WorkQueue, health: WatchHealth, view: ClusterView) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.startup(registry=registry)
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.persistence.diffbase_storage = NoDiffBase()
        settings.watching.server_timeout = 600
        settings.watching.client_timeout = 660
        settings.watching.connect_timeout = 10
        settings.networking.request_timeout = 60
        settings.networking.error_backoffs = Backoffs()
        settings.scanning.disabled = True  # the CRD comes with the chart, before the operator

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
    async def job_event(event: Any, **_: Any) -> None:
        metrics.LAST_WATCH_EVENT.set_to_current_time()
        job = dict(event["object"])
        health.brought(names.KIND, job, event["type"])
        key = cache.drop_job(job) if event["type"] == "DELETED" else cache.put_job(job)
        if key is not None:
            queue.add(key)

    def watch(kind: str) -> None:
        api_version, plural = resource_of(kind)
        group, _, version = api_version.rpartition("/")
        ours = {names.LABEL_MANAGED_BY: names.MANAGED_BY}
        everybodys = kind == "Pod" and cache.capabilities.sees_cluster

        @kopf.on.event(group, version, plural, labels=None if everybodys else ours, id=kind, registry=registry)
        async def child_event(event: Any, **_: Any) -> None:
            metrics.LAST_WATCH_EVENT.set_to_current_time()
            item = dict(event["object"])
            deleted = event["type"] == "DELETED"
            health.brought(kind, item, event["type"])
            if everybodys:
                view.drop_pod(item) if deleted else view.put_pod(item)
                if not ours.items() <= (item["metadata"].get("labels") or {}).items():
                    return
            key = cache.drop_child(kind, item) if deleted else cache.put_child(kind, item)
            if key is not None:
                queue.add(key)

    for kind in (*WATCHED_CHILDREN, *sorted(cache.capabilities.kinds)):
        watch(kind)
    if cache.capabilities.sees_cluster:

        @kopf.on.event("", "v1", "nodes", registry=registry)
        async def node_event(event: Any, **_: Any) -> None:
            item = dict(event["object"])
            health.brought("Node", item, event["type"])
            view.drop_node(item) if event["type"] == "DELETED" else view.put_node(item)

    return registry
