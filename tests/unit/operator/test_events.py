"""Events of a job: what is worth one, and how its like is counted up."""

import pytest

from grpo_operator import events
from grpo_operator.kube import KubeError
from tests.unit.operator.fake_kube import FakeKube
from tests.unit.operator.operator_support import (
    UID,
    disrupted,
    ended,
    later,
    raw_job,
    run,
    running,
    running_job,
    with_status,
)

KEY = ("team", "sums")


def told(old, new):
    return [(kind, reason) for kind, reason, _ in events.told(old, new)]


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
    assert told(pending, trains) == [("Normal", "Training")], "one Event tells of pods that are made and run by now"
    saved = {**trains, "checkpoint": {"step": 10, "path": "/checkpoints/team.sums/step-00000010"}}
    ((_, reason, message),) = events.told(trains, saved)
    assert reason == "Checkpoint"
    assert "step-00000010" in message
    succeeded = run({**job, "status": saved}, ended(0, 0)).status
    assert told(saved, succeeded) == [("Normal", "Succeeded")]


def test_restart_is_a_warning_with_its_cause():
    job = running_job()
    status = run(job, running(0), disrupted(running(1), "PreemptionByScheduler")).status
    ((kind, reason, message),) = events.told(job["status"], status)
    assert (kind, reason) == ("Warning", "Restarting")
    assert "Preempted" in message
    assert "sums-1" in message
    waits = run(with_status(job, run(job, running(0), ended(1, 1)))).status
    assert told(run(job, running(0), ended(1, 1)).status, waits) == []


def test_end_by_failure_is_a_warning_with_its_words():
    job = running_job(runPolicy={"maxRestarts": 0})
    failed = run(job, running(0), ended(1, 1, message="boom")).status
    ((kind, reason, message),) = events.told(job["status"], failed)
    assert (kind, reason) == ("Warning", "Failed")
    assert "boom" in message
    invalid = run(raw_job(rollout={"n": 1})).status
    assert "spec.rollout.n" in events.told({}, invalid)[0][2]


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
    assert events.told(old, new) == [("Warning", reason, "Pod sums-1: no")]
    assert told(new, new) == []


@pytest.mark.parametrize(("state", "reason"), [("Scheduling", "Unschedulable"), ("Starting", "ImagePullBackOff")])
def test_pod_that_cannot_start_is_a_warning(state, reason):
    old = {"state": state, "reason": state}
    assert told(old, {"state": state, "reason": reason, "message": "why"}) == [("Warning", reason)]


def test_silent_node_of_a_running_job_is_a_warning():
    old = {"state": "Running", "reason": "Training", "message": ""}
    new = {"state": "Running", "reason": "NodeUnreachable", "message": "node b does not answer"}
    assert events.told(old, new) == [("Warning", "NodeUnreachable", "node b does not answer")]
    assert told(new, new) == told(new, old) == []


def test_kubelet_that_goes_to_and_fro_over_an_image_is_told_once():
    pulling = {"state": "Starting", "reason": "ErrImagePull", "message": "x"}
    waiting = {"state": "Starting", "reason": "ImagePullBackOff", "message": "y"}
    assert events.told({"state": "Starting", "reason": "Starting"}, pulling) != []
    assert events.told(pulling, waiting) == events.told(waiting, pulling) == []


@pytest.fixture
def kube():
    return FakeKube()


async def write(writer, *told, at=0.0, job=None):
    await writer.write(job or raw_job(), list(told), later(at))


def kept(kube):
    """(reason, count, message) of the Events in the API server."""
    return [(item["reason"], item["count"], item["message"]) for item in kube.objects.values()]


def saved(step):
    return ("Normal", "Checkpoint", f"step {step} is saved")


async def test_event_names_the_job(kube):
    await write(events.EventWriter(kube, "operator-1"), ("Normal", "Training", "x" * 2000))
    (event,) = kube.objects.values()
    involved = event["involvedObject"]
    assert (involved["kind"], involved["name"], involved["uid"]) == ("GRPOJob", "sums", UID)
    assert len(event["message"]) == 1024, "the API server takes 1 kB"
    assert event["reportingInstance"] == "operator-1"


async def test_refused_event_is_dropped(kube):
    kube.create = refuse
    await write(events.EventWriter(kube, "operator-1"), ("Normal", "Training", "x"))
    assert kept(kube) == []


async def refuse(kind, body):
    raise KubeError(403, "Forbidden", "namespace is terminating")


async def test_checkpoints_of_weeks_are_one_event_that_tells_the_newest(kube):
    writer = events.EventWriter(kube, "operator-1")
    for step in range(1, 101):
        await write(writer, saved(step), at=60 * step)
    assert kept(kube) == [("Checkpoint", 100, "step 100 is saved")]
    (event,) = kube.objects.values()
    assert (event["firstTimestamp"], event["lastTimestamp"]) == ("2026-03-01T12:01:00Z", "2026-03-01T13:40:00Z")


async def test_same_words_again_are_counted_and_other_words_are_another_event(kube):
    writer = events.EventWriter(kube, "operator-1")
    for at, message in enumerate(["a", "b", "a", "a"]):
        await write(writer, ("Warning", "Unschedulable", message), at=at)
    assert sorted(kept(kube)) == [("Unschedulable", 1, "b"), ("Unschedulable", 3, "a")]


async def test_event_that_the_api_server_has_dropped_is_made_anew(kube):
    writer = events.EventWriter(kube, "operator-1")
    await write(writer, saved(1))
    kube.objects.clear()
    await write(writer, saved(2), at=4000)
    assert kept(kube) == [("Checkpoint", 1, "step 2 is saved")]


async def test_next_job_of_the_name_has_its_own_events(kube):
    writer, other = events.EventWriter(kube, "operator-1"), raw_job()
    other["metadata"]["uid"] = "another"
    await write(writer, saved(1))
    await write(writer, saved(1), job=other)
    assert [item["involvedObject"]["uid"] for item in kube.objects.values()] == [UID, "another"]


async def test_what_is_remembered_is_bounded_and_goes_with_the_job(kube):
    writer = events.EventWriter(kube, "operator-1")
    for number in range(100):
        await write(writer, ("Warning", "Restarting", str(number)))
    assert len(writer._series[KEY]) == events.MAX_SERIES
    writer.forget(KEY)
    assert writer._series == {}
