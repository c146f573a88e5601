"""Whole-gang restart: each cause, whether it counts, the pause before the next attempt, and the end of patience."""

import pytest

from tests.unit.operator.operator_support import (
    World,
    created,
    deleted,
    deleting,
    disrupted,
    end,
    ended,
    last_words,
    later,
    pod,
    raw_job,
    rfc3339,
    run,
    running,
    running_job,
    set_condition,
    training,
    with_status,
)


def phase_failed(reason, message=""):
    """A pod that the kubelet or a controller ended without a container status."""
    item = running(1)
    item["status"] |= {"phase": "Failed", "reason": reason, "message": message}
    del item["status"]["containerStatuses"]
    return item


def unknown():
    item = running(1)
    item["status"]["phase"] = "Unknown"
    return item


def stopped_by_kueue(reason):
    """Kueue v0.13, test/e2e/singlecluster/pod_test.go: a pod whose workload it evicts."""
    item = set_condition(ended(1, 143), "TerminationTarget", "True", reason=reason, message="made room")
    return deleting(item)


# docs/recovery.md: what restarts. Reasons of DisruptionTarget: kubernetes.io, "Pod disruption conditions".
CAUSES = {
    "exit 1": (ended(1, 1), "Failed", True),
    "killed by SIGKILL, memory to spare": (ended(1, 137), "Failed", True),
    "killed by SIGSEGV": (ended(1, 139), "Failed", True),
    "an init container failed": (phase_failed(""), "Failed", True),
    "the kernel killed it": (ended(1, 137, "OOMKilled"), "OOMKilled", True),
    "lost a peer, and no pod says why": (ended(1, 75, at=-61), "PeerLost", True),
    "somebody deletes it": (deleting(running(1)), "PodDeleted", False),
    "somebody deleted it, and it stopped on SIGTERM": (deleting(ended(1, 143)), "PodDeleted", False),
    "gone": (None, "PodDeleted", False),
    "drain, by the eviction API": (deleting(disrupted(running(1), "EvictionByEvictionAPI")), "Drained", False),
    "evicted under node pressure": (disrupted(ended(1, 137), "TerminationByKubelet"), "Evicted", False),
    "evicted by a kubelet without the condition": (phase_failed("Evicted", "low on memory"), "Evicted", False),
    "graceful node shutdown": (phase_failed("Terminated", "node shutdown"), "Evicted", False),
    "preempted": (deleting(disrupted(running(1), "PreemptionByScheduler")), "Preempted", False),
    "preempted in Kueue's queue": (stopped_by_kueue("WorkloadEvictedDueToPreempted"), "Preempted", False),
    "stopped by Kueue otherwise": (stopped_by_kueue("WorkloadEvictedDueToNodeFailures"), "Evicted", False),
    "preempted and killed": (disrupted(ended(1, 137), "PreemptionByScheduler"), "Preempted", False),
    "taint manager": (deleting(disrupted(running(1), "DeletionByTaintManager")), "NodeLost", False),
    "pod garbage collection": (disrupted(phase_failed(""), "DeletionByPodGC"), "NodeLost", False),
    "node restarted, containerd": (ended(1, 255, "Unknown"), "NodeLost", False),
    "node restarted, kubelet": (ended(1, 137, "ContainerStatusUnknown"), "NodeLost", False),
    "GPUs gone between scheduler and kubelet": (phase_failed("UnexpectedAdmissionError"), "NodeRejected", False),
    "node too full for its kubelet": (phase_failed("OutOfnvidia.com/gpu", "Node didn't"), "NodeRejected", False),
    "node does not answer": (unknown(), "NodeLost", False),
}


@pytest.mark.parametrize(("lost", "cause", "counted"), CAUSES.values(), ids=CAUSES)
def test_loss_of_one_pod_restarts_the_whole_gang(lost, cause, counted):
    job = running_job()
    pods = [running(0), *([lost] if lost else [])]

    decided = run(job, *pods)
    status = decided.status
    (entry,) = status["restarts"]
    assert (entry["cause"], entry["counted"], entry["pod"], entry["attempt"]) == (cause, counted, "sums-1", 0)
    assert (status["attempt"], status["failures"]) == (1, int(counted))
    assert (status["state"], status["reason"]) == ("Restarting", cause)
    assert "createdAttempt" not in status
    # The decision is on record before anything is deleted; nothing new is made while the old gang is there.
    assert (decided.create, decided.delete, decided.again) == ([], [], True)

    carried_out = run(with_status(job, decided), *pods)
    going = [item["metadata"]["name"] for item in pods if "deletionTimestamp" not in item["metadata"]]
    assert deleted(carried_out) == going
    assert carried_out.create == []
    assert carried_out.status["restarts"] == [entry]
    assert carried_out.status["state"] == "Restarting"


def test_pod_that_is_gone_before_the_gang_is_on_record_is_lost_too():
    """Pods are made in the order of their ranks: rank 0 was there, or rank 1 would not be."""
    (entry,) = run(raw_job(), running(1)).status["restarts"]
    assert (entry["cause"], entry["pod"]) == ("PodDeleted", "sums-0")


@pytest.mark.parametrize("code", [64, 65, 0])
def test_exit_codes_that_are_no_loss(code):
    assert run(running_job(), running(0), ended(1, code)).status.get("restarts", []) == []


def test_new_gang_is_made_whole_after_the_old_one_is_gone():
    world = World(raw_job())
    world.run_gang()
    end(world.pod(1), 137, "OOMKilled")
    world.reconcile()
    assert {item["metadata"].get("deletionTimestamp") is not None for item in world.pods} == {True}
    world.now = later(60)
    world.reconcile()
    assert len(world.made_pods) == 2, "made pods while the old ones were going"
    world.confirm_deletions()
    world.reconcile()
    assert [item["metadata"]["labels"]["grpo.dev/attempt"] for item in world.pods] == ["1", "1"]
    environments = [item["spec"]["containers"][0]["env"] for item in world.pods]
    assert all({"name": "GRPO_ATTEMPT", "value": "1"} in env for env in environments)
    assert [entry["cause"] for entry in world.status["restarts"]] == ["OOMKilled"]


@pytest.mark.parametrize("code", [137, 143, 75, 1, 65, 0])
def test_what_the_operator_deletes_is_never_taken_for_a_failure(code):
    """However its pods end after they were told to go."""
    world = World(raw_job())
    world.run_gang()
    end(world.pod(1), 1)
    world.reconcile()
    end(world.pod(0), code)
    world.reconcile()
    world.now = later(30)
    world.confirm_deletions()
    world.reconcile()
    world.run_gang()
    assert [(entry["pod"], entry["cause"]) for entry in world.status["restarts"]] == [("sums-1", "Failed")]
    assert (world.status["attempt"], world.status["failures"]) == (1, 1)


def test_crash_between_decision_and_deletion_repeats_nothing():
    world = World(raw_job())
    world.run_gang()
    end(world.pod(1), 1)
    world.reconcile(crash_after_status=True)
    world.reconcile()
    world.reconcile()
    assert (world.status["attempt"], len(world.status["restarts"])) == (1, 1)
    assert all("deletionTimestamp" in item["metadata"] for item in world.pods)


@pytest.mark.parametrize(("other", "patience"), [(ended(0, 75, at=0), 5), (running(0), 60)])
def test_peer_that_lost_a_peer_waits_for_the_peers_own_state(other, patience):
    """Kubernetes notices after 50 s (--node-monitor-grace-period) that the node of a pod that runs is silent."""
    job, lost = running_job(), ended(1, 75, at=0)
    waits = run(job, other, lost, at=2)
    assert (waits.status["state"], waits.status["reason"]) == ("Restarting", "PeerLost")
    assert waits.status.get("restarts", []) == []
    assert waits.wake_after == pytest.approx(patience - 2)
    assert (waits.create, waits.delete, waits.again) == ([], [], False)
    later_on = run(with_status(job, waits), other, lost, at=patience)
    (entry,) = later_on.status["restarts"]
    assert (entry["cause"], entry["counted"]) == ("PeerLost", True)


def on_silent_node(item):
    """As the node controller leaves a pod of a node that went silent (MarkPodsNotReady): Ready alone is taken away."""
    since = {"lastTransitionTime": "2026-03-01T12:00:50Z"}
    return set_condition(set_condition(item, "Ready", "False", **since), "ContainersReady", "True")


def test_lost_peer_on_a_node_that_went_silent_is_a_lost_node_and_does_not_count():
    job = running_job()
    (entry,) = run(job, on_silent_node(running(0)), ended(1, 75, at=20), at=52).status["restarts"]
    assert (entry["cause"], entry["pod"], entry["counted"]) == ("NodeLost", "sums-0", False)
    assert "node-0" in entry["message"]


def test_silent_node_alone_is_told_and_restarts_nothing():
    """Its kubelet may only be restarting. After 300 s Kubernetes deletes the pods, which is a loss."""
    job = running_job()
    told = run(job, running(0), on_silent_node(running(1)), head_report=training())
    assert (told.status["state"], told.status["reason"]) == ("Running", "NodeUnreachable")
    assert "node-1 of sums-1 does not answer since 2026-03-01T12:00:50Z" in told.status["message"]
    assert told.status.get("restarts", []) == []
    back = run(with_status(job, told), running(0), running(1), head_report=training()).status
    assert (back["state"], back["reason"], back["message"]) == ("Running", "Training", "")


def test_pod_whose_probe_fails_is_on_no_silent_node():
    """A kubelet takes both conditions away."""
    failing = set_condition(running(1, ready=False), "ContainersReady", "False", reason="ContainersNotReady")
    assert run(running_job(), running(0), failing, head_report=training()).status["reason"] == "Training"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("401: token hf_abcdefghijklmnopqrst is invalid", "401: token [hidden] is invalid"),
        ("WANDB_API_KEY=0123456789abcdef0123", "WANDB_API_KEY=[hidden]"),
        ("{'password': 'tr0ub4dor&3'}", "{'password': '[hidden]'}"),
        ("GET https://me:s3cret99@host/x", "GET https://[hidden]@host/x"),
        ("Authorization: Bearer eyJhbGciOi.J9", "Authorization: Bearer [hidden]"),
        ("out of memory: tried 20 GiB; tokens/s 99", "out of memory: tried 20 GiB; tokens/s 99"),
        ("AWS secret_access_key=abcdefghij/klm", "AWS secret_access_key=[hidden]"),
        *(
            (plain, plain)
            for plain in (
                "max_tokens: 20480000 and token: 'n'",
                "pad_token: '<|endoftext|>', eos_token=[151643, 151645]",
                "model.tokenizerPath: tokenizer: LlamaTokenizerFast",
                "reward: KeyError: 'answer'; step token_count: abcdefgh",
            )
        ),
    ],
)
def test_last_lines_of_a_failed_pod_are_told_without_secrets(said, shown):
    (entry,) = run(running_job(), running(0), ended(1, 1, message=f"{'x' * 9000}\n{said}")).status["restarts"]
    assert entry["message"].endswith(shown)
    assert len(entry["message"]) < 1600


@pytest.mark.parametrize(
    ("other", "cause"),
    [(ended(0, 137, "OOMKilled"), "OOMKilled"), (ended(0, 1), "Failed"), (deleting(running(0)), "PodDeleted")],
)
def test_true_cause_goes_before_a_lost_peer(other, cause):
    (entry,) = run(running_job(), other, ended(1, 75, at=0), at=1).status["restarts"]
    assert (entry["cause"], entry["pod"]) == (cause, "sums-0")


@pytest.mark.parametrize("outside", ["EvictionByEvictionAPI", "PreemptionByScheduler", "DeletionByTaintManager"])
@pytest.mark.parametrize("inside", [ended(0, 1), ended(0, 137, "OOMKilled"), ended(0, 75, at=-60)])
def test_cause_outside_the_job_goes_before_one_inside(outside, inside):
    status = run(running_job(), inside, deleting(disrupted(running(1), outside))).status
    assert [(entry["pod"], entry["counted"]) for entry in status["restarts"]] == [("sums-1", False)]
    assert status["failures"] == 0


def test_entry_tells_the_checkpoint_and_the_words():
    job = running_job()
    job["status"]["checkpoint"] = {"step": 10, "path": "/checkpoints/team.sums/step-00000010"}
    status = run(job, running(0), ended(1, 1, message="CUDA error: device-side assert")).status
    (entry,) = status["restarts"]
    assert entry["fromStep"] == 10
    assert "CUDA error: device-side assert" in entry["message"]
    assert entry["time"] == rfc3339(later(0))
    assert "step 10" in status["message"]
    without = run(running_job(), running(0), ended(1, 1)).status
    assert "fromStep" not in without["restarts"][0]
    assert "from the start" in without["message"]


def test_entry_names_the_step_that_the_next_gang_really_resumed_from():
    """A checkpoint may have been completed after the last report of the gang that was lost."""
    job = running_job()
    job["status"]["checkpoint"] = {"step": 10}
    job = with_status(job, run(job, running(0), ended(1, 1)))
    status = run(job, running(0, 1), running(1, 1), head_report=training(16, resumedFromStep=15)).status
    assert [entry["fromStep"] for entry in status["restarts"]] == [15]
    words = last_words(75, "PeerLost", resumedFromStep=10)
    status = run(job, deleting(ended(0, 75, message=words)), deleting(running(1))).status
    assert [entry["fromStep"] for entry in status["restarts"]] == [10], "the words of the earlier attempt"


def failed_job(failures, **policy):
    job = running_job(runPolicy=policy)
    job["status"]["failures"] = failures
    return job


@pytest.mark.parametrize(("limit", "before", "ends"), [(0, 0, True), (3, 2, False), (3, 3, True), (1, 0, False)])
def test_failures_after_which_the_job_fails(limit, before, ends):
    made = run(failed_job(before, maxRestarts=limit), running(0), ended(1, 1, message="boom"))
    assert made.status["failures"] == before + 1
    if not ends:
        assert made.status["state"] == "Restarting"
        return
    assert (made.status["state"], made.status["reason"]) == ("Failed", "MaxRestartsReached")
    assert "boom" in made.status["message"]
    assert "runPolicy.maxRestarts" in made.status["message"]
    assert "completionTime" in made.status


@pytest.mark.parametrize("reason", ["PreemptionByScheduler", "EvictionByEvictionAPI", "DeletionByTaintManager"])
def test_disruptions_never_end_a_job(reason):
    status = run(failed_job(0, maxRestarts=0), running(0), deleting(disrupted(running(1), reason))).status
    assert (status["state"], status["failures"]) == ("Restarting", 0)


def restarted(*entries):
    """A job whose gang was lost by these (cause, counted, step of the checkpoint) at NOW, its pods gone."""
    restarts = [
        {"time": rfc3339(later(0)), "attempt": i, "cause": cause, "counted": counted, "message": "lost"}
        | ({"fromStep": step} if step is not None else {})
        for i, (cause, counted, step) in enumerate(entries)
    ]
    counted = sum(entry["counted"] for entry in restarts)
    status = {"state": "Restarting", "attempt": len(entries), "failures": counted, "restarts": restarts}
    return raw_job(status=status, runPolicy={"maxRestarts": 1000})


FAILED, EVICTED = ("Failed", True, None), ("Evicted", False, None)
PAUSES = {
    "after a failure": ([FAILED], 5),
    "doubled by each failure in a row": ([FAILED] * 3, 20),
    "never over 300 s": ([FAILED] * 7, 300),
    "still 300 s": ([FAILED] * 20, 300),
    "progress between failures begins anew": ([FAILED, FAILED, ("Failed", True, 10)], 5),
    "no progress between failures": ([("Failed", True, 10), ("OOMKilled", True, 10)], 10),
    "none after what does not count": ([EVICTED], 0),
    "none, though failures came before": ([FAILED, FAILED, EVICTED], 0),
    "after a gang that was not placed": ([("ScheduleTimeout", False, None)], 30),
    "after a pod that its node did not take": ([("NodeRejected", False, None)], 30),
}


@pytest.mark.parametrize(("entries", "seconds"), PAUSES.values(), ids=PAUSES)
def test_pause_before_the_next_attempt(entries, seconds):
    job = restarted(*entries)
    if seconds:
        waits = run(job, at=seconds - 1)
        assert waits.create == []
        assert (waits.status["state"], waits.status["reason"]) == ("Restarting", "RestartBackoff")
        assert waits.wake_after == pytest.approx(1)
    assert created(run(job, at=seconds), "Pod") == ["sums-0", "sums-1"]


def test_status_is_written_once_in_the_pause():
    job = with_status(restarted(FAILED, FAILED), run(restarted(FAILED, FAILED), at=1))
    for at in (1, 2, 5.5, 9):
        assert run(job, at=at).status == job["status"]
    assert rfc3339(later(10)) in job["status"]["message"]


def test_last_20_restarts_are_kept():
    job = restarted(*[EVICTED] * 20)
    job["status"] |= {"createdAttempt": 20}
    status = run(job, running(0, 20), deleting(running(1, 20))).status
    assert [entry["attempt"] for entry in status["restarts"]] == list(range(1, 21))
    assert status["attempt"] == 21


def test_missing_pod_of_a_gang_that_was_never_complete_is_made_and_not_lost():
    job = raw_job()
    first = run(job)
    made = run(with_status(job, first), pod(0))
    assert created(made, "Pod") == ["sums-1"]
    assert (made.status["attempt"], made.status.get("restarts", [])) == (0, [])


def test_pod_that_fails_before_the_gang_is_complete_is_a_failure():
    job = with_status(raw_job(), run(raw_job()))
    (entry,) = run(job, ended(0, 1)).status["restarts"]
    assert (entry["cause"], entry["pod"]) == ("Failed", "sums-0")


def placed_for(*seconds):
    """Pods placed so many seconds ago; None for one that has no node."""
    return [
        pod(rank) if held is None else pod(rank, node=f"node-{rank}", placed=-held) for rank, held in enumerate(seconds)
    ]


def scheduling_job(**gang):
    job = raw_job(nodes=3, actor={"ppoMiniBatchSize": 9}, data={"trainBatchSize": 9}, gangScheduling=gang)
    return with_status(job, run(job, *placed_for(None, None, None)))


def test_part_of_a_gang_gives_its_nodes_back_after_schedule_timeout():
    job = scheduling_job(scheduleTimeoutSeconds=60)
    waits = run(job, *placed_for(59, 10, None))
    assert waits.status.get("restarts", []) == []
    assert waits.wake_after == pytest.approx(1)
    made = run(job, *placed_for(60, 10, None))
    (entry,) = made.status["restarts"]
    assert (entry["cause"], entry["counted"], made.status["failures"]) == ("ScheduleTimeout", False, 0)
    assert "gangScheduling.scheduleTimeoutSeconds" in entry["message"]
    assert "2 of 3" in entry["message"]
    going = run(with_status(job, made), *placed_for(60, 10, None))
    assert deleted(going) == ["sums-0", "sums-1", "sums-2"]


@pytest.mark.parametrize("seconds", [(None, None, None), (10_000, 10_000, 10_000)])
def test_gang_that_holds_nothing_or_everything_has_no_schedule_timeout(seconds):
    made = run(scheduling_job(scheduleTimeoutSeconds=60), *placed_for(*seconds))
    assert made.status.get("restarts", []) == []
    assert made.wake_after is None


def test_pods_that_a_quota_refuses_do_not_keep_the_others_placed():
    job = raw_job(gangScheduling={"scheduleTimeoutSeconds": 60})
    (entry,) = run(with_status(job, run(job)), *placed_for(60)).status["restarts"]
    assert entry["cause"] == "ScheduleTimeout"


def test_restart_takes_the_last_progress_along():
    made = run(running_job(), running(0), ended(1, 1), head_report=training(7, checkpoint={"step": 5}))
    assert made.status["restarts"][0]["fromStep"] == 5
    assert made.status["progress"]["step"] == 7


@pytest.mark.parametrize("ends", [False, True], ids=["still runs", "has stopped on that"])
def test_message_of_a_disruption_is_what_disrupted_and_not_how_the_trainer_stopped(ends):
    """The trainer saves and ends with 143, maybe before anybody has looked."""
    taken = disrupted(running(1), "PreemptionByScheduler")
    if ends:
        taken = disrupted(ended(1, 143, message=last_words(143, "Stopped")), "PreemptionByScheduler")
    made = run(running_job(), running(0), taken)
    entry = made.status["restarts"][0]
    assert (entry["cause"], entry["counted"]) == ("Preempted", False)
    assert entry["message"] == "sums-1: PreemptionByScheduler did it"
