"""Carrying a plan out: the status patch, deletions by UID, what the API server refuses, and Events."""

import copy

import pytest

from grpo_operator import apply
from grpo_operator.cache import Cache
from grpo_operator.kube import KubeError
from grpo_operator.plan import Plan
from tests.unit.operator.fake_kube import FakeKube, merge_patch
from tests.unit.operator.operator_support import (
    UID,
    child,
    deleting,
    disrupted,
    ended,
    later,
    raw_job,
    rfc3339,
    run,
    running,
    running_job,
    with_status,
)

KEY = ("team", "sums")
OTHER = "99999999-2222-3333-4444-555555555555"

OLD = {"state": "Running", "createdAttempt": 0, "progress": {"step": 3, "etaSeconds": 9}, "nodes": {"ready": 2}}
PATCHES = [
    ({}, {"state": "Pending", "nodes": {"ready": 0}}),
    (OLD, OLD),
    (OLD, {"state": "Restarting", "progress": {"step": 4}, "nodes": {"ready": 0}}),
    ({"progress": {"a": {"b": 1, "c": 2}}}, {"progress": {"a": {"c": 3}}}),
    ({"restarts": [{"pod": "x", "fromStep": 1}]}, {"restarts": [{"pod": "y"}]}),
    ({"progress": {"step": 1}}, {}),
]


def test_merge_patch_follows_rfc_7386():
    """The oracle of the next test, by the RFC's own examples (appendix A)."""
    assert merge_patch({"a": "b"}, {"a": None}) == {}
    assert merge_patch({"a": "b", "b": "c"}, {"a": None}) == {"b": "c"}
    assert merge_patch({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}) == {"a": {"b": "d"}}
    assert merge_patch({"a": [{"b": "c"}]}, {"a": [1]}) == {"a": [1]}
    assert merge_patch({}, {"a": {"bb": {"ccc": None}}}) == {"a": {"bb": {}}}


@pytest.mark.parametrize(("old", "new"), PATCHES)
async def test_status_patch_makes_the_status_the_new_one(old, new):
    job = raw_job(status=copy.deepcopy(old))
    kube, cache = FakeKube(job), Cache()
    await apply.patch_status(kube, cache, job, new)
    assert kube.objects["GRPOJob", "sums"]["status"] == new
    assert kube.writes() == [("patch", "GRPOJob", "sums")]
    assert cache.job(KEY)["status"] == new, "the answer goes into the cache at once"


async def test_status_of_a_namesake_made_since_is_not_written():
    kube = FakeKube({**raw_job(), "metadata": {**raw_job()["metadata"], "uid": OTHER}})
    with pytest.raises(KubeError) as error:
        await apply.patch_status(kube, Cache(), raw_job(), {"state": "Running"})
    assert error.value.code == 409
    assert "status" not in kube.objects["GRPOJob", "sums"]


async def test_namesake_of_a_pod_is_not_deleted():
    kube = FakeKube(child("Pod", "sums-0", uid="new"), child("Pod", "sums-1", uid="held"))
    doomed = [("Pod", child("Pod", "sums-0", uid="old")), ("Pod", child("Pod", "sums-1", uid="held"))]
    await apply.delete_all(kube, Plan(status={}, delete=doomed))
    assert set(kube.objects) == {("Pod", "sums-0")}


@pytest.mark.parametrize(("seconds", "forced"), [(None, False), (0, False), (80, False), (100, True)])
async def test_pod_that_does_not_go_is_forced(seconds, forced):
    pod = running(0)
    if seconds is not None:
        pod["metadata"]["deletionTimestamp"] = rfc3339(later(-seconds))
    kube = FakeKube(pod)
    await apply.force_stuck(kube, [pod], later(0))
    assert kube.writes() == ([("delete", "Pod", "sums-0", "grace=0")] if forced else [])


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


QUOTA = 'pods "sums-0" is forbidden: exceeded quota: tight, requested: pods=1, used: pods=1, limited: pods=1'
TERMINATING = "unable to create new content in namespace team because it is being terminated"


@pytest.mark.parametrize(
    ("code", "message", "reason"),
    [
        (403, QUOTA, "QuotaExceeded"),
        (403, 'violates PodSecurity "restricted:latest": hostPath volumes', "CreateRefused"),
        (403, TERMINATING, "CreateRefused"),
        (422, "spec.containers[0].image: Required value", "CreateRefused"),
        (400, "admission webhook denied the request", "CreateRefused"),
    ],
)
async def test_refusal_is_told_and_the_rest_waits(code, message, reason):
    kube = FakeKube()
    kube.refusals["ConfigMap", "sums-config"] = KubeError(code, "Forbidden", message)
    fault = await create(kube, CONFIG, SERVICE)
    assert fault.reason == reason
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
DEPLOYMENTS = child("ConfigMap", "sums-config", owner=OTHER)
DEPLOYMENTS["metadata"]["ownerReferences"][0] |= {"apiVersion": "apps/v1", "kind": "Deployment"}


@pytest.mark.parametrize(
    ("held", "manifest"),
    [
        (child("ConfigMap", "sums-config", owner=None), CONFIG),
        (DEPLOYMENTS, CONFIG),
        (child("ConfigMap", "sums-config", job="other", owner=OTHER), CONFIG),
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
        child("ConfigMap", "sums-config", owner=OTHER),
        deleting(child("ConfigMap", "sums-config", owner=OTHER)),
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


def told(old, new):
    return [(kind, reason) for kind, reason, _ in apply.events(old, new)]


def test_nothing_new_is_no_event():
    status = running_job()["status"]
    assert told(status, status) == []
    assert told(status, {**status, "progress": {"step": 9}}) == []


def test_events_of_a_life():
    job = raw_job()
    pending = run(job).status
    assert told({}, pending) == []
    complete = run(with_status(job, run(job)), running(0), running(1)).status
    assert told(pending, complete) == [("Normal", "PodsCreated")]
    trains = {**complete, "state": "Running", "reason": "Training"}
    assert told(complete, trains) == [("Normal", "Training")]
    saved = {**trains, "checkpoint": {"step": 10, "path": "/checkpoints/team.sums/step-00000010"}}
    ((_, reason, message),) = apply.events(trains, saved)
    assert reason == "Checkpoint"
    assert "step-00000010" in message
    succeeded = run({**job, "status": saved}, ended(0, 0)).status
    assert told(saved, succeeded) == [("Normal", "Succeeded")]


def test_restart_is_a_warning_with_its_cause():
    job = running_job()
    status = run(job, running(0), disrupted(running(1), "PreemptionByScheduler")).status
    ((kind, reason, message),) = apply.events(job["status"], status)
    assert (kind, reason) == ("Warning", "Restarting")
    assert "Preempted" in message
    assert "sums-1" in message
    waits = run(with_status(job, run(job, running(0), ended(1, 1)))).status
    assert told(run(job, running(0), ended(1, 1)).status, waits) == []


def test_end_by_failure_is_a_warning_with_its_words():
    job = running_job(runPolicy={"maxRestarts": 0})
    failed = run(job, running(0), ended(1, 1, message="boom")).status
    ((kind, reason, message),) = apply.events(job["status"], failed)
    assert (kind, reason) == ("Warning", "Failed")
    assert "boom" in message
    invalid = run(raw_job(rollout={"n": 1})).status
    assert "spec.rollout.n" in apply.events({}, invalid)[0][2]


def test_suspend_and_resume_are_told():
    job = running_job()
    job["spec"]["runPolicy"] = {"suspend": True}
    suspended = run(job).status
    assert told(job["status"], suspended) == [("Normal", "Suspended")]
    job = {**job, "spec": {**job["spec"], "runPolicy": {}}, "status": suspended}
    assert told(suspended, run(job).status) == [("Normal", "Resumed")]


@pytest.mark.parametrize("state", ["Pending", "Restarting"])
@pytest.mark.parametrize("reason", ["QuotaExceeded", "CreateRefused", "NameConflict"])
def test_refused_child_is_a_warning(state, reason):
    old = {"state": state, "reason": "CreatingPods", "attempt": 1}
    new = {**old, "reason": reason, "message": "Pod sums-1: no"}
    assert apply.events(old, new) == [("Warning", reason, "Pod sums-1: no")]
    assert told(new, new) == []


@pytest.mark.parametrize(("state", "reason"), [("Scheduling", "Unschedulable"), ("Starting", "ImagePullBackOff")])
def test_pod_that_cannot_start_is_a_warning(state, reason):
    old = {"state": state, "reason": state}
    assert told(old, {"state": state, "reason": reason, "message": "why"}) == [("Warning", reason)]


async def test_event_names_the_job_and_a_refused_one_is_dropped():
    kube = FakeKube()
    await apply.emit(kube, raw_job(), [("Normal", "Training", "x" * 2000)], later(0), "operator-1")
    (event,) = kube.objects.values()
    involved = event["involvedObject"]
    assert (involved["kind"], involved["name"], involved["uid"]) == ("GRPOJob", "sums", UID)
    assert len(event["message"]) == 1024, "the API server takes 1 kB"
    assert event["reportingInstance"] == "operator-1"
    kube.refusals["Event", event["metadata"]["name"]] = KubeError(403, "Forbidden", "namespace is terminating")
    await apply.emit(kube, raw_job(), [("Normal", "Training", "x" * 2000)], later(0), "operator-1")
