"""The pods that Kueue gets, by its own documents, and what is made of what it says."""

import json

import kubernetes_validate
import pytest

from grpo_api.job import parse_job
from grpo_operator import events
from grpo_operator.capabilities import discover
from grpo_operator.gang.base import Capabilities
from grpo_operator.gang.choice import choose
from grpo_operator.gang.kueue import group_name, holder
from tests.unit.operator.operator_support import (
    NATIVE,
    NOTHING,
    condition,
    deleting,
    later,
    pod,
    raw_job,
    run,
    running,
    set_condition,
)
from tests.unit.operator.test_gang_choice import Cluster
from tests.unit.operator.test_reconciler import Rig

WORKLOADS = "Workload.v1beta2.kueue.x-k8s.io"
KUEUE = Capabilities(kinds=NATIVE.kinds, reads=frozenset({WORKLOADS}))
QUEUED = {"backend": "auto", "queue": "team-a"}
GROUP = "sums-0-1111"
GATE = {"name": "kueue.x-k8s.io/admission"}
NO_QUOTA = "couldn't assign flavors to pod set d2d9ea53: insufficient unused quota for nvidia.com/gpu in flavor default"


def pods_of(made):
    return [item for item in made.create if item["kind"] == "Pod"]


def gated(rank, *, managed=True):
    """As Kueue's webhook leaves a pod."""
    made = pod(rank)
    made["metadata"]["labels"] |= {"kueue.x-k8s.io/pod-group-name": GROUP}
    made["spec"]["schedulingGates"] = [GATE, {"name": "kueue.x-k8s.io/topology"}]
    if managed:
        made["metadata"]["labels"]["kueue.x-k8s.io/managed"] = "true"
        made["metadata"]["finalizers"] = ["kueue.x-k8s.io/managed"]
    return set_condition(made, "PodScheduled", "False", reason="SchedulingGated", message="Scheduling is blocked")


def workload(**status):
    told = {"conditions": [{"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": NO_QUOTA}]}
    metadata = {"name": GROUP, "namespace": "team", "uid": "workload"}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": metadata,
        "status": told | status,
    }


def test_pods_are_a_plain_pod_group():
    """https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/: these labels and annotations, on every pod."""
    made = run(raw_job(gangScheduling=QUEUED), capabilities=KUEUE)
    assert made.status["gang"]["backend"] == "kueue"
    assert len(pods_of(made)) == 2
    for item in pods_of(made):
        assert item["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
        assert item["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] == GROUP
        assert item["metadata"]["annotations"] == {
            "kueue.x-k8s.io/pod-group-total-count": "2",
            "kueue.x-k8s.io/retriable-in-group": "false",
        }
        assert item["spec"]["schedulingGates"] == [GATE]
        assert item["spec"]["restartPolicy"] == "Never"
        kubernetes_validate.validate(item, "1.37.0", strict=True)
    assert not [item for item in made.create if item["kind"] in ("Workload", "PodGroup")], "Kueue makes its own"


def test_pods_keep_what_their_overlay_says_but_not_what_would_admit_them_in_part():
    overlay = {
        "metadata": {
            "labels": {"kueue.x-k8s.io/priority-class": "urgent", "kueue.x-k8s.io/queue-name": "another"},
            "annotations": {"kueue.x-k8s.io/pod-group-fast-admission": "true", "mine": "kept"},
        },
        "spec": {"schedulingGates": [GATE, {"name": "mine/gate"}]},
    }
    for item in pods_of(run(raw_job(gangScheduling=QUEUED, template={"podOverlay": overlay}), capabilities=KUEUE)):
        assert item["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "urgent"
        assert item["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
        assert item["metadata"]["annotations"]["mine"] == "kept"
        assert "kueue.x-k8s.io/pod-group-fast-admission" not in item["metadata"]["annotations"]
        assert item["spec"]["schedulingGates"] == [GATE, {"name": "mine/gate"}]


@pytest.mark.parametrize("mode", ["Required", "Preferred"])
def test_topology_is_kueues_to_keep(mode):
    scheduling = QUEUED | {"topologyKey": "rack", "topologyMode": mode}
    for item in pods_of(run(raw_job(gangScheduling=scheduling), capabilities=KUEUE)):
        assert item["metadata"]["annotations"][f"kueue.x-k8s.io/podset-{mode.lower()}-topology"] == "rack"
        assert "affinity" not in item["spec"]


def test_each_attempt_and_each_namesake_is_a_group_of_its_own():
    job = parse_job(raw_job("a" * 52, gangScheduling=QUEUED))
    namesake = job.model_copy(update={"metadata": {**job.metadata, "uid": "22222222-0000"}})
    names = {group_name(item, attempt) for item in (job, namesake) for attempt in (0, 1, 9999)}
    assert len(names) == 6
    assert max(map(len, names)) <= 63, "the longest value of a label"


def test_auto_takes_kueue_where_the_job_names_a_queue():
    def choice(capabilities, **scheduling):
        backend, why = choose(parse_job(raw_job(gangScheduling={"backend": "auto"} | scheduling)), capabilities)
        return backend and backend.name, why

    assert choice(KUEUE)[0] == "native"
    assert choice(KUEUE, queue="team-a")[0] == "kueue"
    assert choice(Capabilities(reads=frozenset({"Workload.v1beta1.kueue.x-k8s.io"})), queue="team-a")[0] == "kueue"
    for scheduling in ({"queue": "team-a"}, {"backend": "kueue", "queue": "team-a"}):
        backend, why = choice(NATIVE, **scheduling)
        assert backend is None, "a quota that nothing keeps would be no quota"
        assert "install Kueue" in why
        assert "gangScheduling.queue (team-a)" in why


@pytest.mark.parametrize("asked", ["auto", "kueue"])
def test_cluster_without_kueue_is_told_in_the_status_and_nothing_is_made(asked):
    made = run(raw_job(gangScheduling=QUEUED | {"backend": asked}), capabilities=NATIVE)
    assert (made.status["state"], made.status["reason"]) == ("Pending", "Unschedulable")
    assert f"gangScheduling.backend is {asked}" in made.status["message"]
    assert "install Kueue" in made.status["message"]
    assert made.create == []


def test_waiting_gang_says_its_queue_and_kueues_own_words():
    job = raw_job(gangScheduling=QUEUED)
    made = run(job, gated(0), gated(1), capabilities=KUEUE, consulted=workload())
    assert (made.status["state"], made.status["reason"]) == ("Queued", "WaitingForQuota")
    assert made.status["message"] == f"waits in queue team-a: {NO_QUOTA}"
    assert condition(made.status, "Scheduled")["reason"] == "WaitingForQuota"
    assert made.consult == (WORKLOADS, GROUP)
    unseen = run(job, gated(0), gated(1), capabilities=KUEUE)
    assert unseen.status["message"] == "waits in queue team-a: Kueue has not looked at it yet"


def test_admission_checks_are_told():
    reserved = {"type": "QuotaReserved", "status": "True", "message": "Quota reserved in ClusterQueue gpus"}
    checks = [
        {"name": "licence", "state": "Ready", "message": "ok"},
        {"name": "capacity", "state": "Pending", "message": "Waiting for a provisioning request"},
    ]
    waits = workload(conditions=[reserved], admissionChecks=checks)
    made = run(raw_job(gangScheduling=QUEUED), gated(0), gated(1), capabilities=KUEUE, consulted=waits)
    assert made.status["message"].endswith(
        "Quota reserved in ClusterQueue gpus; admission checks: capacity: Waiting for a provisioning request"
    )


def test_pods_that_kueue_does_not_manage_wait_and_say_so():
    """Its integration of pods is off, or the namespace is not one of its own: nobody would lift the gate."""
    job = raw_job(gangScheduling=QUEUED)
    pods = gated(0, managed=False), gated(1, managed=False)
    made = run(job, *pods, capabilities=KUEUE)
    assert (made.status["state"], made.status["reason"]) == ("Queued", "NotManagedByKueue")
    assert "integration `pod`" in made.status["message"]
    assert "namespace team" in made.status["message"]
    assert [(kind, reason) for kind, reason, _ in events.told({}, made.status)][-1] == ("Warning", "NotManagedByKueue")
    assert not events.told(made.status, run(job, *pods, capabilities=KUEUE).status), "once"


def test_admitted_gang_is_as_any_other():
    made = run(raw_job(gangScheduling=QUEUED), pod(0), pod(1), capabilities=KUEUE, consulted=workload())
    assert made.status["state"] == "Scheduling"
    assert made.consult is None


def of_group(item):
    item["metadata"]["labels"] |= {"kueue.x-k8s.io/pod-group-name": GROUP}
    item["metadata"]["finalizers"] = ["kueue.x-k8s.io/managed"]
    return item


def test_deleted_pods_are_let_go_of_where_nothing_of_them_runs():
    waiting = [deleting(gated(0)), deleting(gated(1))]
    assert holder(waiting, KUEUE, []) == (WORKLOADS, GROUP)
    assert holder(waiting, NOTHING, []) is None, "Kueue is gone"
    assert holder([gated(0), gated(1)], KUEUE, []) is None, "they are not to go"
    others = [deleting(pod(0)), deleting(pod(1))]
    assert holder(others, KUEUE, others) is None, "Kueue does not hold them"


def test_quota_of_pods_that_may_run_still_is_not_given_back():
    ends = [deleting(of_group(running(0))), deleting(gated(1))]
    assert holder(ends, KUEUE, []) is None
    assert holder(ends, KUEUE, [ends[1]]) == (WORKLOADS, GROUP)
    assert holder(ends, KUEUE, [ends[0]]) == (WORKLOADS, GROUP)


async def test_waiting_pods_of_a_deleted_job_are_let_go_of():
    job = raw_job(gangScheduling=QUEUED)
    rig = Rig(job, deleting(gated(0)), deleting(gated(1)), workload())
    rig.cache.capabilities = KUEUE
    rig.cache.drop_job(job)
    await rig.reconcile()
    assert ("delete", WORKLOADS, GROUP) in rig.kube.requests


async def test_workload_of_pods_that_do_not_go_is_deleted():
    rig = Rig(raw_job(gangScheduling=QUEUED), *map(deleting, map(of_group, (running(0), running(1)))), workload())
    rig.cache.capabilities = KUEUE
    rig.now = later(60)
    await rig.reconcile()
    assert ("delete", WORKLOADS, GROUP) not in rig.kube.requests, "their kubelet may need its grace period"
    rig.now = later(300)
    await rig.reconcile()
    assert ("delete", "Pod", "sums-0", "grace=0") in rig.kube.requests
    assert ("delete", WORKLOADS, GROUP) in rig.kube.requests


@pytest.mark.parametrize("missing", ["get", "delete"])
async def test_kueue_is_not_there_for_a_role_that_lacks_a_verb(missing):
    allowed = await discover(Cluster({WORKLOADS}, lambda verb, *_: verb in ("get", "delete")), (), "d")
    assert (allowed.reads, allowed.kinds) == ({WORKLOADS}, frozenset()), "nothing of it is watched"
    assert not (await discover(Cluster({WORKLOADS}, lambda verb, *_: verb != missing), (), "d")).reads


async def test_kueues_words_are_read_ever_less_often_and_only_while_the_gang_waits():
    rig = Rig(raw_job(gangScheduling=QUEUED))
    rig.cache.capabilities = KUEUE

    def looks():
        return rig.kube.requests.count(("get", WORKLOADS, GROUP))

    await rig.reconcile()
    for rank in (0, 1):
        rig.kube.put(gated(rank))
    rig.watch()
    await rig.reconcile()
    before = looks()
    rig.kube.put(workload())
    for second in range(1, 600):
        rig.now = later(second)
        await rig.reconcile()
    assert 10 < looks() - before < 20
    status = rig.kube.objects["GRPOJob", "sums"]["status"]
    assert NO_QUOTA in status["message"]
    json.dumps(status)
    for rank in (0, 1):
        admitted = gated(rank)
        admitted["spec"]["schedulingGates"] = []
        rig.kube.put(admitted)
    rig.watch()
    await rig.reconcile()
    before = looks()
    rig.now = later(10_000)
    await rig.reconcile()
    assert looks() == before
