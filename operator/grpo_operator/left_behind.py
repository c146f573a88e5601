"""Deletes what deleted jobs have left behind, where Kubernetes' garbage collector does not.

It does so at once, as a rule, and needs no operator for it. But it can miss that a job was deleted while the API server
starts anew and does not serve the jobs' kind yet. What it has missed it leaves until it starts anew itself: pods keep
their GPUs, and a new job of the name waits for them.
"""

import logging

from grpo_operator.apply import live_jobs
from grpo_operator.cache import Cache
from grpo_operator.kube import Kube
from grpo_operator.observe import maker
from grpo_operator.workqueue import Key

WAIT_SECONDS = 90.0
"""How long the garbage collector may take before its work is done for it."""

logger = logging.getLogger(__name__)


class LeftBehind:
    """Remembers since when each object is seen without its job. A claim holds what nobody can make anew: it stays."""

    def __init__(self, kube: Kube, cache: Cache) -> None:
        self._kube, self._cache = kube, cache
        self._since: dict[Key, dict[str, float]] = {}

    async def collect(self, key: Key, now: float) -> float | None:
        """Delete what is due, by a clock that does not jump. Returns the seconds until the next look, if there is one.

        The cache may be behind, so the API server is asked which jobs of this name there are.
        """
        job = self._cache.job(key)
        present = job["metadata"]["uid"] if job else None
        left = {
            item["metadata"]["uid"]: (kind, item, made_for)
            for (kind, _), item in self._cache.children(key).items()
            if not item["metadata"].get("deletionTimestamp") and kind != "PersistentVolumeClaim"
            if (made_for := maker(kind, item)) not in (None, present)
        }
        before = self._since.pop(key, {})
        if not left:
            return None
        since = self._since[key] = {uid: before.get(uid, now) for uid in left}
        due = [uid for uid in left if since[uid] + WAIT_SECONDS <= now]
        if not due:
            return min(since.values()) + WAIT_SECONDS - now
        there = await live_jobs(self._kube, key)
        for uid in due:
            kind, item, made_for = left[uid]
            if made_for in there:
                continue
            child = item["metadata"]["name"]
            logger.warning("%s %s/%s is there, and its job is deleted: deletes it", kind, key[0], child)
            if not await self._kube.delete(kind, key[0], child, uid):
                self._cache.drop_child(kind, item)
        return WAIT_SECONDS
