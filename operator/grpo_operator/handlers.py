"""kopf wiring only: each event goes into the cache and enqueues its job. No handler here makes kopf write."""

from typing import Any

import kopf

from grpo_api import names
from grpo_operator import metrics
from grpo_operator.cache import Cache
from grpo_operator.kube import RESOURCES
from grpo_operator.workqueue import WorkQueue

WATCHED_CHILDREN = ("Pod", "Service", "ConfigMap", "PersistentVolumeClaim")
WATCHED_GANG = ("Workload", "PodGroup")


def make_registry(cache: Cache, queue: WorkQueue) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.startup(registry=registry)
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.watching.server_timeout = 600
        settings.watching.client_timeout = 660
        settings.watching.connect_timeout = 10
        settings.networking.request_timeout = 60
        settings.scanning.disabled = True  # the CRD comes with the chart, before the operator

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
    async def job_event(event: Any, **_: Any) -> None:
        metrics.LAST_WATCH_EVENT.set_to_current_time()
        job = dict(event["object"])
        queue.add(cache.drop_job(job) if event["type"] == "DELETED" else cache.put_job(job))

    def watch(kind: str) -> None:
        api_version, plural = RESOURCES[kind]
        group, _, version = api_version.rpartition("/")

        @kopf.on.event(
            group, version, plural, labels={names.LABEL_MANAGED_BY: names.MANAGED_BY}, id=f"{plural}", registry=registry
        )
        async def child_event(event: Any, **_: Any) -> None:
            metrics.LAST_WATCH_EVENT.set_to_current_time()
            item = dict(event["object"])
            deleted = event["type"] == "DELETED"
            key = cache.drop_child(kind, item) if deleted else cache.put_child(kind, item)
            if key is not None:
                queue.add(key)

    for kind in (*WATCHED_CHILDREN, *(WATCHED_GANG if cache.native_gang else ())):
        watch(kind)
    return registry
