"""Volcano, Coscheduling and KAI: the group and the pods, as each project's own documents show them."""

import kubernetes_validate
import pytest

from grpo_api.job import parse_job
from grpo_operator.gang.base import Capabilities
from grpo_operator.gang.choice import BACKENDS, choose
from tests.unit.operator.operator_support import NATIVE, child, condition, deleted, pod, raw_job, run, running

GROUPS = {
    "volcano": ("scheduling.volcano.sh/v1beta1", "volcano"),
    "coscheduling": ("scheduling.x-k8s.io/v1alpha1", "scheduler-plugins-scheduler"),
    "kai": ("scheduling.run.ai/v2alpha2", "kai-scheduler"),
}
GROUP = "sums-0-11111111"
"""The job's name, the attempt, and the beginning of the job's UID."""
EVERYTHING = Capabilities(kinds=frozenset(kind for backend in BACKENDS.values() for kind in backend.kinds))


def scheduling(backend, **more):
    queue = {} if backend == "coscheduling" else {"queue": "team-a"}
    return {"backend": backend, **queue, **more}


def group_of(made):
    (group,) = [item for item in made.create if item["kind"] == "PodGroup"]
    return group


def pods_of(made):
    return [item for item in made.create if item["kind"] == "Pod"]


@pytest.mark.parametrize("backend", GROUPS)
def test_group_of_the_whole_gang_comes_first(backend):
    made = run(raw_job(gangScheduling=scheduling(backend)), capabilities=EVERYTHING)
    group = group_of(made)
    assert group["apiVersion"] == GROUPS[backend][0]
    assert group["metadata"]["name"] == GROUP
    assert group["spec"]["minMember"] == 2
    kinds = [item["kind"] for item in made.create]
    assert kinds.index("PodGroup") < kinds.index("Pod")
    for item in pods_of(made):
        assert item["spec"]["schedulerName"] == GROUPS[backend][1]
        kubernetes_validate.validate(item, "1.37.0", strict=True)


def test_volcano():
    """apis/pkg/apis/scheduling/v1beta1: KubeGroupNameAnnotationKey and PodGroupSpec."""
    template = {"priorityClassName": "urgent", "resources": {"requests": {"cpu": "750m", "memory": "1Gi"}}}
    job = raw_job(gangScheduling=scheduling("volcano"), trainer={"nGpusPerNode": 2}, template=template)
    made = run(job, capabilities=EVERYTHING)
    assert group_of(made)["spec"] == {
        "minMember": 2,
        "minResources": {"cpu": "1.5", "memory": "2147483648", "nvidia.com/gpu": "4"},
        "queue": "team-a",
        "priorityClassName": "urgent",
    }
    for item in pods_of(made):
        assert item["metadata"]["annotations"] == {"scheduling.k8s.io/group-name": GROUP}
    bare = run(raw_job(gangScheduling={"backend": "volcano"}), capabilities=EVERYTHING)
    assert group_of(bare)["spec"]["queue"] == "default"


def test_coscheduling():
    """pkg/coscheduling/README.md."""
    made = run(raw_job(gangScheduling=scheduling("coscheduling", scheduleTimeoutSeconds=90)), capabilities=EVERYTHING)
    assert group_of(made)["spec"] == {"minMember": 2, "scheduleTimeoutSeconds": 90}
    for item in pods_of(made):
        assert item["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == GROUP


def test_kai():
    """docs/developer/designs/external-podgroups."""
    made = run(raw_job(gangScheduling=scheduling("kai"), template={"priorityClassName": "train"}),
               capabilities=EVERYTHING)  # fmt: skip
    assert group_of(made)["spec"] == {"minMember": 2, "queue": "team-a", "priorityClassName": "train"}
    for item in pods_of(made):
        assert item["metadata"]["annotations"] == {
            "pod-group-name": GROUP,
            "kai.scheduler/skip-podgrouper": "true",
        }
        assert item["metadata"]["labels"]["kai.scheduler/queue"] == "team-a"


@pytest.mark.parametrize("backend", GROUPS)
def test_no_two_gangs_have_groups_of_one_name(backend):
    """Not in two namespaces either: KAI's scheduler knows groups by their bare names, in all of them."""
    names = set()
    for uid in ("11111111-0", "22222222-0"):
        for attempt in (0, 1, 99999999):
            job = raw_job("a" * 52, gangScheduling=scheduling(backend), status={"attempt": attempt})
            job["metadata"]["uid"] = uid
            names.add(group_of(run(job, capabilities=EVERYTHING))["metadata"]["name"])
    assert len(names) == 6
    assert max(map(len, names)) <= 63, "the longest value of a label"


@pytest.mark.parametrize("backend", GROUPS)
def test_scheduler_of_another_name(backend):
    overlay = {"podOverlay": {"spec": {"schedulerName": "default-scheduler"}}}
    made = run(raw_job(gangScheduling=scheduling(backend), template=overlay), capabilities=EVERYTHING)
    assert {item["spec"]["schedulerName"] for item in pods_of(made)} == {"default-scheduler"}


@pytest.mark.parametrize("backend", GROUPS)
def test_what_is_not_there_is_told_with_the_repair_and_nothing_is_made(backend):
    made = run(raw_job(gangScheduling=scheduling(backend)), capabilities=NATIVE)
    assert (made.status["state"], made.status["reason"]) == ("Pending", "Unschedulable")
    assert f"gangScheduling.backend is {backend}" in made.status["message"]
    assert GROUPS[backend][0] in made.status["message"]
    assert f"have {backend} in the chart's rbac.gangBackends" in made.status["message"]
    assert made.create == []


@pytest.mark.parametrize("backend", GROUPS)
def test_topology_that_it_cannot_keep_is_refused(backend):
    job = raw_job(gangScheduling=scheduling(backend, topologyKey="rack"))
    assert "topologyMode" in run(job, capabilities=EVERYTHING).status["message"]
    wish = raw_job(gangScheduling=scheduling(backend, topologyKey="rack", topologyMode="Preferred"))
    for item in pods_of(run(wish, capabilities=EVERYTHING)):
        assert item["spec"]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]


def test_auto_takes_none_of_them():
    """Their objects may be served where their scheduler does not run, or runs by another name."""
    for queue in ({}, {"queue": "team-a"}):
        job = parse_job(raw_job(gangScheduling={"backend": "auto", **queue}))
        backend, _ = choose(job, EVERYTHING)
        assert (backend and backend.name) == (None if queue else "native")


def test_group_of_the_last_attempt_goes_when_the_next_one_is_made():
    kind = "PodGroup.v1beta1.scheduling.volcano.sh"
    status = {"state": "Restarting", "attempt": 1, "failures": 0}
    old = child(kind, GROUP)
    made = run(raw_job(gangScheduling=scheduling("volcano"), status=status), capabilities=EVERYTHING, children=[old])
    assert deleted(made, kind) == [GROUP]
    assert group_of(made)["metadata"]["name"] == "sums-1-11111111"
    before = run(raw_job(gangScheduling=scheduling("volcano"), status=status), running(0), capabilities=EVERYTHING,
                 children=[old])  # fmt: skip
    assert deleted(before, kind) == [], "never before the last pod"


def waiting(backend, **status):
    kind = BACKENDS[backend].kinds[0]
    group = child(kind, GROUP) | {"status": status}
    job = raw_job(gangScheduling=scheduling(backend))
    return run(job, pod(0), pod(1), capabilities=EVERYTHING, children=[group]).status


def test_volcanos_words():
    told = {"type": "Unschedulable", "status": "True", "message": "2/2 tasks in gang unschedulable", "reason": "N"}
    in_line = waiting("volcano", phase="Pending", conditions=[told])
    assert (in_line["state"], in_line["reason"]) == ("Queued", "WaitingForQuota")
    assert in_line["message"] == "waits in queue team-a: 2/2 tasks in gang unschedulable"
    looks = waiting("volcano", phase="Inqueue", conditions=[told])
    assert (looks["state"], looks["reason"]) == ("Scheduling", "Unschedulable")
    assert condition(looks, "Scheduled")["message"] == "2/2 tasks in gang unschedulable"
    assert waiting("volcano")["state"] == "Scheduling"


def test_kais_words():
    told = {
        "type": "UnschedulableOnNodePool",
        "message": "Node-Group default: no nodes with enough GPUs",
        "status": "True",
    }
    said = waiting("kai", schedulingConditions=[told])
    assert (said["state"], said["reason"]) == ("Scheduling", "Unschedulable")
    assert said["message"] == "Node-Group default: no nodes with enough GPUs"
    assert waiting("kai")["reason"] == "WaitingForScheduler"
