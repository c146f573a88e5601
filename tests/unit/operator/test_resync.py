"""Listing everything anew: what a watch missed, a dead watch, a namespace that is closed to us, a new gang API."""

import asyncio
import logging

import pytest

from grpo_operator import main
from grpo_operator.cache import Cache
from grpo_operator.cluster_view import ClusterView
from grpo_operator.gang.native import V1BETA1
from grpo_operator.kube import KubeError
from grpo_operator.main import WATCH_BEHIND_SECONDS, Operator
from grpo_operator.reconciler import Reconciler
from grpo_operator.resync import Resync
from grpo_operator.watch_health import WatchHealth
from tests.unit.operator.operator_support import child, raw_job
from tests.unit.operator.test_reconciler import SETTINGS, FakeReader, ListedKube
from tests.unit.operator.virtual_time import in_virtual_time, monotonic


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def at(version, namespace="team"):
    return {"metadata": {"namespace": namespace, "resourceVersion": str(version)}}


def health_at(clock, *namespaces):
    return WatchHealth(namespaces, clock)


def test_watch_that_brings_what_lists_show_owes_nothing():
    clock = Clock()
    health = health_at(clock)
    health.brought("Pod", at(7), "ADDED")
    health.listed("Pod", "", {5, 7, 6})
    clock.now = 1000
    assert health.owes() == ("", 0)


def test_watch_that_does_not_bring_what_a_list_shows_is_told():
    clock = Clock()
    health = health_at(clock)
    health.brought("Pod", at(7), "ADDED")
    health.listed("Pod", "", {9})
    health.listed("Service", "", set())
    clock.now = 300
    health.listed("Pod", "", {9, 50})
    clock.now = 361
    assert health.owes() == ("Pods in all namespaces", 361), "since the first list that it did not match"
    health.brought("Service", at(60), "ADDED")
    assert health.owes()[1] == 361, "versions of another kind pay no debt"
    health.brought("Pod", at(9), "ADDED")
    assert health.owes() == ("", 0)


def test_what_went_before_the_watch_began_is_no_debt():
    """The list showed an object, and it was gone when the watch made its own list."""
    clock = Clock()
    health = health_at(clock)
    health.listed("Pod", "", {5, 9})
    health.brought("Pod", at(5), "ADDED")
    clock.now = main.FIRST_RESYNC_SECONDS
    health.listed("Pod", "", {5})
    clock.now += WATCH_BEHIND_SECONDS + 1
    assert health.owes() == ("", 0)
    assert main.FIRST_RESYNC_SECONDS < WATCH_BEHIND_SECONDS


def test_quiet_cluster_owes_nothing():
    """No event for an hour is no sign of a dead watch."""
    clock = Clock()
    health = health_at(clock)
    health.brought("Pod", at(7), "ADDED")
    for clock.now in range(0, 3600, 300):
        health.listed("Pod", "", {7})
    assert health.owes() == ("", 0)


def test_each_namespace_has_its_own_watch():
    clock = Clock()
    health = health_at(clock, "team", "other")
    health.listed("Pod", "team", {5})
    health.listed("Pod", "other", {6})
    health.brought("Pod", at(8, "other"), "ADDED")
    clock.now = 61
    assert health.owes() == ("Pods in team", 61)


async def test_probe_tells_of_a_dead_watch(monkeypatch):
    clock = Clock()
    operator = Operator(SETTINGS)
    operator.resync.health = health_at(clock)
    operator.leading, operator.lease.renewed_at = True, main.time.monotonic()
    operator.resync.health.listed("Pod", "", {5})
    clock.now = WATCH_BEHIND_SECONDS - 1
    assert operator._problem() == ""
    clock.now = WATCH_BEHIND_SECONDS + 1
    assert "the watch of Pods in all namespaces" in operator._problem()
    operator.leading = False
    assert operator._problem() == "", "who stands by watches nothing"


class Denied(ListedKube):
    """Refuses lists in some namespaces as RBAC does."""

    def __init__(self, denied, *items):
        super().__init__(*items)
        self.denied = denied

    async def list(self, kind, namespace="", selector=""):
        if namespace in self.denied:
            raise KubeError(403, "Forbidden", f'pods is forbidden: cannot list in the namespace "{namespace}"')
        return await super().list(kind, namespace, selector)


def resync_of(kube, *namespaces):
    cache = Cache()
    return cache, Resync(kube, cache, Reconciler(kube, cache, SETTINGS, FakeReader()).queue, namespaces, ClusterView())


async def test_namespace_that_may_not_be_read_is_told_and_the_others_go_on(caplog):
    cache, resync = resync_of(Denied(["closed"], raw_job()), "closed", "team")
    with caplog.at_level(logging.WARNING):
        await resync.run()
    assert cache.job(("team", "sums")) is not None
    assert "namespace closed" in caplog.text
    assert "watchNamespaces" in caplog.text


async def test_jobs_of_a_namespace_that_is_closed_later_are_not_taken_for_deleted():
    cache, resync = resync_of(kube := Denied([], raw_job()), "team")
    await resync.run()
    kube.denied = ["team"]
    await resync.run()
    assert cache.job(("team", "sums")) is not None


async def test_cluster_that_may_not_be_read_at_all_ends_the_operator():
    _, resync = resync_of(Denied([""]))
    with pytest.raises(KubeError, match="forbidden"):
        await resync.run()


@pytest.mark.parametrize("plan_all", [False, True])
async def test_listing_anew_plans_for_jobs_of_which_there_is_news_or_for_all(plan_all):
    items = [raw_job(name) for name in ("same", "changed", "lost")]
    pods = [child("Pod", f"{item['metadata']['name']}-0", job=item["metadata"]["name"]) for item in items]
    for version, item in enumerate((*items, *pods)):
        item["metadata"] |= {"uid": f"{item['kind']}-{item['metadata']['name']}", "resourceVersion": str(version)}
    _, resync = resync_of(kube := ListedKube(*items, *pods))
    await resync.run()
    resync._queue._waiting.clear()
    kube.objects["Pod", "changed-0"]["metadata"]["resourceVersion"] = "999"
    del kube.objects["Pod", "lost-0"]
    await resync.run(plan_all=plan_all)
    assert {name for _, name in resync._queue._waiting} == {"changed", "lost", *(["same"] if plan_all else [])}


class Api(ListedKube):
    """Answers in turn whether it serves the gang API, or with an error."""

    def __init__(self, *answers):
        super().__init__()
        self.answers = list(answers)

    async def served(self, api_version):
        if api_version != V1BETA1:
            return set()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"workloads", "podgroups"} if answer else set()

    async def create(self, kind, body, dry_run=False):
        return body

    async def may(self, verb, kind, namespace=""):
        return kind != "Node"


def operator_with(kube, monkeypatch):
    monkeypatch.setattr(main, "FIRST_RESYNC_SECONDS", 0.001)
    monkeypatch.setattr(main, "RESYNC_SECONDS", 0.001)
    monkeypatch.setattr(main, "RETRY_SECONDS", 0.001)
    operator = Operator(SETTINGS)
    operator.kube = kube
    operator.resync = Resync(kube, operator.cache, operator.reconciler.queue, (), ClusterView())
    return operator


async def test_gang_api_that_comes_later_starts_the_process_anew(monkeypatch, caplog):
    kube = Api(False, False, True)
    with caplog.at_level(logging.INFO):
        await asyncio.wait_for(operator_with(kube, monkeypatch)._keep_in_sync(), 5)
    assert kube.answers == []
    assert "what the cluster has for gangs has changed" in caplog.text


@in_virtual_time
async def test_what_went_before_a_watch_began_anew_is_found_soon():
    """Its place in the history was gone (410): it begins with a list, and tells of no deletion before that."""
    kube, times = Api(*[False] * 6), []
    operator = Operator(SETTINGS)
    operator.kube = kube
    operator.resync = Resync(kube, operator.cache, operator.reconciler.queue, (), ClusterView())
    begin = monotonic()
    kube.meanwhile = lambda kind: times.append(monotonic() - begin) if kind == "GRPOJob" else None
    sync = asyncio.create_task(operator._keep_in_sync())
    await asyncio.sleep(400)
    for event in ("ADDED", "MODIFIED", "DELETED"):
        operator.resync.health.brought("GRPOJob", raw_job(), event)
    await asyncio.sleep(100)
    for kind in ("GRPOJob", "Pod"):
        operator.resync.health.brought(kind, raw_job(), None)
    await asyncio.sleep(400)
    sync.cancel()
    assert times == [30, 330, 505, 535, 835]


@pytest.mark.parametrize(
    "trouble", [KubeError(429, "TooManyRequests", "later"), KubeError(500, "", ""), OSError("reset"), TimeoutError()]
)
async def test_api_server_that_is_away_at_a_resync_ends_nothing(trouble, monkeypatch, caplog):
    kube = Api(False, trouble, False, True)
    await asyncio.wait_for(operator_with(kube, monkeypatch)._keep_in_sync(), 5)
    assert kube.answers == [], "tried again until the end"
    assert "again in" in caplog.text
