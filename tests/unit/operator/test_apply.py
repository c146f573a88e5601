"""Carrying a plan out: the status patch, deletions by UID, what the API server refuses."""

import copy

import pytest

from grpo_operator import apply
from grpo_operator.cache import Cache
from grpo_operator.children.meta import belongs_to
from grpo_operator.kube import KubeError
from grpo_operator.plan import Plan
from tests.unit.operator.fake_kube import FakeKube
from tests.unit.operator.operator_support import (
    EARLIER,
    NOW,
    POD_GROUP,
    UID,
    WORKLOAD,
    child,
    deleting,
    later,
    left_over,
    raw_job,
    rfc3339,
    running,
)
from tests.unit.operator.test_observe import cache_of, seen

KEY = ("team", "sums")

OLD = {"state": "Running", "createdAttempt": 0, "progress": {"step": 3, "etaSeconds": 9}, "nodes": {"ready": 2}}
PATCHES = [
    ({}, {"state": "Pending", "nodes": {"ready": 0}}),
    (OLD, OLD),
    (OLD, {"state": "Restarting", "progress": {"step": 4}, "nodes": {"ready": 0}}),
    ({"progress": {"a": {"b": 1, "c": 2}}}, {"progress": {"a": {"c": 3}}}),
    ({"restarts": [{"pod": "x", "fromStep": 1}]}, {"restarts": [{"pod": "y"}]}),
    ({"progress": {"step": 1}}, {}),
]


@pytest.mark.parametrize(("old", "new"), PATCHES)
async def test_status_patch_makes_the_status_the_new_one(old, new):
    job = raw_job(status=copy.deepcopy(old))
    kube, cache = FakeKube(job), Cache()
    await apply.patch_status(kube, cache, job, new, NOW)
    new = {**new, "lastUpdateTime": rfc3339(NOW)}
    assert kube.objects["GRPOJob", "sums"]["status"] == new
    assert kube.writes() == [("patch", "GRPOJob", "sums")]
    assert cache.job(KEY)["status"] == new, "the answer goes into the cache at once"


async def test_status_of_a_namesake_made_since_is_not_written():
    kube = FakeKube({**raw_job(), "metadata": {**raw_job()["metadata"], "uid": EARLIER}})
    with pytest.raises(KubeError) as error:
        await apply.patch_status(kube, Cache(), raw_job(), {"state": "Running"}, NOW)
    assert error.value.code == 422
    assert "status" not in kube.objects["GRPOJob", "sums"]


@pytest.mark.parametrize("since", [{"state": "Restarting", "attempt": 1}, {"state": "Failed", "attempt": 0}])
async def test_decision_of_another_operator_is_not_taken_back(since):
    """This one was frozen before it sent its patch, and woke up without its Lease."""
    old = {"state": "Starting", "attempt": 0}
    kube = FakeKube(raw_job(status=since))
    with pytest.raises(KubeError) as error:
        await apply.patch_status(kube, Cache(), raw_job(status=old), {"state": "Running", "attempt": 0}, NOW)
    assert error.value.code == 422
    assert kube.objects["GRPOJob", "sums"]["status"] == since


async def test_namesake_of_a_pod_is_not_deleted():
    kube = FakeKube(child("Pod", "sums-0", uid="new"), child("Pod", "sums-1", uid="held"))
    doomed = [("Pod", child("Pod", "sums-0", uid="old")), ("Pod", child("Pod", "sums-1", uid="held"))]
    await apply.delete_all(kube, Cache(), Plan(status={}, delete=doomed))
    assert set(kube.objects) == {("Pod", "sums-0")}


@pytest.mark.parametrize("grace", [1, 30, 120])
@pytest.mark.parametrize("owner", [UID, EARLIER], ids=["ours", "an earlier job's"])
async def test_pod_that_does_not_go_is_forced_after_its_grace(grace, owner):
    pod, going = running(0), {}
    pod["metadata"]["ownerReferences"][0]["uid"] = owner
    kube = FakeKube(raw_job(), pod)

    async def look(now):
        return await apply.force_stuck(kube, seen(cache_of(pod)), going, now)

    assert await look(1000) is None, "nobody told it to go"
    pod["metadata"] |= {"deletionTimestamp": rfc3339(later(0)), "deletionGracePeriodSeconds": grace}
    assert await look(5000) == grace + 90
    assert await look(5089 + grace) == 1
    assert kube.writes() == []
    assert await look(5090 + grace) is None
    assert kube.writes() == [("delete", "Pod", "sums-0", "grace=0")]
    await apply.force_stuck(kube, seen(cache_of()), going, 5091 + grace)
    assert going == {}


async def test_pod_that_is_deleted_without_grace_is_not_forced():
    """Its kubelet or a person did that, and a force of ours would add nothing."""
    pod, going = running(0), {}
    pod["metadata"] |= {"deletionTimestamp": rfc3339(later(0)), "deletionGracePeriodSeconds": 30}
    kube = FakeKube(raw_job(), pod)
    await apply.force_stuck(kube, seen(cache_of(pod)), going, 5000)
    pod["metadata"]["deletionGracePeriodSeconds"] = 0
    await apply.force_stuck(kube, seen(cache_of(pod)), going, 5100)
    assert kube.writes() == []


def owned_by(**fields):
    return {**left_over(0)["metadata"]["ownerReferences"][0], **fields}


MINE = owned_by()
LABELS = left_over(0)["metadata"]["labels"]


@pytest.mark.parametrize(
    ("pod", "forced"),
    [
        (left_over(0), True),
        (left_over(0, name="sums-1"), False),
        (left_over(0, name="sums"), False),
        (left_over(0, deletionTimestamp=None), False),
        (left_over(0, ownerReferences=[]), False),
        (left_over(0, ownerReferences=[owned_by(kind="Job", apiVersion="batch/v1")]), False),
        (left_over(0, ownerReferences=[owned_by(apiVersion="else.dev/v1")]), False),
        (left_over(0, ownerReferences=[owned_by(controller=False)]), False),
        (left_over(0, ownerReferences=[owned_by(name="other")]), False),
        (left_over(0, ownerReferences=[MINE, owned_by(kind="Job", apiVersion="batch/v1", controller=False)]), False),
        (left_over(0, labels={}), False),
        (left_over(0, labels={**LABELS, "app.kubernetes.io/managed-by": "helm"}), False),
        (left_over(0, labels={**LABELS, "grpo.dev/job-name": "other"}), False),
        (left_over(0, labels={**LABELS, "grpo.dev/node-rank": "1"}), False),
    ],
    ids=[
        *("ours", "another rank's name", "no rank's name", "not told to go", "no owner", "a Job's", "another group's"),
        *("not controlled", "another job's", "somebody else's too"),
        *("no labels", "managed by another", "another job's label", "another rank's label"),
    ],
)
async def test_pod_of_an_earlier_job_is_forced_only_where_it_is_surely_ours(pod, forced):
    kube, going = FakeKube(raw_job(), pod), {}
    for now in (0, 1000):
        await apply.force_stuck(kube, seen(cache_of(pod)), going, now)
    assert kube.writes() == ([("delete", "Pod", pod["metadata"]["name"], "grace=0")] if forced else [])


@pytest.mark.parametrize("successor", [EARLIER, None], ids=["has its namesake", "is there no more"])
async def test_pod_is_not_taken_for_an_earlier_jobs_where_the_watch_of_jobs_is_behind(successor):
    """The cache shows a job that is deleted, and the pod is of its namesake or of nobody's."""
    there = [] if successor is None else [{**raw_job(), "metadata": {**raw_job()["metadata"], "uid": successor}}]
    kube, going = FakeKube(left_over(0), *there), {}
    for now in (0, 1000):
        await apply.force_stuck(kube, seen(cache_of(left_over(0))), going, now)
    assert kube.writes() == []


async def create(kube, *manifests, cache=None):
    plan = Plan(status={}, create=[copy.deepcopy(item) for item in manifests])
    return await apply.create_all(kube, cache or Cache(), raw_job(), plan)


CONFIG = child("ConfigMap", "sums-config")
SERVICE = child("Service", "sums")
CLAIM = child("PersistentVolumeClaim", "sums-checkpoints")


async def test_children_are_made_in_order_and_seen_at_once():
    kube, cache = FakeKube(), Cache()
    assert await create(kube, CONFIG, SERVICE, cache=cache) is None
    assert kube.writes() == [("create", "ConfigMap", "sums-config"), ("create", "Service", "sums")]
    assert set(cache.children(KEY)) == {("ConfigMap", "sums-config"), ("Service", "sums")}


@pytest.mark.parametrize("first", [True, False])
async def test_owner_that_waits_is_named_by_its_uid(first):
    """One that is gone again is none: the garbage collector takes what has only such owners."""
    workload, group = child(WORKLOAD, "sums", uid="of the Workload"), child(POD_GROUP, "sums-0")
    belongs_to(group, "scheduling.k8s.io/v1beta1", "Workload", "sums")
    kube = FakeKube()
    assert await create(kube, *([workload] if first else []), group) is None
    _, *others = kube.objects[POD_GROUP, "sums-0"]["metadata"]["ownerReferences"]
    assert [owner["uid"] for owner in others] == (["of the Workload"] if first else [])


async def test_refusal_is_told_and_the_rest_waits():
    kube = FakeKube()
    message = "unable to create new content in namespace team because it is being terminated"
    kube.refusals["ConfigMap", "sums-config"] = KubeError(403, "Forbidden", message)
    fault = await create(kube, CONFIG, SERVICE)
    assert fault.reason == "CreateRefused"
    assert message in fault.message
    assert "ConfigMap sums-config" in fault.message
    assert ("create", "Service", "sums") not in kube.writes()


@pytest.mark.parametrize(("code", "reason"), [(500, "InternalError"), (429, "TooManyRequests"), (409, "Conflict")])
async def test_passing_trouble_is_left_to_the_queues_backoff(code, reason):
    kube = FakeKube()
    kube.refusals["ConfigMap", "sums-config"] = KubeError(code, reason, "later")
    with pytest.raises(KubeError):
        await create(kube, CONFIG)


async def test_own_object_that_the_watch_has_not_shown_is_taken():
    kube, cache = FakeKube(CONFIG), Cache()
    assert await create(kube, CONFIG, SERVICE, cache=cache) is None
    assert ("ConfigMap", "sums-config") in cache.children(KEY)
    assert ("create", "Service", "sums") in kube.writes()


async def test_kept_claim_of_an_earlier_job_of_this_name_is_taken():
    kube, cache = FakeKube(child("PersistentVolumeClaim", "sums-checkpoints", owner=None)), Cache()
    assert await create(kube, CLAIM, cache=cache) is None
    assert ("PersistentVolumeClaim", "sums-checkpoints") in cache.children(KEY)


FOREIGN_CLAIM = child("PersistentVolumeClaim", "sums-checkpoints", owner=None)
FOREIGN_CLAIM["metadata"]["labels"] = {}
DEPLOYMENTS = child("ConfigMap", "sums-config", owner=EARLIER)
DEPLOYMENTS["metadata"]["ownerReferences"][0] |= {"apiVersion": "apps/v1", "kind": "Deployment"}


@pytest.mark.parametrize(
    ("held", "manifest"),
    [
        (child("ConfigMap", "sums-config", owner=None), CONFIG),
        (DEPLOYMENTS, CONFIG),
        (child("ConfigMap", "sums-config", job="other", owner=EARLIER), CONFIG),
        (FOREIGN_CLAIM, CLAIM),
        (child("PersistentVolumeClaim", "sums-checkpoints", job="other", owner=None), CLAIM),
    ],
    ids=["nobody's", "a Deployment's", "another job's", "a claim without label", "another job's kept claim"],
)
async def test_foreign_object_of_the_name_is_told_and_not_touched(held, manifest):
    kube, cache = FakeKube(held), Cache()
    before = copy.deepcopy(kube.objects)
    fault = await create(kube, manifest, cache=cache)
    assert fault.reason == "NameConflict"
    assert held["metadata"]["name"] in fault.message
    assert "delete or rename it" in fault.message
    assert kube.objects == before
    assert kube.writes() == [("create", manifest["kind"], manifest["metadata"]["name"])]
    assert cache.children(KEY) == {}


@pytest.mark.parametrize(
    "held",
    [
        child("ConfigMap", "sums-config", owner=EARLIER),
        deleting(child("ConfigMap", "sums-config", owner=EARLIER)),
        deleting(child("ConfigMap", "sums-config")),
    ],
)
async def test_object_of_an_earlier_namesake_is_waited_for(held):
    cache = Cache()
    fault = await create(FakeKube(held), CONFIG, cache=cache)
    assert fault.reason == "CreatingPods"
    assert "sums-config" in fault.message
    assert cache.children(KEY) == {}


async def test_object_that_went_between_is_tried_again_later():
    kube = FakeKube()
    kube.refusals["ConfigMap", "sums-config"] = KubeError(409, "AlreadyExists", "exists")
    assert (await create(kube, CONFIG)).reason == "CreatingPods"
