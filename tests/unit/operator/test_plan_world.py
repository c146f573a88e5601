"""Plans carried out in a small world: it settles and is then left alone, and no order of events breaks a rule."""

import copy
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_api.status import GRPOJobStatus, HeadReport
from grpo_operator.policies.podstate import is_unreachable
from tests.unit.operator.operator_support import (
    NATIVE,
    NOTHING,
    POD_GROUP,
    WORKLOAD,
    World,
    deleting,
    disrupted,
    end,
    last_words,
    later,
    raw_job,
    set_condition,
    training,
)

MAX_RESTARTS = 2
TERMINAL = ("Succeeded", "Failed")


def make_world(native=True):
    job = raw_job(runPolicy={"maxRestarts": MAX_RESTARTS}, gangScheduling={"backend": "auto"})
    return World(job, capabilities=NATIVE if native else NOTHING)


def assert_settled(world):
    """The operator sleeps now: a further plan has nothing to write. What was refused is all that is tried again."""
    made = world.plan()
    assert made.status == world.status
    assert (made.delete, made.again) == ([], False)
    assert bool(made.create) == (world.fault is not None)


def new(world):
    world.reconcile()


def placed(world):
    world.reconcile()
    for item in world.pods:
        item["spec"]["nodeName"] = "node"


def loading(world):
    world.reconcile()
    world.start(0)
    world.start(1)
    world.head_report = HeadReport(phase="loading")


def refused(world):
    world.refused = {"sums-1"}
    world.reconcile()


def failed_once(world):
    world.run_gang()
    end(world.pod(1), 1)
    world.reconcile()


def in_the_pause(world):
    failed_once(world)
    world.confirm_deletions()


def second_attempt(world):
    in_the_pause(world)
    world.reconcile()
    world.now = later(60)


def second_attempt_runs(world):
    second_attempt(world)
    world.run_gang()


def lost_a_peer(world):
    world.run_gang()
    end(world.pod(1), 75)
    world.now = later(1)


def succeeded(world):
    world.run_gang()
    end(world.pod(0), 0)


def succeeded_and_cleaned(world):
    succeeded(world)
    world.reconcile()
    world.confirm_deletions()


def users_fault(world):
    world.run_gang()
    end(world.pod(1), 65, message=last_words(65, "RewardError", "mine.py, line 3"))


def invalid(world):
    world.job["spec"]["rollout"] = {"n": 1}


def suspending(world):
    world.run_gang()
    world.job["spec"]["runPolicy"]["suspend"] = True


def suspended(world):
    suspending(world)
    world.reconcile()
    world.confirm_deletions()


def resumed_early(world):
    suspending(world)
    world.reconcile()
    world.job["spec"]["runPolicy"]["suspend"] = False


SITUATIONS = [
    *(new, placed, loading, World.run_gang, refused, failed_once, in_the_pause, second_attempt, second_attempt_runs),
    *(lost_a_peer, succeeded, succeeded_and_cleaned, users_fault, invalid, suspending, suspended, resumed_early),
]


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda found: found.__name__)
@pytest.mark.parametrize("native", [True, False])
def test_reconcile_leaves_nothing_to_write(situation, native):
    world = make_world(native)
    situation(world)
    world.reconcile()
    assert_settled(world)
    GRPOJobStatus.model_validate(world.status)


def schedule(world, item, rank):
    if not item["spec"].get("nodeName") and not item["metadata"].get("deletionTimestamp"):
        world.start(rank)


def finish(code, reason=""):
    def act(world, item, rank):
        if item["status"]["phase"] == "Running":
            end(item, code, reason, at=(world.now - later(0)).total_seconds())

    act.__name__ = f"exit_{code}{reason}"
    return act


def disrupt(reason):
    def act(world, item, rank):
        deleting(disrupted(item, reason))

    act.__name__ = reason
    return act


def delete(world, item, rank):
    deleting(item)


def vanish(world, item, rank):
    """Deleted without grace, or with its node: no update is ever seen."""
    del world.children["Pod", item["metadata"]["name"]]


def go_silent(world, item, rank):
    """Its node does not answer: the node controller takes Ready away."""
    if item["status"]["phase"] == "Running":
        set_condition(set_condition(item, "ContainersReady", "True"), "Ready", "False")


def answer(world, item, rank):
    if is_unreachable(item):
        set_condition(item, "Ready", "True")


def confirm(world, item, rank):
    if item["metadata"].get("deletionTimestamp"):
        del world.children["Pod", item["metadata"]["name"]]


def confirm_all(world, item, rank):
    world.confirm_deletions()


def head_trains(world, item, rank):
    world.head_report = training()


def set_suspend(value):
    def act(world, item, rank):
        world.job = copy.deepcopy(world.job)
        world.job["spec"]["runPolicy"]["suspend"] = value

    act.__name__ = "suspend" if value else "resume"
    return act


def wait(seconds):
    def act(world, item, rank):
        world.now = later((world.now - later(0)).total_seconds() + seconds)

    act.__name__ = f"wait_{seconds}"
    return act


def quota(world, item, rank):
    world.refused ^= {f"sums-{rank}"}


def lose(kind):
    """Somebody deletes every child of a kind."""

    def act(world, item, rank):
        for child in [child for child in world.children if child[0] == kind]:
            del world.children[child]

    act.__name__ = f"lose_{kind}"
    return act


def edit_service(world, item, rank):
    if service := world.children.get(("Service", "sums")):
        service["spec"]["selector"] = {"app": "another"}


def relabel(world, item, rank):
    """As if it were of another attempt: to the operator a pod of its own is gone."""
    if not item["metadata"].get("deletionTimestamp"):
        item["metadata"]["labels"]["grpo.dev/attempt"] = "77"


FAILURES = [finish(1), finish(137, "OOMKilled"), finish(75)]
OUTSIDE = [
    *(disrupt("EvictionByEvictionAPI"), disrupt("PreemptionByScheduler"), delete, vanish, relabel, go_silent),
]
FATAL = [finish(0), finish(65)]
OF_THE_WORLD = [
    *(confirm_all, head_trains, wait(6), wait(20), wait(700), wait(-4000), quota, set_suspend(True)),
    *(set_suspend(False), edit_service, *map(lose, ("Service", "ConfigMap", WORKLOAD, POD_GROUP))),
]
OFTEN = [schedule, answer, confirm, confirm_all] * 3
ACTIONS = [*FAILURES, *OUTSIDE, *FATAL, *OF_THE_WORLD, *OFTEN]
"""The number of times that one stands here is its weight."""
STEPS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1), st.booleans()).map(
        lambda found: (found[0].__name__, found[0], *found[1:])
    ),
    max_size=40,
)
QUICK = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)


def act(world, action, rank):
    """Returns whether something was done, to the world or to a pod."""
    item = world.pod(rank)
    if action in OF_THE_WORLD:
        action(world, item, rank)
        return True
    if item is None:
        return False
    before = copy.deepcopy(item)
    action(world, item, rank)
    return item != before or world.pod(rank) is not item


def make_running_world():
    world = make_world()
    world.run_gang()
    return world


def alive_attempts(world):
    return {item["metadata"]["labels"]["grpo.dev/attempt"] for item in world.pods}


@QUICK
@given(STEPS, st.sampled_from(["All", "Running"]))
def test_no_order_of_events_breaks_a_rule(steps, clean):
    world, done = make_running_world(), Counter()
    world.job["spec"]["runPolicy"]["cleanPodPolicy"] = clean
    for name, action, rank, crash in steps:
        ended_before = world.status.get("state") in TERMINAL
        before = copy.deepcopy(world.status)
        done[name] += act(world, action, rank)
        made_before, plans_before = len(world.made_pods), len(world.plans)
        present = {item["metadata"]["uid"] for item in world.pods}
        world.reconcile(crash_after_status=crash)
        status = world.status

        attempts = {item["metadata"]["labels"]["grpo.dev/attempt"] for item in world.made_pods[made_before:]}
        if attempts:
            assert alive_attempts(world) == attempts == {str(status["attempt"])}
        assert status["failures"] <= MAX_RESTARTS + 1
        assert status["attempt"] >= before.get("attempt", 0)
        entries = status.get("restarts", [])
        assert sum(entry["counted"] for entry in entries) <= status["failures"]
        disruptions = sum(done[found.__name__] for found in OUTSIDE) + done["wait_700"]
        assert sum(not entry["counted"] for entry in entries) <= disruptions, "took what it did itself for one"
        assert status["failures"] <= sum(done[found.__name__] for found in FAILURES)
        if ended_before:
            assert status == before
            assert not any(made.create for made in world.plans[plans_before:])
        gone = present - {item["metadata"]["uid"] for item in world.pods}
        assert not gone, "a pod went before its kubelet confirmed"
        GRPOJobStatus.model_validate(status)


@QUICK
@given(STEPS)
def test_reconcile_leaves_nothing_to_write_after_any_events(steps):
    world = make_running_world()
    for _, action, rank, _ in steps:
        act(world, action, rank)
        world.reconcile()
        assert_settled(world)


@QUICK
@given(STEPS)
def test_job_that_is_left_in_peace_runs_or_has_ended(steps):
    world = make_world()
    for _, action, rank, crash in steps:
        act(world, action, rank)
        world.reconcile(crash_after_status=crash)
    world.refused = set()
    set_suspend(False)(world, None, 0)
    for _ in range(8):
        world.confirm_deletions()
        wait(400)(world, None, 0)
        for rank in (0, 1):
            if item := world.pod(rank):
                answer(world, item, rank)
                schedule(world, item, rank)
        world.head_report = training() if world.pod(0) else None
        world.reconcile()
    assert world.status["state"] in ("Running", *TERMINAL), world.status


@pytest.mark.parametrize("kind", ["Service", "ConfigMap", WORKLOAD, POD_GROUP])
def test_child_that_somebody_deletes_comes_back(kind):
    world = make_running_world()
    before, pods = set(world.children), copy.deepcopy(world.pods)
    lose(kind)(world, None, 0)
    world.reconcile()
    assert (set(world.children), world.pods) == (before, pods)
    assert_settled(world)


@pytest.mark.parametrize(
    "edit",
    [
        {"selector": {"app": "another"}},
        {"selector": {"grpo.dev/job-name": "sums", "app": "another"}},
        {"ports": []},
        {"ports": [{"name": "metrics", "port": 1}]},
        {"publishNotReadyAddresses": False},
    ],
)
def test_service_that_somebody_edits_is_made_anew(edit):
    world = make_running_world()
    asked, pods = copy.deepcopy(world.children["Service", "sums"]["spec"]), copy.deepcopy(world.pods)
    world.children["Service", "sums"]["spec"] |= edit
    world.reconcile()
    assert (world.children["Service", "sums"]["spec"], world.pods) == (asked, pods)
    assert_settled(world)


YOUNGER_FIELDS = ("createdAttempt", "failures", "batchPlan", "gang", "nodes", "conditions", "observedGeneration")


@pytest.mark.parametrize("lacking", [*((name,) for name in YOUNGER_FIELDS), YOUNGER_FIELDS])
def test_status_of_an_earlier_release_costs_no_pod(lacking):
    """What that release did not write is filled in, and the gang goes on."""
    world = make_running_world()
    whole, pods = copy.deepcopy(world.status), copy.deepcopy(world.pods)
    world.job["status"] = {name: value for name, value in whole.items() if name not in lacking}
    world.reconcile()
    assert world.pods == pods
    found = world.status
    for status in (found, whole):
        status["conditions"].sort(key=lambda item: item["type"])
    assert found == whole
    assert_settled(world)


@pytest.mark.parametrize("hours", [-9, 9])
def test_clock_that_jumps_delays_no_restart(hours):
    """The pause of a restart was written under another time; so was the end of a pod that lost a peer."""
    world = make_world()
    failed_once(world)
    world.confirm_deletions()
    wait(3600 * hours)(world, None, 0)
    world.reconcile()
    assert len(world.pods) == 2
    end(world.pod(1), 75, at=3600 * (hours + 9))
    made = world.reconcile()
    assert made.wake_after is None or made.wake_after <= 30
