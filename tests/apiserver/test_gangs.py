"""What every gang backend must do, against a real API server and scheduler: one list of cases for all that run here.

Six GPUs on three nodes; pods have no kubelet but are run and ended as one would. Whether two gangs ever hold part of
what they need, and whether an object of a gang's goes before its last pod, is read from etcd's whole history.
"""

import pytest

from tests.apiserver.gang_support import BACKENDS, QUEUE_IN_ORDER, RACK, URGENT

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(240)]
ONE_AT_A_TIME = {"gated"}
"""Backends that start one gang after the other. Kubernetes' own scheduler binds two gangs that it has found room for at
the same time, and so do gangs that Kueue lets in together."""


@pytest.fixture(params=BACKENDS)
def site(gang_site, request):
    gang_site.backend = request.param
    gang_site.history.one_at_a_time = request.param in ONE_AT_A_TIME
    gang_site.history.broken.clear()
    yield gang_site
    gang_site.clear()
    assert gang_site.history.broken == []
    assert gang_site.record.error is None


def test_two_that_fit_alone_and_not_together(site):
    """The second waits whole and starts when the first ends; suspended or deleted while it waits, it holds nothing."""
    first = site.apply("first", 2, gpus=2)
    site.wait_state(first, "Running")
    second = site.apply("second", 2, gpus=2)
    third = site.apply("third", 2, gpus=2)
    for name in (second, third):
        status = site.wait_state(name, "Queued", "Scheduling")
        assert status["gang"]["backend"] == site.backend
        assert status["message"]
        assert not site.has_nodes(name)
    site.suspend(second, True)
    site.wait_state(second, "Suspended")
    site.wait("release of the second", lambda: not site.pods(second) and not site.groups(second))
    site.delete(third)
    site.wait("end of the third", lambda: not site.pods(third) and not site.groups(third))
    site.suspend(second, False)
    site.wait_state(second, "Queued", "Scheduling")
    assert not site.has_nodes(second)
    site.finish(first)
    site.wait_state(first, "Succeeded")
    site.wait("release of the first", lambda: site.released(first))
    site.wait_state(second, "Running")
    assert site.status(second)["failures"] == 0
    site.fail(second)
    site.wait_state(second, "Failed")
    site.wait("release of the second", lambda: site.released(second))


def test_larger_than_the_cluster(site):
    """It says so and holds nothing, and others pass it by."""
    giant = site.apply("giant", 4, gpus=2)
    small = site.apply("small", 2)
    site.wait_state(small, "Running")
    status = site.wait_state(giant, "Queued", "Scheduling")
    site.wait("word of what is missing", lambda: _told(site, giant))
    assert status["nodes"]["total"] == 4
    assert not site.has_nodes(giant)


def _told(site, name):
    """By GPUs, or in Kueue's words on a topology."""
    message = site.status(name).get("message", "")
    return "nvidia.com/gpu" in message or 'topology "racks" ' in message


def test_pod_lost_after_start(site):
    """The whole gang goes and comes back, and the budget for failures is untouched."""
    name = site.apply("lost", 2)
    site.wait_state(name, "Running")
    before = {pod["metadata"]["uid"] for pod in site.pods(name)}
    site.delete_pod(site.pods(name)[1])
    site.wait("second attempt", lambda: site.status(name).get("attempt") == 1)
    site.wait_state(name, "Running")
    assert not before & {pod["metadata"]["uid"] for pod in site.pods(name)}
    status = site.status(name)
    assert (status["failures"], [one["counted"] for one in status["restarts"]]) == (0, [False])
    site.wait("end of the first group", lambda: not [one for one in site.groups(name) if _of_first_attempt(one)])


def _of_first_attempt(group):
    """By its name: the job's, the attempt, and for Kueue a part of the job's UID."""
    return f"{group['metadata']['name']}-".startswith("-0-", group["metadata"]["name"].index("lost") + 4)


def test_suspended_while_it_runs_and_failed_while_it_waits(site):
    """Both give back all: no pod is left behind a gate, in a queue or held by a finalizer, whatever pods are kept."""
    first = site.apply("first", 2, gpus=2)
    site.wait_state(first, "Running")
    late = site.apply("late", 2, gpus=2, runPolicy={"activeDeadlineSeconds": 1, "cleanPodPolicy": "None"})
    assert site.wait_state(late, "Failed")["reason"] == "DeadlineExceeded"
    site.suspend(first, True)
    site.wait_state(first, "Suspended")
    for name in (first, late):
        site.wait(f"release of {name}", lambda name=name: not site.pods(name) and not site.groups(name))
    site.suspend(first, False)
    site.wait_state(first, "Running")
    assert site.status(first)["failures"] == 0


def test_deleted_with_no_operator(site):
    """Kubernetes' own garbage collector leaves nothing, and takes the gangs' objects after their last pods."""
    running = [site.apply(f"deleted-{number}", 2) for number in range(3)]
    for name in running:
        site.wait_state(name, "Running")
    site.kill_operator()
    try:
        site.clear()
    finally:
        site.start_operator()


def test_gang_of_higher_priority(site):
    """It comes before those that wait, and takes the place of one that runs; that one goes whole and comes back."""
    low, waits = site.apply("low", 3, gpus=2, **SIX), site.apply("waits", 3, gpus=2, **SIX)
    running = site.wait("one of the two", lambda: next((n for n in (low, waits) if _runs(site, n)), None))
    urgent = site.apply("urgent", 2, gpus=2, template={"priorityClassName": URGENT})
    site.wait_state(urgent, "Running")
    site.wait("preemption", lambda: site.status(running).get("restarts"))
    status = site.status(running)
    assert [(one["cause"], one["counted"]) for one in status["restarts"]] == [("Preempted", False)]
    assert status["failures"] == 0
    site.wait("the whole gang's end", lambda: not site.has_nodes(running))
    site.finish(urgent)
    for _ in range(2):
        name = site.wait("one of the two again", lambda: next((n for n in (low, waits) if _runs(site, n)), None))
        site.finish(name)
        site.wait_state(name, "Succeeded")


SIX = {"data": {"trainBatchSize": 6}, "actor": {"ppoMiniBatchSize": 6}}
"""Batches that six GPUs divide."""


def _runs(site, name):
    return site.status(name).get("state") == "Running"


def test_topology(site):
    """Two pods of two GPUs fit one rack only; with another there, a gang that must be in one waits and another goes."""
    within = {"topologyKey": RACK}
    first = site.apply("first", 2, gpus=2, gangScheduling=within)
    site.wait_state(first, "Running")
    assert {pod["spec"]["nodeName"] for pod in site.pods(first)} == {"node-1", "node-2"}
    site.finish(first)
    site.wait_state(first, "Succeeded")
    site.wait("release of the first", lambda: site.released(first))
    block = site.apply("block", 1, gpus=2, template={"nodeSelector": {"kubernetes.io/hostname": "node-2"}})
    site.wait_state(block, "Running")
    must, would = site.apply("must", 2, gpus=2, gangScheduling=within), None
    site.wait_state(must, "Queued", "Scheduling")
    site.wait("word of what is missing", lambda: _told(site, must))
    assert not site.has_nodes(must)
    would = site.apply("would", 2, gpus=2, gangScheduling={**within, "topologyMode": "Preferred"})
    site.wait_state(would, "Running")
    assert not site.has_nodes(must)


def test_twenty_gangs_for_three_places(site):
    """All finish, and at no moment of the history do two gangs hold a part of what they need. `gated` and `kueue` start
    them in the order of their arrival; Kubernetes' own scheduler makes no such promise (docs/gang-scheduling.md)."""
    place = {"requests": {"cpu": "100m", "memory": "1Gi"}}
    in_order = {"queue": QUEUE_IN_ORDER} if site.backend == "kueue" else {}
    first, before = len(site.history.started), len(site.history.let_in)
    made = {"template": {"resources": place}, "gangScheduling": in_order}
    jobs = [site.apply(f"gang-{number:02}", 2, **made) for number in range(20)]
    left = set(jobs)

    def ended():
        for name in [name for name in left if _runs(site, name)]:
            site.finish(name)
            left.discard(name)
        return not left

    site.wait("end of all gangs", ended, 120)
    for name in jobs:
        site.wait_state(name, "Succeeded")
    started = site.history.started[first:]
    assert sorted(started) == jobs
    if site.backend == "gated":
        assert started == jobs
    if site.backend == "kueue":
        # Its clock has seconds, and it writes down in any order what it has decided for three places.
        let_in = site.history.let_in[before:]
        assert sorted(name for name, _ in let_in) == jobs
        assert not [(a, b) for place, a in enumerate(let_in) for b in let_in[place + 3 :] if a[1] > b[1]]
