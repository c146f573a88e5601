"""A pod that has its node and starts nothing: the kubelet says why in Events alone, and they are read sparingly."""

import pytest

from grpo_operator.policies.problems import STUCK_SECONDS, from_events
from tests.unit.operator.operator_support import child, later, pod, raw_job, rfc3339, run, running
from tests.unit.operator.test_reconciler import Rig

MOUNT = 'MountVolume.SetUp failed for volume "keys" : secret "absent" not found'


def creating(rank, reason="ContainerCreating"):
    """On its node since NOW, as a kubelet shows it that makes its volumes."""
    item = pod(rank, node=f"node-{rank}")
    item["status"]["containerStatuses"] = [{"name": "trainer", "state": {"waiting": {"reason": reason}}}]
    return item


def event(reason, message, at=0.0, uid="pod-1-0", name="e"):
    """As a kubelet writes it."""
    made = child("Event", f"{name}-{at}-{reason}", owner=None)
    return made | {
        "reason": reason,
        "message": message,
        "type": "Warning",
        "lastTimestamp": rfc3339(later(at)),
        "involvedObject": {"kind": "Pod", "uid": uid},
    }


def begun():
    item = pod(1, node="node-1")
    item["status"]["initContainerStatuses"] = [{"name": "fetch", "state": {"running": {}}}]
    return item


@pytest.mark.parametrize(
    ("other", "at", "stuck", "wake"),
    [
        (creating(1), STUCK_SECONDS - 1, None, 1),
        (creating(1), STUCK_SECONDS, "sums-1", None),
        (creating(1, "PodInitializing"), STUCK_SECONDS, "sums-1", None),
        (pod(1, node="node-1"), STUCK_SECONDS, "sums-1", None),
        (begun(), STUCK_SECONDS, None, None),
        (running(1), STUCK_SECONDS, None, None),
    ],
    ids=["soon", "creating", "initializing", "not seen by its kubelet", "an init container runs", "runs"],
)
def test_pod_whose_events_are_worth_reading(other, at, stuck, wake):
    made = run(raw_job(), running(0), other, at=at)
    assert (made.stuck or {}).get("metadata", {}).get("name") == stuck
    assert made.wake_after == wake


def test_reason_and_repair_are_those_of_the_newest_event_that_says_why():
    told = [event("FailedMount", "old", 1), event("FailedMount", MOUNT, 9), event("Unhealthy", "no reason of this", 20)]
    reason, message = from_events(told)
    assert (reason, MOUNT in message, "template.podOverlay" in message) == ("FailedMount", True, True)
    assert from_events(told[2:]) is None


async def test_volume_that_cannot_be_mounted_reaches_status_and_events_within_a_minute():
    rig = Rig(raw_job(), running(0), creating(1), event("FailedMount", MOUNT))
    await rig.reconcile()
    assert (rig.status["state"], rig.status["reason"]) == ("Starting", "Starting")
    rig.now = later(STUCK_SECONDS)
    await rig.reconcile()
    assert (rig.status["state"], rig.status["reason"]) == ("Starting", "FailedMount")
    assert rig.status["message"].startswith(f"sums-1: {MOUNT}; make the Secret")
    assert "FailedMount" in rig.events()
    rig.put(running(1))
    for seconds in (1, 2):  # a state on the way is told when it lasts
        rig.now = later(STUCK_SECONDS + seconds)
        await rig.reconcile()
    assert rig.status["reason"] == "Starting"


async def test_events_are_read_ever_less_often():
    rig = Rig(raw_job(), running(0), creating(1))
    for second in range(0, 3600, 5):
        rig.now = later(second)
        await rig.reconcile()
    reads = [request for request in rig.kube.requests if request[:2] == ("list", "Event")]
    assert len(reads) == 5 + 10, "at 15, 35, 75, 155 and 315 s, then each 300 s until 3315 s"
    assert reads[0][2] == "involvedObject.uid=pod-1-0,type=Warning"


async def test_events_of_many_jobs_are_read_ten_a_second():
    """A list by field makes the API server look at every Event of the namespace."""
    turn = Rig(raw_job()).reconciler._turn
    due = [turn(1000.0, 0) for _ in range(1000)]
    assert (due[0], due[10], due[-1]) == (1000.0, pytest.approx(1001), pytest.approx(1099.9))
    assert turn(3600.0, 20) == 3620
