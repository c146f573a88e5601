"""The operator's metrics. Jobs are read from the cache at scrape, so a deleted job's series vanish with it."""

from collections import Counter as Tally
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from grpo_api import metric_names as m
from grpo_operator.cache import Cache
from grpo_operator.status import new_restart

REGISTRY = CollectorRegistry()

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
RECONCILE_SECONDS = Histogram(m.RECONCILE_SECONDS.name, m.RECONCILE_SECONDS.help, buckets=_BUCKETS, registry=REGISTRY)
_errors = Counter(m.RECONCILE_ERRORS.name, m.RECONCILE_ERRORS.help, m.RECONCILE_ERRORS.labels, registry=REGISTRY)
_requests = Counter(m.API_REQUESTS.name, m.API_REQUESTS.help, m.API_REQUESTS.labels, registry=REGISTRY)
_restarts = Counter(m.RESTARTS.name, m.RESTARTS.help, m.RESTARTS.labels, registry=REGISTRY)
LEADER = Gauge(m.LEADER.name, m.LEADER.help, registry=REGISTRY)
LAST_WATCH_EVENT = Gauge(m.LAST_WATCH_EVENT.name, m.LAST_WATCH_EVENT.help, registry=REGISTRY)


def count_request(verb: str, resource: str, code: int) -> None:
    _requests.labels(verb, resource, str(code)).inc()


@contextmanager
def count_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        _errors.labels(type(error).__name__).inc()
        raise


def count_restart(old: dict[str, Any], new: dict[str, Any]) -> None:
    if (entry := new_restart(old, new)) is not None:
        _restarts.labels(entry["cause"]).inc()


class JobCollector(Collector):
    """Jobs by state, and the queue."""

    def __init__(self, cache: Cache, depth: Callable[[], int], oldest: Callable[[], float]) -> None:
        self._cache, self._depth, self._oldest = cache, depth, oldest

    def collect(self) -> Iterator[GaugeMetricFamily]:
        by_state: Tally[tuple[str, str]] = Tally()
        info = GaugeMetricFamily(m.JOB_INFO.name, m.JOB_INFO.help, labels=m.JOB_INFO.labels)
        restarts = GaugeMetricFamily(m.JOB_RESTARTS.name, m.JOB_RESTARTS.help, labels=m.JOB_RESTARTS.labels)
        for (namespace, name), job in self._cache.jobs():
            status = job.get("status") or {}
            state = status.get("state") or "Pending"
            by_state[(namespace, state)] += 1
            info.add_metric([namespace, name, state, (status.get("gang") or {}).get("backend", "")], 1)
            restarts.add_metric([namespace, name], status.get("attempt") or 0)
        jobs = GaugeMetricFamily(m.JOBS.name, m.JOBS.help, labels=m.JOBS.labels)
        for labels, count in by_state.items():
            jobs.add_metric(list(labels), count)
        depth = GaugeMetricFamily(m.QUEUE_DEPTH.name, m.QUEUE_DEPTH.help, value=self._depth())
        oldest = GaugeMetricFamily(m.QUEUE_OLDEST.name, m.QUEUE_OLDEST.help, value=self._oldest())
        yield from (jobs, info, restarts, depth, oldest)
