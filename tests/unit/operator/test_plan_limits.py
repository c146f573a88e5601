"""Limits in time of `runPolicy`: deadline, stall, TTL. Seconds count from NOW, when the gang was made and trains."""

import pytest

from tests.unit.operator.operator_support import (
    created,
    deleted,
    ended,
    last_words,
    later,
    raw_job,
    rfc3339,
    run,
    running,
    running_job,
    training,
    with_status,
)

GANG = (running(0), running(1))


def stepped(at: float):
    """The head's report of a step that ended `at` seconds after NOW."""
    report = training()
    report.progress.last_step_time = rfc3339(later(at))
    return report


def test_without_limits_nothing_is_waited_for():
    made = run(running_job(), *GANG, head_report=training(), at=10_000_000)
    assert (made.status["state"], made.wake_after) == ("Running", None)


def test_deadline_fails_the_job_and_keeps_its_checkpoint():
    job = running_job(runPolicy={"activeDeadlineSeconds": 100})
    before = run(job, *GANG, head_report=training(), at=99)
    assert (before.status["state"], before.wake_after) == ("Running", 1)
    made = run(job, *GANG, head_report=training(), at=100)
    assert (made.status["state"], made.status["reason"]) == ("Failed", "DeadlineExceeded")
    assert "runPolicy.activeDeadlineSeconds" in made.status["message"]
    after = run(with_status(job, made), *GANG, at=101)
    assert (deleted(after), created(after)) == (["sums-0", "sums-1"], [])


@pytest.mark.parametrize(("deadline", "wake"), [(1000, 300), (700, 100)])
def test_of_two_limits_the_earlier_one_is_waited_for(deadline, wake):
    job = running_job(runPolicy={"activeDeadlineSeconds": deadline, "stallTimeoutSeconds": 900})
    assert run(job, *GANG, head_report=stepped(0), at=600).wake_after == wake


def test_deadline_holds_while_a_lost_gang_waits_for_its_next_attempt():
    job = running_job(runPolicy={"activeDeadlineSeconds": 100})
    lost = run(job, ended(0, 1), running(1), at=50)
    assert lost.status["state"] == "Restarting"
    assert run(with_status(job, lost), ended(0, 1), running(1), at=100).status["state"] == "Failed"


def test_deadline_counts_on_over_restarts():
    job = running_job(runPolicy={"activeDeadlineSeconds": 100})
    lost = with_status(job, run(job, ended(0, 1), running(1), at=50))
    again = run(lost, running(0, 1), running(1, 1), head_report=training(), at=60)
    assert (again.status["createdAttempt"], again.wake_after) == (1, 40)


def test_success_goes_before_the_deadline():
    job = running_job(runPolicy={"activeDeadlineSeconds": 100})
    assert run(job, ended(0, 0, message=last_words(0, "Completed")), running(1), at=500).status["state"] == "Succeeded"


def test_deadline_counts_anew_after_a_suspension():
    job = running_job(runPolicy={"activeDeadlineSeconds": 100})
    asleep = {**job, "spec": {**job["spec"], "runPolicy": {**job["spec"]["runPolicy"], "suspend": True}}}
    suspended = run(asleep, at=60)
    assert suspended.status["state"] == "Suspended"
    resumed = run(with_status(job, suspended), at=5000)
    assert resumed.status["state"] == "Pending"
    assert run(with_status(job, resumed), at=5001).status["state"] != "Failed"


def test_job_that_never_got_its_pods_has_no_deadline():
    assert run(raw_job(runPolicy={"activeDeadlineSeconds": 1}), at=1000).status["state"] == "Pending"


def test_gang_that_finishes_no_step_restarts_and_spends_the_budget():
    job = running_job(runPolicy={"stallTimeoutSeconds": 600})
    fine = run(job, *GANG, head_report=stepped(500), at=1000)
    assert (fine.status["state"], fine.wake_after) == ("Running", 100)
    made = run(job, *GANG, head_report=stepped(500), at=1100)
    (entry,) = made.status["restarts"]
    assert (entry["cause"], entry["counted"], entry["pod"]) == ("Stalled", True, "sums-0")
    assert "600 s" in entry["message"]
    assert (made.status["state"], made.status["attempt"], made.status["failures"]) == ("Restarting", 1, 1)


def test_stall_is_counted_from_the_start_of_training_and_not_from_a_step_of_the_last_attempt():
    job = running_job(runPolicy={"stallTimeoutSeconds": 600})
    assert run(job, *GANG, head_report=stepped(-10_000), at=599).status["state"] == "Running"
    assert run(job, *GANG, head_report=stepped(-10_000), at=600).status["state"] == "Restarting"


def test_cause_that_a_pod_tells_goes_before_the_stall():
    job = running_job(runPolicy={"stallTimeoutSeconds": 600})
    made = run(job, running(0), ended(1, 137, "OOMKilled"), head_report=stepped(0), at=5000)
    assert made.status["restarts"][0]["cause"] == "OOMKilled"


def test_gang_that_does_not_train_yet_cannot_stall():
    job = raw_job(runPolicy={"stallTimeoutSeconds": 60})
    starting = run(job, *GANG, head_report=None)
    assert starting.status["state"] == "Starting"
    assert run(with_status(job, starting), *GANG, at=10_000).status["state"] == "Starting"


@pytest.mark.parametrize("code", [0, 65])
def test_ended_job_is_deleted_after_its_ttl(code):
    job = running_job(runPolicy={"ttlSecondsAfterFinished": 300})
    done = with_status(job, run(job, ended(0, code, message=last_words(code, "Word")), ended(1, 0), at=10))
    waiting = run(done, ended(0, code), ended(1, 0), at=309)
    assert (deleted(waiting, "GRPOJob"), waiting.wake_after) == ([], 1)
    assert deleted(run(done, ended(0, code), ended(1, 0), at=310), "GRPOJob") == ["sums"]


def test_ttl_may_be_set_after_the_end():
    job = running_job()
    done = with_status(job, run(job, ended(0, 0, message=last_words(0, "Completed")), ended(1, 0), at=10))
    assert run(done, ended(0, 0), at=10_000).delete == []
    done["spec"] = {**done["spec"], "runPolicy": {"ttlSecondsAfterFinished": 0}}
    assert deleted(run(done, ended(0, 0), at=10_000), "GRPOJob") == ["sums"]


def test_running_job_has_no_ttl():
    job = running_job(runPolicy={"ttlSecondsAfterFinished": 0})
    assert run(job, *GANG, head_report=training(), at=10_000).delete == []
