"""What keeps a job from starting, told in words that name the repair; and what only looks like the job's work."""

import pytest

from grpo_operator import apply
from grpo_operator.cache import Cache
from grpo_operator.kube import KubeError
from grpo_operator.observe import CreateFault
from grpo_operator.plan import Plan
from grpo_operator.policies.problems import PLACEMENT_PATIENCE_SECONDS
from tests.unit.operator.fake_kube import FakeKube
from tests.unit.operator.operator_support import (
    child,
    condition,
    end,
    ended,
    last_words,
    pod,
    raw_job,
    run,
    running,
    running_job,
    set_condition,
)

LATE = PLACEMENT_PATIENCE_SECONDS


def claim(phase: str, storage_class: str | None = None):
    spec = {"storageClassName": storage_class} if storage_class else {}
    return {**child("PersistentVolumeClaim", "sums-checkpoints"), "spec": spec, "status": {"phase": phase}}


def conflicting(rank: int):
    return set_condition(pod(rank), "PodScheduled", "False", reason="SchedulerError", message="node was assumed")


def test_claim_that_does_not_bind_is_named_after_a_moment():
    gang, claims = (conflicting(0), conflicting(1)), [claim("Pending", "fast-ssd")]
    early = run(raw_job(), *gang, children=claims, at=LATE - 5)
    assert (early.status["reason"], early.wake_after) == ("WaitingForScheduler", 5)
    status = run(raw_job(), *gang, children=claims, at=LATE).status
    assert (status["state"], status["reason"]) == ("Scheduling", "ClaimNotBound")
    for word in ("sums-checkpoints", "fast-ssd", "kubectl describe pvc", "checkpoint.claimTemplate"):
        assert word in status["message"]
    assert condition(status, "Scheduled")["reason"] == "ClaimNotBound"


def test_schedulers_own_words_go_before_a_claim_that_waits_for_its_first_consumer():
    stuck = set_condition(
        pod(0), "PodScheduled", "False", reason="Unschedulable", message="Insufficient nvidia.com/gpu"
    )
    status = run(raw_job(), stuck, pod(1), children=[claim("Pending")], at=LATE).status
    assert (status["reason"], "Insufficient" in status["message"]) == ("Unschedulable", True)


def test_scheduler_error_that_stays_is_told():
    status = run(raw_job(), conflicting(0), pod(1), children=[claim("Bound")], at=LATE).status
    assert (status["reason"], "node was assumed" in status["message"]) == ("Unschedulable", True)


def test_pods_that_wait_without_an_obstacle_are_only_waited_for():
    assert run(raw_job(), pod(0), pod(1), children=[claim("Bound")], at=600).status["reason"] == "WaitingForScheduler"


@pytest.mark.parametrize("there", [True, False])
async def test_pods_are_made_only_when_the_named_claim_exists(there):
    job = raw_job(checkpoint={"claimName": "shared"})
    kube = FakeKube({"kind": "PersistentVolumeClaim", "metadata": {"name": "shared", "namespace": "team"}})
    if not there:
        kube = FakeKube()
    made = Plan(status={}, create=[child("ConfigMap", "sums-config"), child("Pod", "sums-0"), child("Pod", "sums-1")])
    fault = await apply.create_all(kube, Cache(), job, made)
    pods = [name for verb, kind, name in kube.requests if (verb, kind) == ("create", "Pod")]
    if there:
        assert (fault, pods) == (None, ["sums-0", "sums-1"])
    else:
        assert fault is not None
        assert (fault.reason, pods) == ("ClaimMissing", [])
        assert "claim shared does not exist in namespace team" in fault.message
        assert "checkpoint.claimName" in fault.message


@pytest.mark.parametrize(
    ("code", "message", "final"),
    [
        (422, 'Pod "sums-0" is invalid: spec.containers[1].image: Required value', True),
        (400, 'strict decoding error: unknown field "spec.hostNetworkk"', True),
        (400, 'admission webhook "policy.example" denied the request: no', False),
        (403, "exceeded quota: tight, requested: pods=1", False),
        (403, 'pods "sums-0" is forbidden: violates PodSecurity', False),
    ],
)
async def test_manifest_that_can_never_be_made_ends_the_job(code, message, final):
    kube = FakeKube()
    kube.refusals["Pod", "sums-0"] = KubeError(code, "Word", message)
    made = Plan(status={}, create=[child("Pod", "sums-0")])
    fault = await apply.create_all(kube, Cache(), raw_job(), made)
    assert fault is not None
    assert fault.final is final
    status = run(raw_job(), create_fault=fault).status
    assert message in status["message"]
    assert (status["state"], status["reason"]) == (("Failed", "InvalidSpec") if final else ("Pending", fault.reason))


def test_exit_code_0_without_the_trainers_report_is_no_success():
    """As of a podOverlay with `command: [/bin/true]`."""
    silent = end(running(0), 0, message=" ")
    status = run(running_job(), silent, running(1)).status
    assert (status["state"], status["reason"]) == ("Failed", "TrainerNotRun")
    assert "template.podOverlay" in status["message"]
    told = ended(0, 0, message=last_words(0, "Completed"))
    assert run(running_job(), told, running(1)).status["state"] == "Succeeded"


@pytest.mark.parametrize("label", ["grpo.dev/attempt", "grpo.dev/node-rank"])
@pytest.mark.parametrize("value", ["abc", "", "-1", None])
def test_edited_labels_stop_nothing(label, value):
    odd = running(1)
    if value is None:
        del odd["metadata"]["labels"][label]
    else:
        odd["metadata"]["labels"][label] = value
    assert run(running_job(), running(0), odd).status["state"] in ("Running", "Restarting", "Pending")


def test_failed_init_container_is_named_with_its_code_and_words():
    lost = pod(1, phase="Failed", node="node-1")
    terminated = {"exitCode": 3, "reason": "Error", "message": "cannot download model"}
    lost["status"]["initContainerStatuses"] = [{"name": "fetch", "state": {"terminated": terminated}}]
    message = run(running_job(), running(0), lost).status["restarts"][0]["message"]
    for word in ("sums-1", "fetch", "exit code 3", "cannot download model"):
        assert word in message


def test_fault_is_told_once_and_repaired_by_itself():
    fault = CreateFault("ClaimMissing", "claim shared does not exist")
    assert run(raw_job(), create_fault=fault).status["reason"] == "ClaimMissing"


def unplaced(rank: int, message: str, claim: str | None = None):
    item = set_condition(pod(rank), "PodScheduled", "False", reason="Unschedulable", message=message)
    if claim:
        item["spec"]["volumes"] = [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": claim}}]
    return item


SHORT = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."


@pytest.mark.parametrize(
    "more",
    [
        "",
        " preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod.",
        " no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful.",
    ],
)
def test_schedulers_reason_is_summed_up_in_one_line_for_all_pods(more):
    status = run(raw_job(), unplaced(0, SHORT + more), unplaced(1, SHORT + more)).status
    assert status["message"] == f"sums-0 and 1 more: {SHORT}"


@pytest.mark.parametrize(
    "said",
    [
        "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
        'persistentvolumeclaim "shared" not found',
    ],
)
def test_claim_of_the_users_own_that_is_not_bound_is_named(said):
    status = run(raw_job(checkpoint={"claimName": "shared"}), unplaced(0, said, "shared"), unplaced(1, said, "shared"))
    assert status.status["reason"] == "ClaimNotBound"
    assert "kubectl describe pvc shared" in status.status["message"]
