"""Leader election: two operators never act at once, whatever clocks, connections and the API server do."""

import asyncio

import aiohttp
import pytest

from grpo_operator import lease as module
from grpo_operator.kube import KubeError
from grpo_operator.lease import Lease
from tests.unit.operator.fake_kube import FakeKube
from tests.unit.operator.virtual_time import TIME, in_virtual_time, monotonic

CONNECTION_ERRORS = [
    aiohttp.ClientConnectionError("Cannot connect to host"),
    aiohttp.ServerDisconnectedError(),
    aiohttp.ClientPayloadError("Response payload is not completed"),
    TimeoutError(),
    ConnectionRefusedError(),
    KubeError(500, "InternalError", "etcd leader changed"),
    KubeError(409, "Conflict", "the object has been modified"),
]


def held_by(holder, *, renewed="2020-01-01T00:00:00.000000Z", seconds=15, transitions=4):
    spec = {
        "holderIdentity": holder,
        "leaseDurationSeconds": seconds,
        "renewTime": renewed,
        "leaseTransitions": transitions,
    }
    return {"kind": "Lease", "metadata": {"name": "grpo-operator", "namespace": "system"}, "spec": spec}


def spec_in(kube):
    return kube.objects["Lease", "grpo-operator"]["spec"]


def make(kube, identity="pod-a"):
    return Lease(kube, "system", "grpo-operator", identity)


class Slow(FakeKube):
    """Each look at the Lease takes a second; its holder renews it `renewals` times meanwhile."""

    def __init__(self, *items, renewals=0):
        super().__init__(*items)
        self.renewals = renewals

    async def get(self, kind, namespace, name):
        found = await super().get(kind, namespace, name)
        await asyncio.sleep(1)
        if self.renewals:
            self.renewals -= 1
            self.put(held_by("pod-b", renewed=f"2020-01-01T00:00:{self.renewals:02}.000000Z"))
        return found


@pytest.fixture(autouse=True)
def virtual_time(monkeypatch):
    monkeypatch.setattr(module, "time", TIME)


async def acquire(lease, within=1000.0):
    """Seconds until the Lease was acquired."""
    started = monotonic()
    await asyncio.wait_for(lease.acquire(), within)
    return monotonic() - started


def test_times_are_those_of_client_go_and_the_deadline_is_before_the_duration():
    assert (module.DURATION_SECONDS, module.RENEW_DEADLINE_SECONDS, module.RETRY_SECONDS) == (15, 10, 2)


@in_virtual_time
async def test_lease_that_nobody_made_is_made():
    kube = FakeKube()
    found = make(kube)
    assert await acquire(found) == 0
    spec = spec_in(kube)
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("pod-a", 15)
    assert spec["renewTime"] == spec["acquireTime"]
    assert found.renewed_at == monotonic()


@pytest.mark.parametrize("holder", ["", None])
@in_virtual_time
async def test_released_lease_is_taken_at_once(holder):
    kube = FakeKube(held_by(holder))
    assert await acquire(make(kube)) == 0
    spec = spec_in(kube)
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("pod-a", 5)


@in_virtual_time
async def test_own_lease_of_an_earlier_life_is_renewed_at_once():
    kube = FakeKube(held_by("pod-a"))
    assert await acquire(make(kube)) == 0
    assert spec_in(kube)["leaseTransitions"] == 4
    assert spec_in(kube)["renewTime"] > "2020-01-01T00:00:00.000000Z"


@in_virtual_time
async def test_others_lease_runs_out_by_our_clock_since_we_saw_it_change():
    """Its renewTime is years ago by the clock of another node: that says nothing."""
    kube = Slow(held_by("pod-b"))
    assert 15 < await acquire(make(kube)) < 15 + 5
    spec = spec_in(kube)
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("pod-a", 5)
    assert spec["acquireTime"] == spec["renewTime"]


@in_virtual_time
async def test_duration_that_the_holder_wrote_counts():
    assert 60 < await acquire(make(Slow(held_by("pod-b", seconds=60)))) < 60 + 5


@in_virtual_time
async def test_lease_that_is_renewed_is_not_taken():
    """Every 3 s, 40 times; then its holder dies."""
    assert await acquire(make(Slow(held_by("pod-b"), renewals=40))) > 3 * 39 + 15


@in_virtual_time
async def test_two_that_want_it_at_once_end_with_one_holder():
    kube = FakeKube(held_by(""))
    read = asyncio.Barrier(2)
    get = kube.get

    async def get_together(*args):
        found = await get(*args)
        if len(kube.requests) <= 2:
            await read.wait()
        return found

    kube.get = get_together
    both = [asyncio.create_task(make(kube, name).acquire()) for name in ("pod-a", "pod-b")]
    done, pending = await asyncio.wait(both, timeout=14)
    for task in pending:
        task.cancel()
    assert (len(done), len(pending)) == (1, 1)


@pytest.mark.parametrize("error", CONNECTION_ERRORS, ids=lambda found: type(found).__name__)
@in_virtual_time
async def test_error_while_acquiring_is_tried_again(error):
    kube = FakeKube()
    get, errors = kube.get, [error, error]

    async def get_or_fail(*args):
        if errors:
            raise errors.pop()
        return await get(*args)

    kube.get = get_or_fail
    assert await acquire(make(kube)) == 2 * module.RETRY_SECONDS
    assert spec_in(kube)["holderIdentity"] == "pod-a"


@in_virtual_time
async def test_request_that_hangs_while_acquiring_is_given_up():
    kube = FakeKube()
    get, hangs = kube.get, [3600]

    async def get_or_hang(*args):
        if hangs:
            await asyncio.sleep(hangs.pop())
        return await get(*args)

    kube.get = get_or_hang
    assert await acquire(make(kube)) < 15


async def keep_for(lease):
    """Seconds from the last renewal until `keep` returned."""
    await asyncio.wait_for(lease.keep(), 1000)
    return monotonic() - lease.renewed_at


@in_virtual_time
async def test_keep_renews_as_long_as_it_can():
    kube = FakeKube()
    found = make(kube)
    await found.acquire()
    first, renewed = found.renewed_at, spec_in(kube)["renewTime"]
    task = asyncio.create_task(found.keep())
    await asyncio.sleep(3600)
    assert not task.done()
    assert found.renewed_at >= first + 3600 - module.RETRY_SECONDS
    assert spec_in(kube)["renewTime"] > renewed
    task.cancel()


@pytest.mark.parametrize("error", CONNECTION_ERRORS, ids=lambda found: type(found).__name__)
@in_virtual_time
async def test_keep_outlives_errors_that_pass(error):
    kube = FakeKube()
    found = make(kube)
    await found.acquire()
    replace, errors = kube.replace, [error, error]

    async def replace_or_fail(*args):
        if errors:
            raise errors.pop()
        return await replace(*args)

    kube.replace = replace_or_fail
    task = asyncio.create_task(found.keep())
    await asyncio.sleep(60)
    assert not task.done()
    assert not errors
    task.cancel()


@pytest.mark.parametrize("error", CONNECTION_ERRORS, ids=lambda found: type(found).__name__)
@in_virtual_time
async def test_keep_returns_before_the_lease_runs_out_when_every_request_fails(error):
    kube = FakeKube()
    found = make(kube)
    await found.acquire()

    async def fail(*_):
        raise error

    kube.get = fail
    assert await keep_for(found) < module.DURATION_SECONDS


@pytest.mark.parametrize("verb", ["get", "replace"])
@in_virtual_time
async def test_keep_returns_before_the_lease_runs_out_when_requests_hang(verb):
    kube = FakeKube()
    found = make(kube)
    await found.acquire()

    async def hang(*_):
        await asyncio.sleep(3600)

    setattr(kube, verb, hang)
    assert await keep_for(found) < module.DURATION_SECONDS


@in_virtual_time
async def test_renewal_counts_from_its_asking_and_not_from_its_answer():
    """The API server writes the time at which we asked: an answer that took long is already old."""
    kube = FakeKube()
    found = make(kube)
    await found.acquire()
    get = kube.get

    async def slow(*args):
        await asyncio.sleep(4)
        return await get(*args)

    kube.get = slow
    before = monotonic()
    task = asyncio.create_task(found.keep())
    await asyncio.sleep(module.RETRY_SECONDS + 4.5)
    assert found.renewed_at == before + module.RETRY_SECONDS
    task.cancel()


@in_virtual_time
async def test_keep_returns_when_another_took_the_lease():
    kube = FakeKube()
    found = make(kube)
    await found.acquire()
    kube.put(held_by("pod-b", renewed="2030-01-01T00:00:00.000000Z"))
    await keep_for(found)
    assert spec_in(kube)["holderIdentity"] == "pod-b"


@in_virtual_time
async def test_release_lets_another_take_over_at_once():
    kube = FakeKube()
    found = make(kube)
    await found.acquire()
    await found.release()
    assert await acquire(make(kube, "pod-b")) == 0
    assert spec_in(kube)["holderIdentity"] == "pod-b"


@in_virtual_time
async def test_release_leaves_anothers_lease_alone():
    kube = FakeKube(held_by("pod-b"))
    await make(kube).release()
    assert spec_in(kube)["holderIdentity"] == "pod-b"
    assert kube.writes() == []
    await make(FakeKube()).release()
