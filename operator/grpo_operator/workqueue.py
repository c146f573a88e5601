"""Keyed work queue: one reconcile of a job at a time, bounded concurrency, backoff after errors, and wake-up times."""

import asyncio
import heapq
import logging
import time
from collections.abc import Awaitable, Callable

Key = tuple[str, str]
"""(namespace, name) of a job."""

BACKOFF_BASE_SECONDS = 0.5
BACKOFF_CAP_SECONDS = 60.0

logger = logging.getLogger(__name__)


class WorkQueue:
    """Adding a key that already waits does nothing; one that is being worked on is worked on once more afterwards."""

    def __init__(self, work: Callable[[Key], Awaitable[None]], workers: int) -> None:
        self._work = work
        self._workers = workers
        self._waiting: dict[Key, float] = {}
        """Keys that wait, with the time of their adding, oldest first."""
        self._active: set[Key] = set()
        self._again: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._timers: list[tuple[float, Key]] = []
        self._next_wake: dict[Key, float] = {}
        self._changed = asyncio.Event()

    def add(self, key: Key) -> None:
        if key in self._active:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting[key] = time.monotonic()
            self._changed.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """Add the key later; of several times the earliest counts."""
        at = time.monotonic() + max(0.0, seconds)
        if at < self._next_wake.get(key, float("inf")):
            self._next_wake[key] = at
            heapq.heappush(self._timers, (at, key))
            self._changed.set()

    @property
    def depth(self) -> int:
        return len(self._waiting)

    @property
    def oldest_seconds(self) -> float:
        """Age of the oldest key that waits; 0 where none does."""
        return time.monotonic() - next(iter(self._waiting.values())) if self._waiting else 0.0

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_time())
            for _ in range(self._workers):
                group.create_task(self._work_on())

    async def _keep_time(self) -> None:
        while True:
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                at, key = heapq.heappop(self._timers)
                if self._next_wake.get(key) == at:
                    del self._next_wake[key]
                    self.add(key)
            delay = min(1.0, self._timers[0][0] - now) if self._timers else 1.0
            await asyncio.sleep(max(0.01, delay))

    async def _work_on(self) -> None:
        while True:
            while not self._waiting:
                self._changed.clear()
                await self._changed.wait()
            key = next(iter(self._waiting))
            del self._waiting[key]
            self._active.add(key)
            try:
                await self._work(key)
                self._failures.pop(key, None)
            except Exception as error:  # one job's fault must not stop the others'
                failures = self._failures[key] = self._failures.get(key, 0) + 1
                delay = min(BACKOFF_CAP_SECONDS, BACKOFF_BASE_SECONDS * 2 ** min(failures - 1, 30))
                delay = max(delay, getattr(error, "retry_after", 0.0))
                logger.warning("%s/%s: %s: %s; again in %.1f s", *key, type(error).__name__, error, delay)
                self.add_after(key, delay)
            finally:
                self._active.discard(key)
                if key in self._again:
                    self._again.discard(key)
                    self.add(key)
