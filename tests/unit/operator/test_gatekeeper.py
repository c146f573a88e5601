"""The gatekeeper: who is in the line, by which patches gates are lifted, and what a crash in between leaves."""

import asyncio
import copy
from datetime import timedelta

import pytest
from aiohttp import ServerDisconnectedError

from grpo_api.names import SCHEDULING_GATE
from grpo_operator import gatekeeper
from grpo_operator.cache import Cache
from grpo_operator.cluster_view import ClusterView
from grpo_operator.gang import gated
from grpo_operator.gang.cluster import MILLI, requests_of
from grpo_operator.gatekeeper import TELL_SECONDS, Gatekeeper
from grpo_operator.kube import KubeError
from grpo_operator.policies.placement import placement_loss
from tests.unit.operator.fake_kube import FakeKube
from tests.unit.operator.operator_support import NOW, UID, child, pod, raw_job, rfc3339, set_condition

GPU = "nvidia.com/gpu"


def node(name, gpus=8, **labels):
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "status": {
            "allocatable": {"cpu": "64", "pods": "110", GPU: str(gpus)},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def gated_pod(rank, gpus=8, job="sums", **spec):
    made = pod(rank)
    if job != "sums":
        name = f"{job}-{rank}"
        made["metadata"] |= child("Pod", name, job=job, owner=f"uid-{job}")["metadata"]
        made["metadata"]["labels"] |= {"grpo.dev/node-rank": str(rank), "grpo.dev/attempt": "0"}
    made["spec"] |= {
        "schedulingGates": [{"name": SCHEDULING_GATE}],
        "restartPolicy": "Never",
        "containers": [{"name": "trainer", "resources": {"requests": {GPU: str(gpus)}}}],
        **spec,
    }
    return made


def job_of(name="sums", nodes=2, made=0, **more):
    job = raw_job(name, nodes=nodes, gangScheduling={"backend": "gated"}, status={"attempt": 0}, **more)
    job["metadata"] |= {"uid": UID if name == "sums" else f"uid-{name}", "creationTimestamp": rfc3339(NOW)}
    job["metadata"]["creationTimestamp"] = rfc3339(NOW + timedelta(seconds=made))
    return job


class Recorded(FakeKube):
    """Remembers whose gates were lifted, in order."""

    def __init__(self):
        super().__init__()
        self.lifted = []
        self.fails = None
        self.error = KubeError(0, "LeaseLost", "frozen")

    async def patch(self, kind, namespace, name, change):
        if name == self.fails:
            raise self.error
        if "spec" in change:
            self.lifted.append(name)
        return await super().patch(kind, namespace, name, change)


@pytest.fixture(autouse=True)
def _no_scheduler(monkeypatch):
    """Nobody places pods here."""
    monkeypatch.setattr(gatekeeper, "BIND_SECONDS", 0.05)


class Site:
    """A cluster of two nodes with a gatekeeper; `start` makes another one on what is there, as a new process does."""

    def __init__(self, *nodes):
        self.kube, self.jobs, self.now = Recorded(), [], NOW
        self.nodes = nodes or (node("a"), node("b"))
        self.enqueued = []
        self.start()

    def start(self):
        self.cache, self.view = Cache(), ClusterView()
        for item in self.nodes:
            self.view.put_node(item)
        for item in self.jobs:
            self.cache.put_job(item)
        for (kind, _), item in self.kube.objects.items():
            if kind == "Pod":
                self.see(item)
        self.keeper = Gatekeeper(self.kube, self.cache, self.view, self.enqueued.append, lambda: self.now)

    def see(self, item):
        self.cache.put_child("Pod", copy.deepcopy(item))
        self.view.put_pod(copy.deepcopy(item))

    def add(self, job, *pods):
        self.jobs.append(job)
        self.cache.put_job(job)
        for item in pods:
            self.see(self.kube.put(item))

    def pod(self, name):
        return self.kube.objects["Pod", name]


async def test_gates_are_lifted_for_the_whole_gang_onto_planned_nodes():
    site = Site()
    site.add(job_of(), gated_pod(0), gated_pod(1))
    await site.keeper.decide()
    assert site.kube.lifted == ["sums-0", "sums-1"], "one patch a pod"
    for rank, place in enumerate("ab"):
        made = site.pod(f"sums-{rank}")
        assert "schedulingGates" not in made["spec"]
        assert made["spec"]["nodeSelector"] == {"kubernetes.io/hostname": place}
        assert gated.planned_node(made) == place
        assert gated.released_at(made) == NOW.timestamp()
    await site.keeper.decide()
    assert len(site.kube.lifted) == 2, "what has been released is no more waiting"


async def test_place_of_released_pods_is_taken_before_the_scheduler_uses_it():
    site = Site()
    site.add(job_of(), gated_pod(0), gated_pod(1))
    site.add(job_of("next", nodes=1, made=1), gated_pod(0, 1, "next"))
    await site.keeper.decide()
    assert site.kube.lifted == ["sums-0", "sums-1"]
    assert site.keeper.told(("team", "next"))[0] == "WaitingForCapacity"
    assert site.enqueued == [("team", "sums"), ("team", "next")], "the state of both has changed"
    site.start()
    await site.keeper.decide()
    assert site.kube.lifted == ["sums-0", "sums-1"], "a new process knows it from the pods"


async def test_gates_of_others_stay_and_so_does_what_the_job_asks_of_its_nodes():
    site = Site(node("a", kind="x"), node("b"))
    gates = [{"name": "other.io/gate"}, {"name": SCHEDULING_GATE}]
    site.add(job_of(nodes=1), gated_pod(0, schedulingGates=gates, nodeSelector={"kind": "x"}))
    await site.keeper.decide()
    made = site.pod("sums-0")
    assert made["spec"]["schedulingGates"] == [{"name": "other.io/gate"}]
    assert made["spec"]["nodeSelector"] == {"kind": "x", "kubernetes.io/hostname": "a"}


async def test_crash_in_mid_lift_is_completed_before_anybody_else_is_released():
    site = Site()
    site.add(job_of(), gated_pod(0), gated_pod(1))
    site.kube.fails = "sums-1"
    with pytest.raises(KubeError):
        await site.keeper.decide()
    site.kube.fails = None
    site.add(job_of("urgent", nodes=1, made=-9), gated_pod(0, 8, "urgent", priority=9))
    site.start()
    await site.keeper.decide()
    assert site.kube.lifted == ["sums-0", "sums-1"]
    assert not gated.is_gated(site.pod("sums-1"))
    assert gated.is_gated(site.pod("urgent-0"))


@pytest.mark.parametrize("code", [400, 403, 422])
@pytest.mark.parametrize("keeps_room", [False, True], ids=["release", "keeping room"])
async def test_gang_whose_pods_may_not_be_changed_holds_nobody_up(code, keeps_room):
    """As by an admission policy of its namespace: it is told, and those behind it go, into the room meant for it."""
    site = Site()
    if keeps_room:
        site.add(job_of("runs", nodes=1), gated_pod(0, 8, "runs", schedulingGates=None, nodeName="a"))
    site.add(job_of(made=1), gated_pod(0), gated_pod(1))
    site.add(job_of("next", nodes=1, made=2), gated_pod(0, 8, "next"))
    site.add(job_of("last", nodes=1, made=3), gated_pod(0, 8, "last"))
    site.kube.fails, site.kube.error = "sums-0", KubeError(code, "", "policy pods-stay-as-they-are denies it")
    await site.keeper.decide()
    assert site.kube.lifted == (["next-0"] if keeps_room else ["next-0", "last-0"])
    reason, message = site.keeper.told(("team", "sums"))
    assert reason == "AdmissionDenied"
    assert "pods-stay-as-they-are" in message
    assert ("team", "sums") in site.enqueued
    assert (site.keeper.told(("team", "last")) is not None) is keeps_room, "told as all that wait"
    site.kube.fails = None
    for name in ("runs-0", "next-0", "last-0"):
        if ("Pod", name) in site.kube.objects:
            site.view.drop_pod(site.pod(name))
    await site.keeper.decide()
    assert site.kube.lifted[-2:] == ["sums-0", "sums-1"]


@pytest.mark.parametrize("code", [429, 500, 503])
async def test_api_server_in_trouble_is_asked_again_and_nobody_is_passed_over(code):
    site = Site(node("a"), node("b"), node("c"))
    site.add(job_of(), gated_pod(0), gated_pod(1))
    site.add(job_of("next", nodes=1, made=1), gated_pod(0, 8, "next"))
    site.kube.fails, site.kube.error = "sums-0", KubeError(code, "", "later")
    with pytest.raises(KubeError):
        await site.keeper.decide()
    assert site.kube.lifted == []


@pytest.mark.parametrize(
    "error", [KubeError(503, "", "later"), ServerDisconnectedError(), ConnectionResetError(), TimeoutError()], ids=repr
)
async def test_line_goes_on_after_an_api_server_that_broke_off(monkeypatch, error):
    monkeypatch.setattr(gatekeeper, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(gatekeeper, "LOOK_SECONDS", 0.01)
    site = Site()
    site.add(job_of(), gated_pod(0), gated_pod(1))
    site.kube.fails, site.kube.error = "sums-1", error
    running = asyncio.create_task(site.keeper.run())
    try:
        while not site.kube.lifted:
            await asyncio.sleep(0.005)
            assert not running.done(), "the operator's process would end over it"
        site.kube.fails = None
        while gated.is_gated(site.pod("sums-1")):
            await asyncio.sleep(0.005)
            assert not running.done()
    finally:
        running.cancel()


async def test_pod_that_others_narrow_while_its_gate_holds_it_is_looked_at_anew():
    """Kubernetes lets node selectors and affinity be added to gated pods, as by whoever has a gate of his own on it."""
    site = Site(node("a"), node("b", kind="x"))
    site.add(job_of("runs", nodes=1), gated_pod(0, 8, "runs", schedulingGates=None, nodeName="a"))
    site.add(job_of("runs-too", nodes=1), gated_pod(0, 8, "runs-too", schedulingGates=None, nodeName="b"))
    site.add(job_of(nodes=1, made=1), gated_pod(0))
    await site.keeper.decide()
    assert site.kube.lifted == []
    narrowed = await site.kube.patch("Pod", "team", "sums-0", {"spec": {"nodeSelector": {"kind": "x"}}})
    site.kube.lifted.clear()
    site.see(narrowed)
    site.view.drop_pod(site.pod("runs-0"))
    await site.keeper.decide()
    assert site.kube.lifted == [], "node a is none of its nodes any more"
    site.view.drop_pod(site.pod("runs-too-0"))
    await site.keeper.decide()
    assert gated.planned_node(site.pod("sums-0")) == "b"


async def test_gang_is_in_the_line_only_when_all_its_pods_are_there():
    site = Site()
    site.add(job_of(), gated_pod(0))
    await site.keeper.decide()
    assert site.kube.lifted == []
    assert site.keeper.told(("team", "sums")) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda job, pods: job["status"].update(state="Failed"),
        lambda job, pods: job["status"].update(attempt=1),
        lambda job, pods: job["metadata"].update(deletionTimestamp=rfc3339(NOW)),
        lambda job, pods: pods[1]["metadata"].update(deletionTimestamp=rfc3339(NOW)),
    ],
    ids=["ended", "earlier attempt", "deleted", "suspended"],
)
async def test_gang_that_is_going_is_not_released(change):
    site, job, pods = Site(), job_of(), [gated_pod(0), gated_pod(1)]
    change(job, pods)
    site.add(job, *pods)
    await site.keeper.decide()
    assert site.kube.lifted == []


async def test_pod_that_is_gone_or_another_now_stops_nothing():
    site = Site()
    site.add(job_of(), gated_pod(0), gated_pod(1))
    del site.kube.objects["Pod", "sums-0"]
    await site.keeper.decide()
    assert not gated.is_gated(site.pod("sums-1"))


async def test_after_a_time_out_the_scheduler_may_choose_the_nodes():
    """It may know of a volume or of another's anti-affinity; and the gang has lost its place in the line."""
    site = Site()
    timed_out = [{"attempt": 0, "time": rfc3339(NOW + timedelta(seconds=600)), "cause": "ScheduleTimeout"}]
    site.add(job_of(), gated_pod(0), gated_pod(1))
    site.jobs[0]["status"]["restarts"] = timed_out
    site.add(job_of("later", nodes=2, made=60), gated_pod(0, 8, "later"), gated_pod(1, 8, "later"))
    await site.keeper.decide()
    assert site.kube.lifted == ["later-0", "later-1"]
    for name in ("later-0", "later-1"):
        gone = site.kube.objects.pop(("Pod", name))
        site.view.drop_pod(gone)
        site.cache.drop_child("Pod", gone)
    await site.keeper.decide()
    assert site.kube.lifted[2:] == ["sums-0", "sums-1"]
    assert "nodeSelector" not in site.pod("sums-0")["spec"]
    assert gated.planned_node(site.pod("sums-0")) == "a", "its place is taken all the same"


async def test_head_keeps_its_room_over_a_restart_of_the_operator():
    site = Site(node("a"))
    site.add(job_of("runs", nodes=1), {**gated_pod(0, 4, "runs", schedulingGates=None, nodeName="a")})
    site.add(job_of(nodes=1, made=1), gated_pod(0))
    await site.keeper.decide()
    assert gated.keeps_from(site.pod("sums-0")) == NOW.timestamp() + 3600
    site.start()
    site.now = NOW + timedelta(hours=2)
    site.add(job_of("small", nodes=1, made=2), gated_pod(0, 1, "small"))
    await site.keeper.decide()
    assert gated.is_gated(site.pod("small-0"))


async def test_news_of_a_place_in_the_line_do_not_come_too_often():
    site = Site(node("a"))
    site.add(job_of("runs", nodes=1), gated_pod(0, 8, "runs", schedulingGates=None, nodeName="a"))
    for number, name in enumerate(("one", "two")):
        site.add(job_of(name, nodes=1, made=number), gated_pod(0, 8, name))
    await site.keeper.decide()
    assert site.enqueued == [("team", "one"), ("team", "two")]
    assert site.keeper.told(("team", "two"))[1].endswith("1 gang ahead")
    site.jobs[1]["status"]["state"] = "Failed"
    await site.keeper.decide()
    assert site.enqueued == [("team", "one"), ("team", "two")]
    site.now += timedelta(seconds=TELL_SECONDS)
    await site.keeper.decide()
    assert site.enqueued[2:] == [("team", "two")]
    assert site.keeper.told(("team", "two"))[1].endswith("0 gangs ahead")


def test_view_counts_what_holds_place_and_nothing_else():
    view = ClusterView()
    ended = {**gated_pod(0, schedulingGates=None, nodeName="a"), "status": {"phase": "Succeeded"}}
    waiting, bound = gated_pod(0), gated_pod(0, schedulingGates=None, nodeName="a")
    for number, (item, count) in enumerate(((waiting, 0), (bound, 1), (ended, 0), (bound, 1))):
        item["metadata"]["resourceVersion"] = str(number)
        view.put_pod(item)
        assert len(view.cluster().uses) == count
    stale = copy.deepcopy(ended)
    stale["metadata"]["resourceVersion"] = "1"
    view.put_pod(stale)
    assert len(view.cluster().uses) == 1, "a watch behind what is known changes nothing"
    view.drop_pod(bound)
    assert view.cluster().uses == ()


def test_requests_are_counted_as_the_scheduler_does():
    """Kubernetes: "Resource sharing within containers" of init containers, and KEP-753 for sidecars."""
    spec = {
        "containers": [
            {"resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {GPU: "2"}}},
            {"resources": {"requests": {"cpu": "500m"}}},
        ],
        "initContainers": [
            {"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
            {"resources": {"requests": {"cpu": "4"}}},
        ],
        "overhead": {"cpu": "250m"},
    }
    found = requests_of(spec)
    assert found == {"cpu": 5250, "memory": 1024**3 * MILLI, GPU: 2 * MILLI, "pods": MILLI}


def test_gang_that_the_scheduler_does_not_place_after_its_release_is_undone():
    """Else the room planned for it would be nobody's for ever."""
    pods = [pod(0), pod(1)]
    for item in pods:
        item["metadata"]["annotations"] = {"grpo.dev/released-at": NOW.isoformat()}
    loss, left = placement_loss(pods, 2, 60.0, NOW + timedelta(seconds=20))
    assert (loss, left) == (None, 40.0)
    loss, _ = placement_loss(pods, 2, 60.0, NOW + timedelta(seconds=60))
    assert loss is not None
    assert not loss.counted
    for item in pods:
        item["spec"]["nodeName"] = "a"
        set_condition(item, "PodScheduled", "True", lastTransitionTime=rfc3339(NOW))
    assert placement_loss(pods, 2, 60.0, NOW + timedelta(seconds=600)) == (None, None)
    assert placement_loss([pod(0), pod(1)], 2, 60.0, NOW + timedelta(seconds=600)) == (None, None), "gated all along"
