"""The work queue: one reconcile of a job at a time, again when added meanwhile, backoff, and times to wake up."""

import asyncio
import contextlib
import itertools
import logging

import pytest

from grpo_operator import workqueue
from grpo_operator.workqueue import WorkQueue
from tests.unit.operator.virtual_time import TIME, in_virtual_time, monotonic

A, B, C = ("team", "a"), ("team", "b"), ("team", "c")


@pytest.fixture(autouse=True)
def virtual_time(monkeypatch):
    monkeypatch.setattr(workqueue, "time", TIME)


@contextlib.asynccontextmanager
async def working(queue):
    task = asyncio.create_task(queue.run())
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(ready, seconds=600.0):
    deadline = monotonic() + seconds
    while not ready():
        assert monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.01)


async def quiet():
    """Long enough for anything that is due to happen."""
    await asyncio.sleep(5)


class Work:
    """Counts calls by key, holds them until `release` is set, and notes how many ran at once."""

    def __init__(self, *, held=False):
        self.calls, self.active = [], []
        self.most, self.most_of_one = 0, 0
        self.release = asyncio.Event()
        if not held:
            self.release.set()

    async def __call__(self, key):
        self.calls.append(key)
        self.active.append(key)
        self.most = max(self.most, len(self.active))
        self.most_of_one = max(self.most_of_one, self.active.count(key))
        await self.release.wait()
        self.active.remove(key)


@in_virtual_time
async def test_key_that_waits_already_is_not_added_twice():
    work = Work()
    queue = WorkQueue(work, 2)
    for key in (A, B, A, A):
        queue.add(key)
    assert queue.depth == 2
    async with working(queue):
        await until(lambda: len(work.calls) == 2)
        await quiet()
    assert work.calls == [A, B]
    assert (queue.depth, queue.oldest_seconds) == (0, 0.0)


@in_virtual_time
async def test_one_reconcile_of_a_job_at_a_time_and_again_when_added_meanwhile():
    work = Work(held=True)
    queue = WorkQueue(work, 4)
    async with working(queue):
        queue.add(A)
        await until(lambda: work.calls == [A])
        for _ in range(3):
            queue.add(A)
        await quiet()
        assert work.calls == [A]
        work.release.set()
        await until(lambda: work.calls == [A, A])
        await quiet()
    assert (work.calls, work.most_of_one) == ([A, A], 1)


@in_virtual_time
async def test_jobs_are_worked_on_side_by_side_up_to_the_number_of_workers():
    work = Work(held=True)
    queue = WorkQueue(work, 2)
    async with working(queue):
        for key in (A, B, C):
            queue.add(key)
        await until(lambda: len(work.calls) == 2)
        await quiet()
        assert (work.calls, queue.depth) == ([A, B], 1)
        assert queue.oldest_seconds > 0
        work.release.set()
        await until(lambda: C in work.calls)
    assert work.most == 2


@in_virtual_time
async def test_wake_up_comes_at_its_time_and_the_earliest_counts():
    work = Work()
    queue = WorkQueue(work, 1)
    for seconds in (300, 70, 200):
        queue.add_after(A, seconds)
    started = monotonic()
    async with working(queue):
        await until(lambda: work.calls == [A])
        assert 70 <= monotonic() - started < 71
        await asyncio.sleep(600)
    assert work.calls == [A]


@in_virtual_time
async def test_wake_up_set_while_the_queue_sleeps_is_at_most_a_second_late():
    work = Work()
    queue = WorkQueue(work, 1)
    async with working(queue):
        await quiet()
        queue.add_after(A, 0.5)
        started = monotonic()
        await until(lambda: work.calls == [A])
        assert 0.5 <= monotonic() - started <= 1.52


@in_virtual_time
async def test_time_that_has_passed_wakes_at_once():
    work = Work()
    queue = WorkQueue(work, 1)
    queue.add_after(A, -5)
    async with working(queue):
        await until(lambda: work.calls == [A])


@in_virtual_time
async def test_next_wake_up_after_one_has_come():
    work = Work()
    queue = WorkQueue(work, 1)
    queue.add_after(A, 0.0)
    async with working(queue):
        await until(lambda: work.calls == [A])
        queue.add_after(A, 0.0)
        await until(lambda: work.calls == [A, A])


def failing(*fails):
    """Work that fails on these calls of A (from 0), and the times of all its calls."""
    times = []

    async def work(key):
        if key == A:
            times.append(monotonic())
            if len(times) - 1 in fails:
                raise RuntimeError("API server says no")

    return work, times


def pauses(times):
    return [after - before for before, after in itertools.pairwise(times)]


@in_virtual_time
async def test_error_of_one_job_is_tried_again_with_doubled_pauses(caplog):
    work, times = failing(*range(10))
    queue = WorkQueue(work, 1)
    queue.add(A)
    with caplog.at_level(logging.WARNING):
        async with working(queue) as task:
            await until(lambda: len(times) == 11)
            assert not task.done()
    found = pauses(times)
    for pause, least in zip(found, [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60], strict=True):
        assert least <= pause < least + 1.1, found
    assert "API server says no" in caplog.text
    assert "team/a" in caplog.text


@in_virtual_time
async def test_success_begins_the_backoff_anew():
    work, times = failing(0, 1, 2, 3, 5)
    queue = WorkQueue(work, 1)
    queue.add(A)
    async with working(queue):
        await until(lambda: len(times) == 5)
        queue.add(A)
        await until(lambda: len(times) == 7)
    found = pauses(times)
    assert found[3] >= 4
    assert 0.5 <= found[5] < 1.6


@in_virtual_time
async def test_error_of_one_job_does_not_stop_others():
    done = []

    async def work(key):
        if key == A:
            raise ValueError("bad")
        done.append(key)

    queue = WorkQueue(work, 1)
    async with working(queue):
        queue.add(A)
        queue.add(B)
        await until(lambda: done == [B])


@in_virtual_time
async def test_error_that_lasts_for_days_does_not_end_the_queue():
    """2 ** 1100 is no float."""
    calls = 0

    async def work(key):
        nonlocal calls
        calls += 1
        if calls < 1100:
            queue.add(key)
            raise RuntimeError

    queue = WorkQueue(work, 1)
    queue.add(A)
    logging.getLogger(workqueue.__name__).disabled = True
    try:
        async with working(queue) as task:
            await until(lambda: calls == 1100 or task.done())
            assert not task.done(), task.exception()
    finally:
        logging.getLogger(workqueue.__name__).disabled = False


@in_virtual_time
async def test_cancelled_queue_ends():
    queue = WorkQueue(Work(held=True), 2)
    queue.add(A)
    task = asyncio.create_task(queue.run())
    await quiet()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
