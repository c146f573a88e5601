"""What is Kueue's alone: its words, flavors and priorities, quota that is lent, and Kueue away.

A real Kueue from its own chart; `test_gangs.py` has what it shares with other backends.
"""

from collections import Counter

import pytest

from grpo_operator.policies.podstate import condition
from tests.apiserver.gang_support import GPUS, NODES, POOL, URGENT
from tests.apiserver.kueue import queue_objects
from tests.apiserver.test_role import asked, granted, roles_and_bindings

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(240)]
GATE, MANAGED = {"name": "kueue.x-k8s.io/admission"}, "kueue.x-k8s.io/managed"
WHOLE = 2
"""GPUs of a gang, one a pod."""


@pytest.fixture
def site(gang_site):
    gang_site.backend = "kueue"
    gang_site.history.one_at_a_time = False
    gang_site.history.broken.clear()
    yield gang_site
    gang_site.clear()
    assert gang_site.history.broken == []
    assert gang_site.record.error is None


@pytest.fixture
def queue(site):
    """Makes a queue of its own for a test."""
    made = []

    def make(name, gpus=WHOLE, **spec):
        site.kueue.create(*queue_objects(name, gpus, "reserved", **spec))
        made.append(name)
        return {"queue": name}

    yield make
    site.clear()
    for name in made:
        site.kueue.kubectl("delete", "localqueues,clusterqueues", name, "--wait=false")


def gates(site, name):
    return [GATE in (pod["spec"].get("schedulingGates") or []) for pod in site.pods(name)]


def test_one_gang_in_its_queue(site, queue):
    """What the columns and the status show, and what Kueue makes of the pods."""
    in_queue = queue("team-a")
    first = site.apply("first", gangScheduling=in_queue)
    site.wait_state(first, "Running")
    second = site.apply("second", gangScheduling=in_queue)
    site.wait("Kueue's words", lambda: "insufficient unused quota" in site.status(second).get("message", ""))
    status = site.status(second)
    assert (status["state"], status["reason"]) == ("Queued", "WaitingForQuota")
    assert status["message"].startswith("waits in queue team-a: ")
    assert gates(site, second) == [True, True]
    head, row = site.kueue.kubectl("get", "grpojob", second, "-o", "wide").splitlines()
    assert row[head.index("QUEUE") :].split()[0] == "team-a"
    assert row[head.index("GANG") :].split()[0] == "kueue"
    for pod in site.pods(first):
        assert pod["spec"]["nodeSelector"] == POOL, "the flavor's"
        assert MANAGED in pod["metadata"]["finalizers"]
    (waits,) = site.workloads(second)
    (pods,) = waits["spec"]["podSets"]
    assert pods["count"] == WHOLE
    assert "minCount" not in pods, "nothing is admitted in part"


def test_queue_that_is_missing_is_told(site):
    lost = site.apply("lost", gangScheduling={"queue": "no-such-queue"})
    site.wait("Kueue's words", lambda: "no-such-queue doesn't exist" in site.status(lost).get("message", ""))


def test_preemption_by_a_workload_priority_class(site, queue):
    """It ranks gangs in the queue and not on the nodes; the one that has to go spends nothing of its budget."""
    in_queue = queue("team-a", preemption={"withinClusterQueue": "LowerPriority"})
    low = site.apply("low", gangScheduling=in_queue, runPolicy={"maxRestarts": 0})
    site.wait_state(low, "Running")
    label = {"metadata": {"labels": {"kueue.x-k8s.io/priority-class": URGENT}}}
    high = site.apply("high", gangScheduling=in_queue, template={"podOverlay": label})
    site.wait_state(high, "Running")
    status = site.wait_state(low, "Queued")
    assert [(entry["cause"], entry["counted"]) for entry in status["restarts"]] == [("Preempted", False)]
    assert "prioritization in the ClusterQueue" in status["restarts"][0]["message"]
    assert (status["attempt"], status["failures"]) == (1, 0)
    site.wait("the gates of the second attempt", lambda: gates(site, low) == [True, True])


def test_lent_quota_is_taken_back_from_one_whole_gang(site, queue):
    lends = {"cohortName": "research", "preemption": {"reclaimWithinCohort": "Any"}}
    borrower, lender = (queue(name, **lends) for name in ("team-a", "team-b"))
    jobs = [site.apply(name, gangScheduling=borrower) for name in ("own", "lent")]
    for name in jobs:
        site.wait_state(name, "Running")
    owner = site.apply("owner", gangScheduling=lender)
    site.wait_state(owner, "Running")
    site.wait(
        "one of team-a's in the queue",
        lambda: Counter(site.status(name).get("state") for name in jobs) == {"Queued": 1, "Running": 1},
    )
    assert GPUS * len(NODES) > 2 * WHOLE, "the nodes had room for all three"


def test_kueue_that_is_away_delays_and_breaks_nothing(site, queue):
    in_queue = queue("team-a")
    before = site.apply("before", gangScheduling=in_queue)
    site.wait_state(before, "Running")
    site.kueue.stop()
    try:
        meanwhile = site.apply("meanwhile", gangScheduling=in_queue)
        site.wait("its webhook missed", lambda: site.status(meanwhile).get("reason") == "AdmissionUnavailable")
        assert site.status(before)["state"] == "Running"
    finally:
        site.kueue.start()
    site.wait("its place in the queue", lambda: site.status(meanwhile).get("reason") == "WaitingForQuota")
    site.finish(before)
    site.wait_state(meanwhile, "Running")
    site.wait("the quota back", lambda: not [one for one in site.workloads(before) if not _finished(one)])


def _finished(workload):
    return condition(workload, "Finished").get("status") == "True"


def test_role_is_what_the_operator_asks_of_kueue(gang_site):
    """After the others: they make it ask for all of it."""

    def of_kueue(rules):
        return {rule for rule in rules if rule[1] == "kueue.x-k8s.io"}

    assert of_kueue(asked(gang_site.audit_log)) == of_kueue(granted(roles_and_bindings("kueue")))
    assert "orbidden" not in gang_site.operator.log.read_text()
