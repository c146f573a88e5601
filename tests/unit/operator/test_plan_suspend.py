"""Suspend and resume: no restart, no failure, and no pods of two attempts at once."""

import copy

import pytest

from tests.unit.operator.operator_support import (
    NATIVE,
    POD_GROUP,
    WORKLOAD,
    World,
    child,
    condition,
    deleted,
    deleting,
    end,
    ended,
    later,
    raw_job,
    run,
    running,
    running_job,
    with_status,
)


def suspended(job, suspend=True):
    job = copy.deepcopy(job)
    job["spec"].setdefault("runPolicy", {})["suspend"] = suspend
    return job


def set_suspend(world, suspend):
    world.job = suspended(world.job, suspend)


def test_state_is_suspended_only_once_the_pods_are_gone():
    job = suspended(running_job())
    pods = [running(0), running(1)]
    made = run(job, *pods)
    assert deleted(made) == ["sums-0", "sums-1"]
    assert made.create == []
    assert made.status["state"] != "Suspended"
    assert made.status["reason"] == "Suspending"
    assert condition(made.status, "Suspended")["status"] == "False"
    assert condition(made.status, "Running")["status"] == "False"

    going = run(with_status(job, made), deleting(running(0)), deleting(running(1)))
    assert (going.status, going.delete) == (made.status, [])
    last = run(with_status(job, made), deleting(running(1)))
    assert last.status["state"] != "Suspended"

    gone = run(with_status(job, made)).status
    assert (gone["state"], gone["reason"]) == ("Suspended", "Suspended")
    assert condition(gone, "Suspended")["status"] == "True"
    assert gone["nodes"]["summary"] == "0/2"
    assert (gone["failures"], gone.get("restarts", [])) == (0, [])


def test_head_of_an_earlier_attempt_that_ended_well_holds_no_suspension_up():
    """It says that training is done, but its gang was lost before that was seen."""
    job = running_job()
    job["status"] |= {"attempt": 1}
    made = run(suspended(job), ended(0, 0), running(1, attempt=1))
    assert (made.status["reason"], deleted(made)) == ("Suspending", ["sums-0", "sums-1"])


def test_job_that_is_made_suspended_gets_no_children():
    made = run(suspended(raw_job()), capabilities=NATIVE)
    assert (made.create, made.status["state"]) == ([], "Suspended")
    assert condition(made.status, "Valid")["status"] == "True"


def test_first_attempt_of_a_job_that_was_made_suspended_is_0():
    world = World(suspended(raw_job()))
    world.reconcile()
    set_suspend(world, False)
    world.reconcile()
    assert [item["metadata"]["labels"]["grpo.dev/attempt"] for item in world.pods] == ["0", "0"]
    assert condition(world.status, "Suspended")["status"] == "False"


def test_gang_objects_go_after_the_pods_and_the_rest_stays():
    gang = [child(WORKLOAD, "sums"), child(POD_GROUP, "sums-0")]
    kept = [child("PersistentVolumeClaim", "sums-checkpoints"), child("ConfigMap", "sums-config")]
    job = suspended(running_job())
    made = run(job, running(0), running(1), children=[*gang, *kept], capabilities=NATIVE)
    assert {kind for kind, _ in made.delete} == {"Pod"}
    made = run(with_status(job, made), deleting(running(0)), children=[*gang, *kept], capabilities=NATIVE)
    assert made.delete == []
    made = run(with_status(job, made), children=[*gang, *kept], capabilities=NATIVE)
    assert sorted(kind for kind, _ in made.delete) == [POD_GROUP, WORKLOAD]


def test_head_that_exited_0_before_succeeds():
    made = run(suspended(running_job()), ended(0, 0), running(1))
    assert (made.status["state"], made.delete) == ("Succeeded", [])


@pytest.mark.parametrize("resumed", [False, True], ids=["still suspended", "resumed meanwhile"])
def test_head_that_exits_0_while_it_is_told_to_go_succeeds(resumed):
    """Its last step is done and saved: nothing is left to resume."""
    world = World(raw_job())
    world.run_gang()
    set_suspend(world, True)
    world.reconcile()
    end(world.pod(0), 0)
    set_suspend(world, not resumed)
    world.reconcile()
    assert world.status["state"] == "Succeeded"


@pytest.mark.parametrize("code", [143, 137, 1, 75])
def test_pods_that_suspend_stops_are_no_failures(code):
    world = World(raw_job())
    world.run_gang()
    set_suspend(world, True)
    world.reconcile()
    for rank in (0, 1):
        end(world.pod(rank), code)
    world.reconcile()
    world.confirm_deletions()
    world.reconcile()
    assert world.status["state"] == "Suspended"
    set_suspend(world, False)
    world.reconcile()
    assert (world.status["failures"], world.status.get("restarts", [])) == (0, [])
    assert [item["metadata"]["labels"]["grpo.dev/attempt"] for item in world.pods] == ["1", "1"]


def test_resume_starts_the_next_attempt_at_once():
    world = World(raw_job())
    world.run_gang()
    set_suspend(world, True)
    world.reconcile()
    world.confirm_deletions()
    world.reconcile()
    set_suspend(world, False)
    world.run_gang()
    assert (world.status["attempt"], world.status["createdAttempt"]) == (1, 1)
    assert condition(world.status, "Suspended")["status"] == "False"


@pytest.mark.parametrize("restarted", [False, True])
def test_suspend_then_resume_before_the_pods_are_gone(restarted):
    """A restart before that is over: the job waits as one that resumes."""
    world = World(raw_job())
    world.run_gang()
    if restarted:
        deleting(world.pod(1))
        world.reconcile()
        world.confirm_deletions()
        world.run_gang()
    attempt, made, entries = world.status["attempt"], len(world.made_pods), world.status.get("restarts", [])
    set_suspend(world, True)
    world.reconcile()
    set_suspend(world, False)
    world.reconcile()
    world.now = later(60)
    world.reconcile()
    assert len(world.made_pods) == made, "made pods while the old ones were going"
    assert (world.status["state"], world.status["reason"]) == ("Pending", "Resumed")
    world.confirm_deletions()
    world.run_gang()
    assert [item["metadata"]["labels"]["grpo.dev/attempt"] for item in world.pods] == [str(attempt + 1)] * 2
    assert (world.status["failures"], world.status.get("restarts", [])) == (0, entries)


def test_part_of_a_gang_that_suspend_deletes_is_no_lost_one():
    """Resumed while the only pod that a quota allowed is still going."""
    world = World(raw_job())
    world.refused = {"sums-1"}
    world.reconcile()
    assert len(world.pods) == 1
    set_suspend(world, True)
    world.reconcile()
    set_suspend(world, False)
    world.refused = set()
    world.reconcile()
    world.confirm_deletions()
    world.run_gang()
    assert (world.status["failures"], world.status.get("restarts", [])) == (0, [])


def test_suspend_in_the_pause_of_a_restart():
    world = World(raw_job())
    world.run_gang()
    end(world.pod(1), 1)
    world.reconcile()
    world.confirm_deletions()
    world.reconcile()
    set_suspend(world, True)
    world.reconcile()
    assert world.status["state"] == "Suspended"
    world.now = later(3600)
    world.reconcile()
    assert world.pods == []
    set_suspend(world, False)
    world.run_gang()
    assert len(world.status["restarts"]) == 1


def test_status_of_a_suspended_job_is_written_once():
    job = suspended(raw_job())
    job = with_status(job, run(job))
    for at in (1, 3600):
        made = run(job, at=at)
        assert (made.status, made.again, made.wake_after) == (job["status"], False, None)
