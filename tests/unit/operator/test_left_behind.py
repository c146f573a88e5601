"""What the garbage collector leaves of deleted jobs: deleted after a while, where it is surely ours."""

import copy

import pytest

from grpo_operator.children.meta import belongs_to
from grpo_operator.left_behind import LeftBehind
from tests.unit.operator.fake_kube import FakeKube
from tests.unit.operator.operator_support import (
    EARLIER,
    POD_GROUP,
    UID,
    WORKLOAD,
    child,
    deleting,
    later,
    left_over,
    raw_job,
    running,
)
from tests.unit.operator.test_observe import cache_of
from tests.unit.operator.test_reconciler import KEY, Rig, running_at


def of_earlier(kind, name):
    return child(kind, name, owner=EARLIER)


def pod_of_earlier(rank, **metadata):
    item = left_over(rank, **metadata)
    del item["metadata"]["deletionTimestamp"]
    return item


def group_of_earlier(*more):
    return belongs_to(of_earlier(POD_GROUP, "sums-0"), *(more or ("scheduling.k8s.io/v1beta1", "Workload", "sums")))


def edited(item, **owner):
    item["metadata"]["ownerReferences"][0] |= owner
    return item


ALL = (
    pod_of_earlier(0),
    pod_of_earlier(1),
    of_earlier("Service", "sums"),
    of_earlier("ConfigMap", "sums-config"),
    of_earlier(WORKLOAD, "sums"),
    group_of_earlier(),
)


async def twice(kube, cache, seconds=90.0):
    """Two looks, `seconds` apart. Returns what the second one answers."""
    left_behind = LeftBehind(kube, cache)
    assert await left_behind.collect(KEY, 1000) == 90
    assert kube.requests == []
    return await left_behind.collect(KEY, 1000 + seconds)


@pytest.mark.parametrize("successor", [True, False], ids=["with a namesake", "with none"])
async def test_what_is_left_goes_when_the_garbage_collector_has_had_its_time(successor):
    items = ALL[1:] if successor else ALL
    mine = [raw_job(), running(0)] if successor else []
    kube, cache = FakeKube(*items, *mine), cache_of(*items, *mine[1:])
    if not successor:
        cache.drop_job(raw_job())
    assert await twice(kube, cache, 89.0) == 1
    assert kube.requests == []
    await twice(kube, cache)
    assert len(kube.writes()) == len(items)
    assert list(kube.objects) == [(item["kind"], item["metadata"]["name"]) for item in mine]


FOREIGN = {
    "nobody's": child("ConfigMap", "sums-config", owner=None),
    "a Deployment's": edited(of_earlier("ConfigMap", "sums-config"), apiVersion="apps/v1", kind="Deployment"),
    "another group's": edited(of_earlier("Service", "sums"), apiVersion="else.dev/v1"),
    "not controlled": edited(of_earlier("Service", "sums"), controller=False),
    "somebody else's too": belongs_to(of_earlier("Service", "sums"), "apps/v1", "Deployment", "sums"),
    "a group that is somebody else's too": group_of_earlier("apps/v1", "Deployment", "sums"),
    "managed by another": edited(of_earlier("Service", "sums")),
    "another rank's name": pod_of_earlier(0, name="sums-1"),
    "a claim": of_earlier("PersistentVolumeClaim", "sums-checkpoints"),
    "told to go": deleting(of_earlier("Service", "sums")),
    "this job's": child("Service", "sums"),
}
FOREIGN["managed by another"]["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "helm"


@pytest.mark.parametrize("item", FOREIGN.values(), ids=FOREIGN)
async def test_what_is_not_surely_ours_and_left_stays(item):
    item = copy.deepcopy(item)
    kube, left_behind = FakeKube(raw_job(), item), LeftBehind(FakeKube(), cache_of(item))
    for now in (0, 1000):
        assert await left_behind.collect(KEY, now) is None
    assert kube.requests == []


@pytest.mark.parametrize("cached", [True, False], ids=["shows another job", "shows none"])
async def test_children_of_a_job_that_the_cache_does_not_show_stay(cached):
    """The watch of jobs is behind. The API server knows that it is there."""
    there = {**raw_job(), "metadata": {**raw_job()["metadata"], "uid": EARLIER}}
    kube, cache = FakeKube(there, *ALL), cache_of(*ALL)
    if not cached:
        cache.drop_job(raw_job())
    await twice(kube, cache)
    assert kube.writes() == []


async def test_time_begins_anew_for_each_object():
    kube, cache = FakeKube(), cache_of(of_earlier("Service", "sums"))
    left_behind = LeftBehind(kube, cache)
    await left_behind.collect(KEY, 0)
    cache.drop_child("Service", of_earlier("Service", "sums"))
    assert await left_behind.collect(KEY, 50) is None
    cache.put_child("Service", of_earlier("Service", "sums"))
    assert await left_behind.collect(KEY, 100) == 90
    cache.put_child("ConfigMap", of_earlier("ConfigMap", "sums-config"))
    await left_behind.collect(KEY, 150)
    await left_behind.collect(KEY, 190)
    assert kube.writes() == [("delete", "Service", "sums")]


@pytest.mark.parametrize("successor", [True, False], ids=["with a namesake", "with none"])
async def test_reconcile_looks_after_it(successor):
    rig = Rig(raw_job(), of_earlier("ConfigMap", "sums-config"), of_earlier("Service", "sums"))
    if not successor:
        rig.cache.drop_job(rig.cache.job(KEY))
        rig.kube.objects.pop(("GRPOJob", "sums"))
    for seconds in (0, 89):
        rig.now = later(seconds)
        await rig.reconcile()
        assert not [request for request in rig.kube.writes() if request[0] == "delete"]
    rig.now = later(91)
    await rig.reconcile()
    kept = {owner["uid"] for item in rig.kube.objects.values() for owner in item["metadata"].get("ownerReferences", [])}
    assert kept == ({UID} if successor else set())


async def test_job_of_another_controller_has_its_earlier_ones_children_left_alone():
    rig = Rig(raw_job(runPolicy={"managedBy": "example.com/other"}), of_earlier("Service", "sums"))
    for seconds in (0, 1000):
        rig.now = later(seconds)
        await rig.reconcile()
    assert rig.kube.writes() == []


async def test_live_job_costs_no_question():
    rig = Rig(raw_job(), running_at("10.0.0.7"), running(1))
    await rig.reconcile()
    rig.watch()
    rig.now = later(1000)
    rig.kube.requests.clear()
    await rig.reconcile()
    assert not [request for request in rig.kube.requests if request[0] == "list" and request[1] == "GRPOJob"]
