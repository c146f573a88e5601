"""How a job ends: success of rank 0, the user's fault, an invalid spec; and what is left of it then."""

import copy

import pytest

from tests.unit.operator.operator_support import (
    NATIVE,
    POD_GROUP,
    WORKLOAD,
    child,
    condition,
    created,
    deleted,
    deleting,
    disrupted,
    ended,
    last_words,
    later,
    pod,
    raw_job,
    rfc3339,
    run,
    running,
    running_job,
    with_status,
)


def test_job_succeeds_when_rank_0_exits_0_though_others_run_still():
    made = run(running_job(), ended(0, 0, message=last_words(0, "Completed", progress={"step": 20})), running(1), at=9)
    status = made.status
    assert (status["state"], status["reason"]) == ("Succeeded", "TrainingSucceeded")
    assert condition(status, "Succeeded")["status"] == "True"
    assert condition(status, "Running")["status"] == "False"
    assert condition(status, "Failed") == {}
    assert status["completionTime"] == rfc3339(later(9))
    assert status["progress"]["step"] == 20
    assert made.again
    assert (made.create, made.delete) == ([], []), "the end goes on record first"


@pytest.mark.parametrize(
    "other", [ended(1, 1), ended(1, 75, at=-9), deleting(disrupted(running(1), "EvictionByEvictionAPI"))]
)
def test_success_goes_before_the_loss_of_another_pod(other):
    status = run(running_job(), ended(0, 0), other).status
    assert (status["state"], status.get("restarts", [])) == ("Succeeded", [])


def test_another_rank_that_exits_0_is_no_success():
    status = run(running_job(), running(0), ended(1, 0)).status
    assert status["state"] == "Running"


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [(64, "TooLittleMemory", "rollout.gpuMemoryUtilization"), (65, "RewardError", "mine.py, line 3: KeyError: 'x'")],
)
def test_users_fault_fails_at_once_with_its_words(rank, code, reason, words):
    pods = [running(0), running(1)]
    pods[rank] = ended(rank, code, message=last_words(code, reason, words))
    made = run(running_job(runPolicy={"maxRestarts": 1000}), *pods)
    status = made.status
    assert (status["state"], status["reason"], status["message"]) == ("Failed", reason, words)
    failed = condition(status, "Failed")
    assert (failed["status"], failed["reason"], failed["message"]) == ("True", reason, words)
    assert (status["failures"], status.get("restarts", []), status["attempt"]) == (0, [], 0)
    assert made.create == []


def test_users_fault_without_a_report_tells_the_log_tail():
    status = run(running_job(), running(0), ended(1, 65, message="Traceback ...\nKeyError: 'answer'")).status
    assert status["state"] == "Failed"
    for words in ("sums-1", "65", "KeyError: 'answer'"):
        assert words in status["message"]


def test_users_fault_goes_before_the_peers_that_it_took_along():
    fault = ended(1, 65, message=last_words(65, "BadData", "row 17"))
    assert run(running_job(), ended(0, 75, at=-9), fault).status["reason"] == "BadData"


def test_success_of_the_head_goes_before_a_users_fault_of_another_rank():
    """All steps are done and saved."""
    fault = ended(1, 65, message=last_words(65, "BadData", "row 17"))
    assert run(running_job(), ended(0, 0), fault).status["state"] == "Succeeded"


def test_invalid_spec_fails_with_the_field_the_numbers_and_the_repair():
    job = raw_job(actor={"ppoMiniBatchSize": 3})
    made = run(job, at=1)
    status = made.status
    valid = condition(status, "Valid")
    assert (valid["status"], valid["reason"]) == ("False", "InvalidSpec")
    for words in ("spec.actor.ppoMiniBatchSize", "3", "8"):
        assert words in valid["message"]
    assert (status["state"], status["reason"]) == ("Failed", "InvalidSpec")
    assert condition(status, "Failed")["status"] == "True"
    assert made.create == []
    settled = run(with_status(job, made), at=100)
    assert (settled.status, settled.create, settled.delete) == (status, [], [])


def test_spec_that_a_newer_operator_finds_invalid_takes_its_pods_along():
    job = {**raw_job(actor={"ppoMiniBatchSize": 3}), "status": running_job()["status"]}
    made = run(job, running(0), deleting(running(1)))
    assert (made.status["reason"], deleted(made)) == ("InvalidSpec", ["sums-0"])


def test_every_fault_of_an_invalid_spec_is_told_at_once():
    message = run(raw_job(actor={"ppoMiniBatchSize": 3}, rollout={"n": 1})).status["message"]
    assert "spec.rollout.n" in message
    job = raw_job(actor={"ppoMiniBatchSize": 3, "ppoMicroBatchSizePerGpu": 5}, trainer={"totalEpochs": 1})
    message = run(job).status["message"]
    assert "spec.actor.ppoMiniBatchSize" in message
    assert "spec.trainer" in message


def test_reward_sources_too_large_for_a_config_map_make_the_spec_invalid():
    source = "def compute_score(*args):\n    return 0\n" + "#" * 250_000
    functions = [{"name": f"mine-{i}", "python": {"source": source}} for i in range(4)]
    status = run(raw_job(reward={"functions": functions})).status
    assert condition(status, "Valid")["status"] == "False"
    assert "spec.reward.functions" in status["message"]
    assert "ConfigMap" in status["message"]


def test_job_that_is_being_deleted_gets_nothing():
    job = deleting(running_job())
    for pods in ([], [running(0), ended(1, 1)]):
        made = run(job, *pods, children=[child(POD_GROUP, "sums-0")], at=99)
        assert (made.status, made.create, made.delete, made.again) == (job["status"], [], [], False)


END = {
    "Succeeded": ended(0, 0),
    "Failed": ended(0, 65),
}


@pytest.mark.parametrize("outcome", END)
@pytest.mark.parametrize("policy", ["Running", "All", "None"])
def test_job_that_has_ended_never_gets_children_again(outcome, policy):
    job = running_job(runPolicy={"cleanPodPolicy": policy})
    job = with_status(job, run(job, END[outcome], running(1)))
    assert job["status"]["state"] == outcome
    changed = copy.deepcopy(job)
    changed["metadata"]["generation"] = 2
    changed["spec"]["runPolicy"] |= {"maxRestarts": 9}
    suspended = copy.deepcopy(changed)
    suspended["spec"]["runPolicy"]["suspend"] = True
    for held in (job, changed, suspended):
        for pods in ([], [END[outcome]], [END[outcome], ended(1, 1)], [running(0), running(1)], [pod(1)]):
            made = run(held, *pods, at=1000, capabilities=NATIVE)
            assert (created(made), made.again, made.wake_after) == ([], False, None)
            assert made.status == job["status"]


@pytest.mark.parametrize(
    ("policy", "going"),
    [
        ("Running", ["sums-1", "sums-2", "sums-4"]),  # running, waiting for a node, and pending for an image
        ("All", ["sums-0", "sums-1", "sums-2", "sums-3", "sums-4"]),
        ("None", ["sums-2"]),  # it has no node yet, so no log either; a queue would let it in one day
        (None, ["sums-1", "sums-2", "sums-4"]),  # the default
    ],
)
def test_pods_that_go_when_the_job_ends(policy, going):
    job = running_job(runPolicy={"cleanPodPolicy": policy} if policy else {})
    job = with_status(job, run(job, ended(0, 0)))
    pods = [ended(0, 0), running(1), pod(2), ended(3, 1), pod(4, node="a")]
    assert deleted(run(job, *pods)) == going
    assert deleted(run(job, *[deleting(item) for item in copy.deepcopy(pods)])) == [], "they go already"


@pytest.mark.parametrize(("sidecar", "going"), [(None, []), ("running", ["sums-0"]), ("terminated", [])])
def test_pod_whose_containers_have_all_ended_keeps_its_log(sidecar, going):
    """The kubelet tells of the containers a moment before the phase."""
    job = running_job()
    head = ended(0, 0)
    head["status"]["phase"] = "Running"
    if sidecar:
        head["spec"]["containers"].append({"name": "sidecar", "image": "x"})
        head["status"]["containerStatuses"].append({"name": "sidecar", "state": {sidecar: {}}})
    job = with_status(job, run(job, head))
    assert job["status"]["state"] == "Succeeded"
    assert deleted(run(job, head)) == going


GANG = [child(WORKLOAD, "sums"), child(POD_GROUP, "sums-0")]
KEPT = [child("ConfigMap", "sums-config"), child("Service", "sums"), child("PersistentVolumeClaim", "sums-checkpoints")]


@pytest.mark.parametrize(
    ("pods", "gone"),
    [
        ([ended(0, 0), running(1)], False),
        ([ended(0, 0), deleting(running(1))], False),
        ([ended(0, 0), pod(1)], False),
        ([ended(0, 0), ended(1, 143)], True),
        ([ended(0, 0)], True),
        ([], True),
    ],
)
@pytest.mark.parametrize("policy", ["Running", "All", "None"])
def test_gang_objects_go_after_the_last_running_pod(pods, gone, policy):
    job = running_job(runPolicy={"cleanPodPolicy": policy})
    job = with_status(job, run(job, ended(0, 0), running(1)))
    made = run(job, *pods, children=[*GANG, *KEPT], capabilities=NATIVE)
    going = {(kind, item["metadata"]["name"]) for kind, item in made.delete if kind != "Pod"}
    assert going == ({(WORKLOAD, "sums"), (POD_GROUP, "sums-0")} if gone else set())


def test_gang_object_that_is_going_is_not_deleted_again():
    job = running_job()
    job = with_status(job, run(job, ended(0, 0)))
    made = run(job, ended(0, 0), children=[deleting(copy.deepcopy(item)) for item in GANG], capabilities=NATIVE)
    assert made.delete == []


@pytest.mark.parametrize("before", [{}, {"state": "Succeeded", "completionTime": "2020-01-01T00:00:00Z"}])
def test_job_of_another_controller_is_left_alone(before):
    """KEP-4368: who is not named in managedBy writes neither children nor status."""
    policy = {"managedBy": "example.com/dispatcher", "ttlSecondsAfterFinished": 1, "suspend": True}
    for job in (raw_job(runPolicy=policy, status=before), raw_job(runPolicy=policy, rollout={"n": 1}, status=before)):
        made = run(job, running(0), ended(1, 1))
        assert (made.status, made.create, made.delete, made.wake_after) == (before, [], [], None)


def test_job_that_names_this_operator_is_its_own():
    assert run(raw_job(runPolicy={"managedBy": "grpo.dev/operator"})).create != []
