"""What a clock that is set forward or back by hours moves: the limits that are points in time, and nothing else."""

from datetime import timedelta

import pytest

from tests.unit.operator.operator_support import (
    deleted,
    deleting,
    ended,
    later,
    pod,
    raw_job,
    rfc3339,
    run,
    running,
    running_job,
    training,
    with_status,
)
from tests.unit.operator.test_reconciler import Rig
from tests.unit.operator.test_stuck import STUCK_SECONDS, creating

GANG = (running(0), running(1))
HOURS = 9
JUMP = 3600 * HOURS


@pytest.mark.parametrize(
    ("jump", "state", "wake"), [(0, "Running", 40), (JUMP, "Failed", None), (-JUMP, "Running", 40 + JUMP)]
)
def test_deadline_is_a_point_in_time(jump, state, wake):
    """activeDeadlineSeconds counts from `status.startTime`, as a Job's does; 60 s of 100 have passed."""
    job = running_job(runPolicy={"activeDeadlineSeconds": 100})
    made = run(job, *GANG, head_report=training(), at=60 + jump)
    assert (made.status["state"], made.wake_after) == (state, wake)


@pytest.mark.parametrize(("jump", "gone"), [(0, []), (JUMP, ["sums"]), (-JUMP, [])])
def test_ttl_is_a_point_in_time(jump, gone):
    job = running_job(runPolicy={"ttlSecondsAfterFinished": 100})
    done = with_status(job, run(job, ended(0, 65), ended(1, 0)))
    assert deleted(run(done, ended(0, 65), ended(1, 0), at=60 + jump), "GRPOJob") == gone


@pytest.mark.parametrize("jump", [JUMP, -JUMP])
def test_gang_that_makes_steps_is_not_stalled(jump):
    """Its head's clock, or ours, is hours off; its last step was 10 s ago."""
    job = running_job(runPolicy={"stallTimeoutSeconds": 600})
    for stepped in (60, 60 + jump):
        report = training()
        report.progress.last_step_time = rfc3339(later(stepped))
        made = run(job, *GANG, head_report=report, head_quiet=10.0, at=70 + jump)
        assert made.status["state"] == "Running"


@pytest.mark.parametrize("jump", [0, JUMP, -JUMP])
def test_gang_that_makes_no_steps_is_stalled(jump):
    job = running_job(runPolicy={"stallTimeoutSeconds": 600})
    report = training()
    report.progress.last_step_time = rfc3339(later(0))
    made = run(job, *GANG, head_report=report, head_quiet=1000.0, at=1000 + jump)
    assert [entry["cause"] for entry in made.status["restarts"]] == ["Stalled"]


@pytest.mark.parametrize("jump", [-JUMP, JUMP])
def test_part_of_a_gang_is_looked_at_again_when_the_clock_is_right(jump):
    """The scheduler's clock wrote when the pod was placed. Too soon is an uncounted restart of what holds half of its
    nodes; too late ends with the jump, as every job is planned anew each 5 minutes."""
    job = raw_job(gangScheduling={"scheduleTimeoutSeconds": 300})
    half = (pod(0, node="node-0", placed=0), pod(1))
    made = run(job, *half, at=60 + jump)
    assert made.status["failures"] == 0
    assert [entry["counted"] for entry in made.status.get("restarts", [])] == ([False] if jump > 0 else [])
    assert run(with_status(job, made), *half, at=300).status["attempt"] == 1


@pytest.mark.parametrize("hours", [-HOURS, HOURS])
async def test_pod_that_is_going_has_its_time(hours):
    rig = Rig(raw_job(runPolicy={"suspend": True}), deleting(running(0)))
    rig.kube.objects["Pod", "sums-0"]["metadata"]["deletionGracePeriodSeconds"] = 30
    rig.watch()
    forced = ("delete", "Pod", "sums-0", "grace=0")
    await rig.reconcile()
    rig.jump(hours)
    rig.now += timedelta(seconds=119)
    await rig.reconcile()
    assert forced not in rig.kube.writes()
    rig.now += timedelta(seconds=2)
    await rig.reconcile()
    assert forced in rig.kube.writes()


@pytest.mark.parametrize(("ahead", "hours"), [(JUMP, -HOURS), (0, HOURS)])
async def test_events_of_a_stuck_pod_are_read_on(ahead, hours):
    """A clock that was ahead is put right, or one that was right is put ahead."""
    rig = Rig(raw_job(), running(0), creating(1))

    async def reads_of_two_minutes():
        begin = len(rig.kube.requests)
        for _ in range(12):
            rig.now += timedelta(seconds=10)
            await rig.reconcile()
        return len([request for request in rig.kube.requests[begin:] if request[:2] == ("list", "Event")])

    rig.now = later(STUCK_SECONDS + ahead)
    assert await reads_of_two_minutes() == 3, "at once, and 20 and 60 s after"
    rig.jump(hours)
    assert await reads_of_two_minutes() == 1, "80 s after"
