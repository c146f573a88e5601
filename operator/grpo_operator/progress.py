"""Reads what head pods say of themselves: `GET /progress`, bounded in size and time, beside the reconciles."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
from pydantic import ValidationError

from grpo_api import names
from grpo_api.status import HeadReport
from grpo_operator.workqueue import Key

TIMEOUT_SECONDS = 2.0
MAX_BYTES = 65536
CONCURRENCY = 32
TICK_SECONDS = 0.5
QUIET_SHARE = 0.5
QUIET_INTERVAL_SECONDS = 60.0
"""A trainer whose report has not changed for t seconds is asked again after half of t, but within this. A step is so
told within half of its length, and a thousand jobs whose steps take minutes cost a thousand requests a minute."""


@dataclass
class _Head:
    """The head pod of one job, and what it said."""

    address: str
    report: HeadReport | None = None
    body: bytes = b""
    changed_at: float = field(default_factory=time.monotonic)
    due: float = 0.0


class ProgressReader:
    """Polls the head pods that `follow` names; `changed` is called with the key of a job whose report changed.

    `interval` is the pause between two polls of a head in seconds; it grows while a trainer says nothing new.
    """

    def __init__(self, interval: float, changed: Callable[[Key], None]) -> None:
        self._interval, self._changed = interval, changed
        self._heads: dict[Key, _Head] = {}

    def follow(self, key: Key, address: str | None) -> None:
        """Poll this `host:port` from now on; None stops it."""
        if address is None:
            self._heads.pop(key, None)
        elif key not in self._heads or self._heads[key].address != address:
            self._heads[key] = _Head(address)

    def report(self, key: Key) -> HeadReport | None:
        """The last report of the pod that is followed now."""
        head = self._heads.get(key)
        return head.report if head else None

    def quiet(self, key: Key) -> float | None:
        """Seconds since that report was first seen, by a clock that does not jump; None where there is none."""
        head = self._heads.get(key)
        return time.monotonic() - head.changed_at if head and head.report else None

    async def run(self) -> None:
        """Poll until cancelled."""
        limit = asyncio.Semaphore(CONCURRENCY)
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                now = time.monotonic()
                due = [(key, head) for key, head in self._heads.items() if head.due <= now]
                await asyncio.gather(*(self._poll(session, limit, key, head) for key, head in due))
                await asyncio.sleep(min(TICK_SECONDS, self._interval))

    async def _poll(self, session: aiohttp.ClientSession, limit: asyncio.Semaphore, key: Key, head: _Head) -> None:
        async with limit:
            body = await _read(session, head.address)
        now = time.monotonic()
        if body is not None and body != head.body:
            try:
                report = HeadReport.model_validate_json(body)
            except (ValidationError, ValueError):
                pass  # a head that answers garbage keeps its last report
            else:
                news = report != head.report
                head.body, head.report = body, report
                if news:
                    head.changed_at = now
                    if self._heads.get(key) is head:
                        self._changed(key)
        trains = head.report is not None and head.report.phase == "training"
        quiet = min(QUIET_INTERVAL_SECONDS, QUIET_SHARE * (now - head.changed_at)) if trains else 0.0
        head.due = now + max(self._interval, quiet)


async def _read(session: aiohttp.ClientSession, address: str) -> bytes | None:
    """The body of a head's answer; None where there is none in time, or too much."""
    try:
        async with session.get(f"http://{address}{names.PROGRESS_PATH}", allow_redirects=False) as response:
            body = b""
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > MAX_BYTES:
                    return None
            return body if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None
