"""One reconcile from observing to writing, on an API server in memory; and the listing of everything anew."""

import copy
import time
from datetime import timedelta

import pytest

from grpo_operator.cache import Cache
from grpo_operator.cluster_view import ClusterView
from grpo_operator.kube import KubeError
from grpo_operator.reconciler import Reconciler
from grpo_operator.resync import Resync
from grpo_operator.settings import Settings
from tests.unit.operator.fake_kube import FakeKube
from tests.unit.operator.operator_support import (
    UID,
    child,
    deleting,
    disrupted,
    ended,
    later,
    left_over,
    raw_job,
    rfc3339,
    running,
    training,
)

KEY = ("team", "sums")
SETTINGS = Settings(
    trainer_image="registry/trainer:1",
    namespaces=(),
    lease_namespace="system",
    lease_name="grpo-operator",
    identity="operator-1",
    metrics_port=0,
    probe_port=0,
    progress_interval=3600.0,
    workers=2,
)


class FakeReader:
    """Says what it is told to follow."""

    def __init__(self):
        self.followed, self.said, self.heard = [], None, None

    def follow(self, key, address):
        self.followed.append(address)

    def report(self, key):
        return self.said

    def quiet(self, key):
        return self.heard


class Rig:
    """A reconciler whose cache sees the API server's objects at once."""

    def __init__(self, job, *items):
        self.kube, self.cache, self.reader = FakeKube(job, *items), Cache(), FakeReader()
        self.now, self.jumped = later(0), timedelta()
        clocks = (lambda: self.now), (lambda: (self.now - self.jumped).timestamp())
        self.reconciler = Reconciler(self.kube, self.cache, SETTINGS, self.reader, *clocks)
        self.watch()

    def watch(self):
        for (kind, _), item in self.kube.objects.items():
            if kind == "GRPOJob":
                self.cache.put_job(copy.deepcopy(item))
            elif kind != "Event":
                self.cache.put_child(kind, copy.deepcopy(item))

    async def reconcile(self):
        await self.reconciler.reconcile(KEY)

    def jump(self, hours):
        """The machine's clock is set, and no time passes."""
        self.now += timedelta(hours=hours)
        self.jumped += timedelta(hours=hours)

    def put(self, item):
        self.kube.put(item)
        self.watch()

    @property
    def status(self):
        return self.kube.objects["GRPOJob", "sums"].get("status", {})

    def events(self):
        return [item["reason"] for (kind, _), item in self.kube.objects.items() if kind == "Event"]


def running_at(address, rank=0):
    item = running(rank)
    item["status"]["podIP"] = address
    return item


async def test_first_reconcile_makes_everything_and_the_next_writes_nothing():
    rig = Rig(raw_job())
    await rig.reconcile()
    made = [name for verb, kind, name in rig.kube.writes() if (verb, kind) == ("create", "Pod")]
    assert made == ["sums-0", "sums-1"]
    assert rig.status["state"] == "Scheduling"
    assert rig.events() == ["PodsCreated"]
    before = len(rig.kube.requests)
    await rig.reconcile()
    assert rig.kube.requests[before:] == []


async def test_restart_is_written_before_the_pods_are_deleted():
    rig = Rig(raw_job(), running(0), running(1))
    await rig.reconcile()
    rig.put(ended(1, 1))
    rig.kube.requests.clear()
    await rig.reconcile()
    verbs = [request[:2] for request in rig.kube.writes() if request[1] != "Event"]
    assert verbs[0] == ("patch", "GRPOJob")
    assert verbs.index(("patch", "GRPOJob")) < verbs.index(("delete", "Pod"))
    assert "Restarting" in rig.events()


async def test_start_of_a_gang_is_written_in_two_patches():
    """Children first: a status that decides nothing can wait, and pods change many times in their first second."""
    rig = Rig(raw_job())
    await rig.reconcile()
    for rank in range(2):
        rig.put(running(rank))
        await rig.reconcile()
    assert rig.status["state"] == "Scheduling"
    rig.reader.said = training()
    await rig.reconcile()
    assert rig.status["state"] == "Running"
    kinds = [f"{verb} {kind}" for verb, kind, _ in rig.kube.writes() if kind in ("Pod", "GRPOJob")]
    assert kinds == ["create Pod", "create Pod", "patch GRPOJob", "patch GRPOJob"]


@pytest.mark.parametrize(
    ("policy", "pods", "sections"),
    [
        ({"activeDeadlineSeconds": 100}, [running(0), running(1)], {}),
        ({"stallTimeoutSeconds": 100}, [running(0), running(1)], {}),
        ({"ttlSecondsAfterFinished": 100}, [ended(0, 0), ended(1, 0)], {}),
        ({"ttlSecondsAfterFinished": 100}, [ended(0, 65), ended(1, 0)], {}),
        ({"ttlSecondsAfterFinished": 100}, [], {"actor": {"ppoMiniBatchSize": 3}}),
    ],
    ids=["deadline", "stall", "done", "user's fault", "invalid"],
)
async def test_time_that_counts_from_a_status_is_waited_for_though_the_watch_brings_no_news(policy, pods, sections):
    """What the watch brings of a status of ours is known already."""
    rig = Rig(raw_job(runPolicy=policy, **sections), *pods)
    rig.reader.said = training()
    rig.reader.said.progress.last_step_time = rfc3339(later(0))
    await rig.reconcile()
    left = rig.reconciler.queue._next_wake[KEY] - time.monotonic()
    assert 90 < left < 101, rig.status


async def test_state_on_the_way_is_told_when_it_lasts_a_second():
    rig = Rig(raw_job())
    await rig.reconcile()
    for rank in range(2):
        rig.put(running(rank))
    for seconds, state in ((5.0, "Scheduling"), (5.9, "Scheduling"), (6.0, "Starting")):
        rig.now = later(seconds)
        await rig.reconcile()
        assert rig.status["state"] == state


async def test_among_many_jobs_a_gang_that_starts_at_once_costs_one_patch():
    rig = Rig(raw_job())
    for number in range(SETTINGS.workers + 1):
        rig.reconciler.queue.add(("team", f"waits-{number}"))
    await rig.reconcile()
    for rank in range(2):
        rig.put(running(rank))
    rig.reader.said = training()
    await rig.reconcile()
    assert rig.status["state"] == "Running"
    assert [kind for verb, kind, _ in rig.kube.writes() if verb == "patch"] == ["GRPOJob"]
    assert rig.events() == ["Training"]


async def test_decision_waits_for_nothing():
    rig = Rig(raw_job(), running(0), running(1))
    await rig.reconcile()
    rig.put(ended(1, 1))
    await rig.reconcile()
    assert rig.status["attempt"] == 1


async def test_status_is_one_patch():
    rig = Rig(raw_job(), running(0), running(1), child("ConfigMap", "sums-config"), child("Service", "sums"))
    rig.reader.said = training()
    await rig.reconcile()
    assert [request for request in rig.kube.writes() if request[0] == "patch"] == [("patch", "GRPOJob", "sums")]


async def test_progress_alone_is_not_written_more_often_than_asked():
    rig = Rig(raw_job(), running(0), running(1))
    rig.reader.said = training(3)
    await rig.reconcile()
    assert rig.status["progress"]["step"] == 3
    rig.reader.said = training(4)
    await rig.reconcile()
    assert rig.status["progress"]["step"] == 3, "progress_interval has not passed"
    rig.reader.said = training(20)
    rig.put(ended(0, 0))
    await rig.reconcile()
    assert (rig.status["state"], rig.status["progress"]["step"]) == ("Succeeded", 20)


@pytest.mark.parametrize(
    ("address", "followed"), [("10.0.0.7", "10.0.0.7:9464"), ("fd00::1", "[fd00::1]:9464"), (None, None)]
)
async def test_head_is_asked_at_its_address(address, followed):
    """RFC 3986: an IPv6 address stands in brackets."""
    rig = Rig(raw_job(), running_at(address), running_at("10.0.0.8", 1))
    await rig.reconcile()
    assert rig.reader.followed[-1] == followed


async def test_head_is_asked_at_the_port_of_the_spec():
    rig = Rig(raw_job(metrics={"port": 9999}), running_at("10.0.0.7"), running(1))
    await rig.reconcile()
    assert rig.reader.followed[-1] == "10.0.0.7:9999"


@pytest.mark.parametrize("lost", [ended(1, 1), ended(1, 65)])
async def test_head_of_an_attempt_that_ended_is_not_followed(lost):
    rig = Rig(raw_job(), running_at("10.0.0.7"), running(1))
    await rig.reconcile()
    assert rig.reader.followed[-1] == "10.0.0.7:9464"
    rig.put(lost)
    await rig.reconcile()
    assert rig.reader.followed[-1] is None


async def test_job_that_is_gone_is_forgotten():
    rig = Rig(raw_job(), running_at("10.0.0.7"), running(1))
    await rig.reconcile()
    rig.cache.drop_job(rig.cache.job(KEY))
    rig.kube.requests.clear()
    await rig.reconcile()
    assert (rig.reader.followed[-1], rig.kube.requests) == (None, [])


async def test_job_that_is_being_deleted_is_not_written_to():
    rig = Rig(deleting(raw_job()), ended(0, 1), running(1))
    await rig.reconcile()
    assert rig.kube.requests == []


async def test_gang_is_made_when_the_pods_of_an_earlier_job_are_given_up():
    """Its node is lost, and so the job was deleted and applied again."""
    rig = Rig(raw_job(), left_over(0, deletionGracePeriodSeconds=30), left_over(1, deletionGracePeriodSeconds=30))
    for seconds in (0, 119):
        rig.now = later(seconds)
        await rig.reconcile()
        assert rig.status["reason"] == "CreatingPods"
        assert "waits until Pod sums-0 of an earlier job is deleted" in rig.status["message"]
        assert not [request for request in rig.kube.writes() if request[0] == "delete"]
    rig.now = later(120)
    await rig.reconcile()
    pods = [item for (kind, _), item in rig.kube.objects.items() if kind == "Pod"]
    assert [owner["uid"] for item in pods for owner in item["metadata"]["ownerReferences"]] == [UID, UID]


async def test_pods_of_another_controllers_job_and_of_its_namesake_are_left_alone():
    rig = Rig(raw_job(runPolicy={"managedBy": "example.com/other"}), left_over(0), deleting(running(1)))
    for seconds in (0, 1000):
        rig.now = later(seconds)
        await rig.reconcile()
    assert rig.kube.writes() == []


async def test_refused_child_is_told_once_and_made_after_the_repair():
    rig = Rig(raw_job())
    rig.kube.refusals["Pod", "sums-1"] = KubeError(403, "Forbidden", "exceeded quota: tight, requested: pods=1")
    await rig.reconcile()
    assert rig.status["reason"] == "QuotaExceeded"
    assert "exceeded quota: tight" in rig.status["message"]
    assert rig.events().count("QuotaExceeded") == 1
    rig.watch()
    rig.kube.requests.clear()
    await rig.reconcile()
    assert rig.kube.writes() == [("create", "Pod", "sums-1")], "tried again, and told no second time"
    rig.kube.refusals.clear()
    await rig.reconcile()
    assert ("Pod", "sums-1") in rig.kube.objects
    assert rig.status["reason"] != "QuotaExceeded"


async def test_pods_whose_end_no_watch_tells_are_found_out():
    """Somebody took our label off them: the cache keeps them as they were."""
    rig = Rig(raw_job(), running(0), running(1))
    await rig.reconcile()
    rig.put(ended(1, 1))
    await rig.reconcile()
    assert {name for _, name in rig.cache.children(KEY) if name.startswith("sums-")} >= {"sums-0", "sums-1"}
    rig.now = later(60)
    await rig.reconcile()
    pods = [item for (kind, _), item in rig.kube.objects.items() if kind == "Pod"]
    assert [item["metadata"]["labels"]["grpo.dev/attempt"] for item in pods] == ["1", "1"]


async def test_edited_service_whose_end_no_watch_tells_is_made_anew():
    rig = Rig(raw_job(), running(0), running(1))
    await rig.reconcile()
    service = rig.kube.objects["Service", "sums"]
    rig.put({**service, "spec": {**service["spec"], "selector": {"app": "another"}}})
    await rig.reconcile()
    await rig.reconcile()
    assert rig.kube.objects["Service", "sums"]["spec"]["selector"] == {"grpo.dev/job-name": "sums"}


async def test_passing_trouble_goes_to_the_queue():
    rig = Rig(raw_job())
    rig.kube.refusals["Service", "sums"] = KubeError(503, "ServiceUnavailable", "later")
    with pytest.raises(KubeError):
        await rig.reconcile()


class ListedKube(FakeKube):
    """Lists what it held when it was asked; `meanwhile(kind)` runs before the answer arrives."""

    def __init__(self, *items):
        super().__init__(*items)
        self.meanwhile = lambda kind: None

    async def list(self, kind, namespace="", selector=""):
        answer = [
            copy.deepcopy(item)
            for (found, _), item in self.objects.items()
            if found == kind and namespace in ("", item["metadata"]["namespace"])
        ]
        self.meanwhile(kind)
        return answer


def listing(kube, *namespaces):
    cache = Cache()
    queue = Reconciler(kube, cache, SETTINGS, FakeReader()).queue
    return cache, Resync(kube, cache, queue, namespaces, ClusterView())


async def test_listing_anew_notices_what_a_watch_missed():
    cache, resync = listing(ListedKube(raw_job(), running(0)))
    gone = raw_job("gone")
    gone["metadata"]["uid"] = "gone"
    cache.put_job(gone)
    cache.put_child("Pod", running(1))
    await resync.run()
    assert cache.job(KEY) is not None
    assert cache.job(("team", "gone")) is None
    assert set(cache.children(KEY)) == {("Pod", "sums-0")}


async def test_listing_one_namespace_leaves_the_others():
    cache, resync = listing(ListedKube(raw_job()), "team")
    other = child("Pod", "sums-0")
    other["metadata"]["namespace"] = "other"
    cache.put_child("Pod", other)
    await resync.run()
    assert ("Pod", "sums-0") in cache.children(("other", "sums"))


@pytest.mark.parametrize("kind", ["Pod", "GRPOJob"])
async def test_what_is_made_while_everything_is_listed_has_not_vanished(kind):
    """Else a healthy gang whose pods were just made is taken for deleted, and restarts."""
    kube = ListedKube(raw_job())
    cache, resync = listing(kube)

    def make(listed):
        if listed == kind == "Pod":
            cache.put_child("Pod", kube.put(running(0)))
        elif listed == kind:
            job = raw_job("new")
            job["metadata"]["uid"] = "new"
            cache.put_job(kube.put(job))

    kube.meanwhile = make
    await resync.run()
    if kind == "Pod":
        assert ("Pod", "sums-0") in cache.children(KEY)
    else:
        assert cache.job(("team", "new")) is not None


@pytest.mark.parametrize("kind", ["Pod", "GRPOJob"])
async def test_what_is_deleted_while_everything_is_listed_does_not_come_back(kind):
    """The list is as of the moment when it began; the watch told of the deletion before its last page arrived."""
    job, pod = raw_job(), running(0)
    job["metadata"]["uid"] = "job"
    cache, resync = listing(ListedKube(job, pod))
    cache.put_job(job)
    cache.put_child("Pod", pod)

    def delete(listed):
        if listed == kind:
            resync.health.brought(kind, job if kind == "GRPOJob" else pod, "DELETED")
            cache.drop_job(job) if kind == "GRPOJob" else cache.drop_child("Pod", pod)

    resync._kube.meanwhile = delete
    await resync.run()
    assert (cache.job(KEY) is None) is (kind == "GRPOJob")
    assert bool(cache.children(KEY)) is (kind != "Pod")
    resync._kube.meanwhile = lambda listed: None
    await resync.run()
    assert cache.job(KEY) is not None, "what a later list shows is there"


@pytest.mark.parametrize("replaced", [False, True], ids=["gone", "another of its name"])
async def test_gang_is_not_blamed_by_a_cache_that_is_behind(replaced):
    """Somebody deleted a pod, of which no watch has told yet; then its peer failed. The first of these is the cause."""
    job = raw_job(status={"attempt": 0, "createdAttempt": 0, "failures": 0, "state": "Running"})
    rig = Rig(job, running(0), running(1))
    rig.put(ended(1, 137, reason="OOMKilled"))
    del rig.kube.objects["Pod", "sums-0"]
    if replaced:
        rig.kube.put(child("Pod", "sums-0", uid="foreign"))
    await rig.reconcile()
    (restart,) = rig.status["restarts"]
    assert (restart["cause"], restart["counted"], restart["pod"]) == ("PodDeleted", False, "sums-0")
    assert rig.status["failures"] == 0


@pytest.mark.parametrize(
    ("last_seen", "cause", "counted"),
    [
        (disrupted(running(0), "PreemptionByScheduler"), "Preempted", False),
        (ended(0, 137, reason="OOMKilled"), "OOMKilled", True),
    ],
)
async def test_pod_that_is_gone_by_now_has_told_why(last_seen, cause, counted):
    """The cache has its last words, which the API server has no longer."""
    job = raw_job(status={"attempt": 0, "createdAttempt": 0, "failures": 0, "state": "Running"})
    rig = Rig(job, running(0), running(1))
    rig.put(last_seen)
    del rig.kube.objects["Pod", "sums-0"]
    await rig.reconcile()
    (restart,) = rig.status["restarts"]
    assert (restart["cause"], restart["counted"], restart["pod"]) == (cause, counted, "sums-0")
