"""From the first child to Running: what is made in which order, what stands in the way, and what the status tells."""

import copy

import pytest

from grpo_api.status import GRPOJobStatus, HeadReport
from grpo_operator.observe import CreateFault
from tests.unit.operator.operator_support import (
    NATIVE,
    NOTHING,
    POD_GROUP,
    SEES_NODES,
    WORKLOAD,
    child,
    condition,
    created,
    deleted,
    deleting,
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


def test_children_come_before_the_pods_that_need_them():
    job = raw_job(checkpoint={"claimTemplate": {}}, gangScheduling={"backend": "auto"})
    made = run(job, capabilities=NATIVE)
    assert [(item["kind"], item["metadata"]["name"]) for item in made.create] == [
        ("PersistentVolumeClaim", "sums-checkpoints"),
        ("ConfigMap", "sums-config"),
        ("Service", "sums"),
        ("Workload", "sums"),
        ("PodGroup", "sums-0"),
        ("Pod", "sums-0"),
        ("Pod", "sums-1"),
    ]
    status = made.status
    assert (status["state"], status["attempt"], status["failures"]) == ("Pending", 0, 0)
    assert condition(status, "Valid")["status"] == "True"
    assert status["gang"]["backend"] == "native"
    assert status["observedGeneration"] == 1
    GRPOJobStatus.model_validate(status)


def test_only_missing_children_are_made():
    there = [child("ConfigMap", "sums-config"), child("Service", "sums")]
    assert created(run(raw_job(), pod(0), children=there)) == ["sums-1"]
    lost = run(running_job(), running(0), running(1), children=there[1:])
    assert created(lost) == ["sums-config"]


def test_each_attempt_has_a_pod_group_of_its_own():
    job = raw_job(gangScheduling={"backend": "native"})
    job["status"] = {"state": "Restarting", "attempt": 3, "failures": 0}
    made = run(job, capabilities=NATIVE, children=[child(WORKLOAD, "sums"), child(POD_GROUP, "sums-2")])
    assert created(made, "PodGroup") == ["sums-3"]
    assert deleted(made, POD_GROUP) == ["sums-2"]
    assert created(made, "Workload") == []
    groups = [item["spec"]["schedulingGroup"]["podGroupName"] for item in made.create if item["kind"] == "Pod"]
    assert groups == ["sums-3", "sums-3"]


def test_pod_group_outlives_the_pods_of_its_attempt():
    job = raw_job(gangScheduling={"backend": "native"})
    job["status"] = {"state": "Restarting", "attempt": 1, "failures": 0}
    made = run(job, deleting(running(1, 0)), capabilities=NATIVE, children=[child(POD_GROUP, "sums-0")])
    assert (made.delete, made.create) == ([], [])


def test_pod_group_that_is_going_is_not_deleted_again():
    job = raw_job(gangScheduling={"backend": "native"})
    job["status"] = {"state": "Restarting", "attempt": 1, "failures": 0}
    assert deleted(run(job, capabilities=NATIVE, children=[deleting(child(POD_GROUP, "sums-0"))]), POD_GROUP) == []


@pytest.mark.parametrize(
    ("asked", "served", "backend"),
    [
        *(("auto", NATIVE, "native"), ("auto", SEES_NODES, "gated"), ("auto", NOTHING, "none")),
        *(("native", NATIVE, "native"), ("none", NATIVE, "none"), ("gated", SEES_NODES, "gated")),
    ],
)
def test_gang_backend(asked, served, backend):
    made = run(raw_job(gangScheduling={"backend": asked}), capabilities=served)
    assert made.status["gang"]["backend"] == backend
    assert bool(created(made, "PodGroup")) == (backend == "native")
    gates = [item["spec"].get("schedulingGates") for item in made.create if item["kind"] == "Pod"]
    assert gates == [[{"name": "grpo.dev/gang"}] if backend == "gated" else None] * 2


def test_gang_that_is_held_back_is_queued_and_says_what_for():
    job, pods = raw_job(gangScheduling={"backend": "gated"}), [pod(0), pod(1)]
    for item in pods:
        item["spec"]["schedulingGates"] = [{"name": "grpo.dev/gang"}]
        set_condition(item, "PodScheduled", "False", reason="SchedulingGated", message="Scheduling is blocked")
    told = ("WaitingForCapacity", "needs 2 x 8 nvidia.com/gpu; 3 gangs ahead")
    for news in (None, told):
        status = run(job, *pods, capabilities=SEES_NODES, told=news).status
        assert (status["state"], status["reason"]) == ("Queued", "WaitingForCapacity")
        assert condition(status, "Scheduled")["message"] == status["message"]
    assert status["message"] == told[1]
    del pods[0]["spec"]["schedulingGates"], pods[1]["spec"]["schedulingGates"]
    for item in pods:
        set_condition(item, "PodScheduled", "False", reason="Unschedulable", message="0/2 nodes are available")
    status = run(job, *pods, capabilities=SEES_NODES, told=None).status
    assert (status["state"], status["reason"]) == ("Scheduling", "Unschedulable"), "released, it is the scheduler's"


@pytest.mark.parametrize("backend", ["native", "gated"])
def test_gang_backend_that_is_not_served_is_told_with_the_repair(backend):
    made = run(raw_job(gangScheduling={"backend": backend}), capabilities=NOTHING)
    assert made.create == []
    assert (made.status["state"], made.status["reason"]) == ("Pending", "Unschedulable")
    assert "gangScheduling.backend" in made.status["message"]
    assert condition(made.status, "Running")["message"] == made.status["message"]


@pytest.mark.parametrize("reason", ["NameConflict", "QuotaExceeded", "CreateRefused"])
@pytest.mark.parametrize("restarting", [False, True])
def test_refused_child_is_told(reason, restarting):
    job = raw_job()
    if restarting:
        job["status"] = {"state": "Restarting", "reason": "Restarting", "attempt": 1, "failures": 0}
    attempt = int(restarting)
    made = run(job, pod(0, attempt), create_fault=CreateFault(reason, "Pod sums-1: exceeded quota: tight"))
    status = made.status
    assert (status["reason"], status["message"]) == (reason, "Pod sums-1: exceeded quota: tight")
    held = condition(status, "Running")
    assert (held["status"], held["reason"], held["message"]) == ("False", reason, status["message"])
    assert created(made, "Pod") == ["sums-1"], "it is tried again"


def test_fault_that_is_over_is_told_no_longer():
    made = run(raw_job(), pod(0), pod(1), create_fault=CreateFault("QuotaExceeded", "tight"))
    assert made.status["reason"] != "QuotaExceeded"


def test_pods_wait_for_the_scheduler():
    status = run(raw_job(), pod(0), pod(1)).status
    assert (status["state"], status["createdAttempt"]) == ("Scheduling", 0)
    assert status["startTime"] == rfc3339(later(0))
    assert condition(status, "Scheduled")["status"] == "False"


def test_schedulers_words_are_told():
    words = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    stuck = set_condition(pod(1), "PodScheduled", "False", reason="Unschedulable", message=words)
    status = run(raw_job(), pod(0, node="node-0"), stuck).status
    assert (status["state"], status["reason"]) == ("Scheduling", "Unschedulable")
    assert words in status["message"]
    assert words in condition(status, "Scheduled")["message"]


def test_scheduler_that_tries_again_by_itself_is_no_problem():
    """Reasons of PodScheduled: Unschedulable, SchedulingGated, SchedulerError (core/v1 types.go)."""
    conflict = set_condition(pod(1), "PodScheduled", "False", reason="SchedulerError", message="node was assumed")
    status = run(raw_job(), pod(0), conflict).status
    assert (status["state"], status["reason"]) == ("Scheduling", "WaitingForScheduler")
    gated = set_condition(pod(1), "PodScheduled", "False", reason="SchedulingGated", message="waits for a gate")
    assert "waits for a gate" in run(raw_job(), pod(0), gated).status["message"]


# The kubelet's reasons: pkg/kubelet/images/types.go, kuberuntime_container.go and cri-api's errors.go.
IMAGE_REASONS = [
    *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
    *("ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed"),
]


def waiting(reason, kind="containerStatuses", name="trainer"):
    item = pod(1, node="node-1")
    item["spec"]["initContainers"] = [{"name": "fetch", "image": "registry/fetch:2"}]
    words = f"{reason}: not to be had"
    item["status"][kind] = [{"name": name, "state": {"waiting": {"reason": reason, "message": words}}}]
    return item


@pytest.mark.parametrize("reason", IMAGE_REASONS)
@pytest.mark.parametrize(
    ("kind", "name", "image"),
    [
        ("containerStatuses", "trainer", "registry/trainer:1"),
        ("initContainerStatuses", "fetch", "registry/fetch:2"),
    ],
)
def test_image_problem_names_pod_image_and_repair(reason, kind, name, image):
    status = run(raw_job(), pod(0, node="node-0"), waiting(reason, kind, name)).status
    assert (status["state"], status["reason"]) == ("Starting", reason)
    for words in ("sums-1", image, f"{reason}: not to be had", "template.image"):
        assert words in status["message"]
    assert condition(status, "Running")["reason"] == reason


@pytest.mark.parametrize("reason", ["CreateContainerConfigError", "CreateContainerError", "RunContainerError"])
def test_container_that_cannot_start_is_told(reason):
    status = run(raw_job(), pod(0, node="node-0"), waiting(reason)).status
    assert (status["state"], status["reason"]) == ("Starting", reason)
    assert "not to be had" in status["message"]


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing"])
def test_container_that_starts_is_no_problem(reason):
    assert run(raw_job(), pod(0, node="node-0"), waiting(reason)).status["reason"] == "Starting"


@pytest.mark.parametrize(
    ("ready", "report", "state"),
    [
        ((True, True), None, "Starting"),
        ((True, True), HeadReport(phase="starting"), "Starting"),
        ((True, True), HeadReport(phase="loading"), "Starting"),
        ((True, False), HeadReport(phase="training"), "Starting"),
        ((True, True), HeadReport(phase="training"), "Running"),
        ((True, True), HeadReport(phase="saving"), "Running"),
    ],
)
def test_running_means_all_ready_and_the_head_trains(ready, report, state):
    pods = [running(rank, ready=value) for rank, value in enumerate(ready)]
    status = run(raw_job(), *pods, head_report=report).status
    assert status["state"] == state
    assert condition(status, "Running")["status"] == str(state == "Running")
    assert condition(status, "Scheduled")["status"] == "True"
    assert status["nodes"] == {"ready": sum(ready), "total": 2, "summary": f"{sum(ready)}/2"}


def test_probe_or_poll_that_fails_once_leaves_it_running():
    job = running_job()
    assert run(job, running(0), running(1, ready=False)).status["state"] == "Running"


def test_condition_keeps_its_transition_time_until_its_status_changes():
    job = running_job()
    before = condition(job["status"], "Running")["lastTransitionTime"]
    job["metadata"]["generation"] = 2
    still = condition(run(job, running(0), running(1), head_report=training(4), at=60).status, "Running")
    assert (still["lastTransitionTime"], still["observedGeneration"]) == (before, 2)
    lost = condition(run(job, running(0), ended(1, 1), at=60).status, "Running")
    assert (lost["status"], lost["lastTransitionTime"]) == ("False", rfc3339(later(60)))


def restarting_job():
    job = running_job()
    return with_status(job, run(job, running(0), ended(1, 1)))


def test_scheduled_is_not_true_while_the_next_gang_has_no_pods():
    assert condition(run(restarting_job(), at=1).status, "Scheduled")["status"] == "False"


def test_scheduled_is_not_true_while_the_next_gang_has_no_nodes():
    status = run(restarting_job(), pod(0, 1), pod(1, 1), at=9).status
    assert (status["state"], condition(status, "Scheduled")["status"]) == ("Scheduling", "False")


def test_progress_comes_from_the_heads_report():
    progress = {"step": 7, "totalSteps": 20, "rewardMean": 0.25, "tokensPerSecond": 99.5, "etaSeconds": 60}
    saved = {"step": 5, "path": "/checkpoints/team.sums/step-00000005", "sizeBytes": 12}
    report = HeadReport.model_validate({"phase": "training", "progress": progress, "checkpoint": saved})
    status = run(running_job(), running(0), running(1), head_report=report).status
    assert status["progress"] == {**progress, "percent": "35%"}
    assert status["checkpoint"] == saved


def test_progress_comes_from_the_heads_termination_message_after_its_end():
    words = last_words(0, "Completed", progress={"step": 20, "totalSteps": 20, "rewardMean": 0.5})
    status = run(running_job(), ended(0, 0, message=words), running(1)).status
    assert (status["progress"]["step"], status["progress"]["percent"]) == (20, "100%")
    assert status["progress"]["rewardMean"] == 0.5


def test_progress_is_the_heads_and_not_another_ranks():
    words = last_words(75, "PeerLost", progress={"step": 1, "totalSteps": 20})
    job = running_job()
    status = run(job, running(0), ended(1, 75, message=words, at=-9), head_report=training(7)).status
    assert status["progress"]["step"] == 7


def test_progress_of_an_earlier_attempt_is_not_taken():
    job = with_status(running_job(), run(running_job(), running(0), ended(1, 1), head_report=training(7)))
    words = last_words(143, "Stopped", progress={"step": 2})
    assert run(job, deleting(ended(0, 143, message=words))).status["progress"]["step"] == 7


@pytest.mark.parametrize("words", ["", "Traceback", "{", '{"exitCode": 1}', "[]", '{"progress": {"step": NaN}}'])
def test_termination_message_that_is_no_report_is_told_as_it_is(words):
    job = running_job()
    status = run(job, running(0), ended(1, 1, message=words)).status
    assert status["progress"] == job["status"]["progress"]
    assert words in status["restarts"][0]["message"]


def test_older_checkpoint_does_not_replace_a_newer_one():
    job = running_job()
    job["status"]["checkpoint"] = {"step": 10}
    status = run(job, running(0), running(1), head_report=training(3, checkpoint={"step": 5})).status
    assert status["checkpoint"] == {"step": 10}


def test_percent_of_a_run_by_epochs_is_of_the_planned_steps():
    job = raw_job(trainer={"totalEpochs": 2})
    del job["spec"]["trainer"]["totalSteps"]
    job["spec"]["data"]["train"] = {"reasoningGym": {"task": "chain_sum", "size": 80}}
    report = HeadReport.model_validate({"phase": "training", "progress": {"step": 5}})
    status = run(job, running(0), running(1), head_report=report).status
    assert (status["progress"]["totalSteps"], status["progress"]["percent"]) == (20, "25%")


def test_batch_plan_is_in_the_status():
    # 1 node x 6 GPUs, 60 prompts x 12 responses, TP 2: design.md's worked case.
    job = raw_job(
        nodes=1,
        trainer={"nGpusPerNode": 6},
        data={"trainBatchSize": 60},
        rollout={"n": 12, "tensorModelParallelSize": 2, "logProbMicroBatchSizePerGpu": 8},
        actor={"ppoMiniBatchSize": 60, "ppoMicroBatchSizePerGpu": 8},
    )
    found = run(job).status["batchPlan"]
    assert (found["responsesPerStep"], found["rolloutWorkers"], found["responsesPerRolloutWorker"]) == (720, 3, 240)
    assert (found["responsesPerGpu"], found["logProbRoundsPerGpu"]) == (120, 15)
    assert (found["accumulationSteps"], found["updatesPerStep"]) == (15, 1)


def test_plan_changes_nothing_that_it_is_given():
    job, pods = running_job(), [running(0), ended(1, 1)]
    before = copy.deepcopy((job, pods))
    run(job, *pods)
    assert (job, pods) == before


def test_changed_spec_is_planned_as_it_is_now_and_not_as_it_was():
    """Parsed specs are remembered; the object may be another, or the same one changed in place."""
    job = raw_job()
    assert run(job).create
    job["spec"]["runPolicy"] = {"suspend": True}
    assert run(job).status["state"] == "Suspended"
    changed = copy.deepcopy(job)
    changed["spec"]["runPolicy"] = {"suspend": False}
    changed["metadata"]["resourceVersion"] = "2"
    assert run(changed).create
    changed["spec"]["trainer"] = {"nnodes": "two"}
    assert run(changed).status["reason"] == "InvalidSpec"
