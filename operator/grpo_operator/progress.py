"""Reads what head pods say of themselves: `GET /progress`, bounded in size and time, beside the reconciles."""

import asyncio
from collections.abc import Callable

import aiohttp
from pydantic import ValidationError

from grpo_api import names
from grpo_api.status import HeadReport
from grpo_operator.workqueue import Key

TIMEOUT_SECONDS = 2.0
MAX_BYTES = 65536
CONCURRENCY = 32


class ProgressReader:
    """Polls the head pods that `follow` names; `changed` is called with the key of a job whose report changed."""

    def __init__(self, interval: float, changed: Callable[[Key], None]) -> None:
        self._interval, self._changed = interval, changed
        self._addresses: dict[Key, str] = {}
        self._reports: dict[Key, tuple[str, HeadReport]] = {}

    def follow(self, key: Key, address: str | None) -> None:
        """Poll this `host:port` from now on; None stops it."""
        if address is None:
            self._addresses.pop(key, None)
            self._reports.pop(key, None)
        elif self._addresses.get(key) != address:
            self._addresses[key] = address
            self._reports.pop(key, None)

    def report(self, key: Key) -> HeadReport | None:
        """The last report of the pod that is followed now."""
        found = self._reports.get(key)
        return found[1] if found and found[0] == self._addresses.get(key) else None

    async def run(self) -> None:
        """Poll until cancelled."""
        limit = asyncio.Semaphore(CONCURRENCY)
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                await asyncio.gather(*(self._poll(session, limit, *item) for item in list(self._addresses.items())))
                await asyncio.sleep(self._interval)

    async def _poll(self, session: aiohttp.ClientSession, limit: asyncio.Semaphore, key: Key, address: str) -> None:
        async with limit:
            try:
                async with session.get(f"http://{address}{names.PROGRESS_PATH}", allow_redirects=False) as response:
                    body = b""
                    async for piece in response.content.iter_any():
                        body += piece
                        if len(body) > MAX_BYTES:
                            return
                    report = HeadReport.model_validate_json(body) if response.status == 200 else None
            except (aiohttp.ClientError, TimeoutError, ValidationError, ValueError):
                return  # a head that hangs or answers garbage keeps its last report
        if report is not None and self._addresses.get(key) == address:
            before = self._reports.get(key)
            self._reports[key] = (address, report)
            if before is None or before[1] != report:
                self._changed(key)
