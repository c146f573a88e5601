"""Lifts the gates of `gated` gangs: the one place that decides for all of them, so no two get the same GPUs."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from aiohttp import ClientError

from grpo_api import names
from grpo_operator.cache import Cache
from grpo_operator.cluster_view import ClusterView
from grpo_operator.gang import gated
from grpo_operator.gang.cluster import HOSTNAME, Needs, Node, needs_of
from grpo_operator.gang.line import Decision, WaitingGang, decide
from grpo_operator.kube import Kube, KubeError, Object
from grpo_operator.policies.podstate import attempt_of, rank_of
from grpo_operator.reasons import Cause, Reason
from grpo_operator.workqueue import Key

SETTLE_SECONDS = 0.2
"""Changes come in bursts, as when a gang ends: one decision for all of them."""
LOOK_SECONDS = 10.0
"""Between two decisions at most, whatever has been missed."""
BIND_SECONDS = 10.0
"""How long the next gang waits until the scheduler has placed the one before: two are not placed at once, so that the
one which cannot be placed after all is alone with its part of the GPUs."""
TELL_SECONDS = 10.0
"""Between two news of a place in the line at least: each is a status patch of every gang that waits."""
REFUSED = frozenset({400, 403, 422})
"""Answers that stand however often it is asked: by a right, an admission policy or a webhook."""

Waiting = dict[Key, tuple[WaitingGang, list[Object]]]
"""Gangs of the line, each with its pods that are gated, by rank."""

logger = logging.getLogger(__name__)


class Gatekeeper:
    """`told` says why a gang waits; `enqueue` is called with its key when that has changed."""

    def __init__(
        self,
        kube: Kube,
        cache: Cache,
        view: ClusterView,
        enqueue: Callable[[Key], None],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._kube, self._cache, self._view, self._enqueue, self._clock = kube, cache, view, enqueue, clock
        self._told: dict[Key, tuple[tuple[str, str], float]] = {}
        self._needs: dict[tuple[str, str | None], Needs] = {}
        """By a pod's UID and version: while a gate holds it, others may narrow where it may go."""

    def told(self, key: Key) -> tuple[str, str] | None:
        return self._told[key][0] if key in self._told else None

    async def run(self) -> None:
        """Decide after each change, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._view.changed.wait(), LOOK_SECONDS)
            await asyncio.sleep(SETTLE_SECONDS)
            self._view.changed.clear()
            try:
                await self.decide()
            except (KubeError, ClientError, OSError, TimeoutError) as error:
                logger.warning("gates: %s: %s; again in %.0f s", type(error).__name__, error, LOOK_SECONDS)

    async def decide(self) -> None:
        """One decision carried out. What a crash cuts off, the next one completes: the gang has then begun."""
        now = self._clock()
        # Without a gate in the cluster, each pod that starts would be a reason to look at all jobs.
        waiting = self._waiting() if self._view.any_gated() else {}
        if not waiting:
            self._tell({}, now.timestamp())
            return
        refused: dict[Key, tuple[str, str]] = {}
        while True:
            made = decide(self._view.cluster(), [gang for gang, _ in waiting.values()], now.timestamp())
            if not (failed := await self._carry_out(made, waiting)):
                break
            # The room that was meant for them is another's.
            refused |= failed
            gone = refused.keys() | made.release.keys()
            waiting = {key: held for key, held in waiting.items() if key not in gone}
        self._tell({**made.told, **refused}, now.timestamp())

    async def _carry_out(self, made: Decision, waiting: Waiting) -> dict[Key, tuple[str, str]]:
        """Returns why the cluster's rules keep the pods of some gangs from being changed: those wait alone."""
        failed: dict[Key, tuple[str, str]] = {}
        for key in [*made.heads, *made.release]:
            try:
                if key in made.release:
                    await self._release(key, waiting[key], made.release[key])
                else:
                    await self._keep_room(waiting[key][1][0], made.heads[key])
            except KubeError as error:
                if error.code not in REFUSED:
                    raise
                logger.warning("gates: %s/%s: %s", *key, error.message)
                message = f"the cluster does not let the operator change the gang's pods: {error.message}"
                failed[key] = Reason.ADMISSION_DENIED, message[:1000]
        return failed

    def _waiting(self) -> Waiting:
        """Gangs all of whose pods are there and some still gated."""
        found, needs = Waiting(), dict[tuple[str, str | None], Needs]()
        for key, job in self._cache.jobs():
            status = job.get("status") or {}
            attempt = status.get("attempt", 0)
            pods = [item for (kind, _), item in self._cache.children(key).items() if kind == "Pod"]
            if status.get("state") in names.TERMINAL_STATES or job["metadata"].get("deletionTimestamp"):
                continue
            if any(attempt_of(pod) != attempt or pod["metadata"].get("deletionTimestamp") for pod in pods):
                continue  # an earlier gang is going, or this one is
            held = sorted(filter(gated.is_gated, pods), key=rank_of)
            if not held or len(pods) < (job["spec"]["trainer"].get("nnodes") or 1):
                continue
            first = held[0]["metadata"]
            seen = first["uid"], first.get("resourceVersion")
            needs[seen] = self._needs.get(seen) or needs_of(held[0])
            found[key] = self._gang(key, job, held, pods, needs[seen]), held
        self._needs = needs
        return found

    def _gang(self, key: Key, job: Object, held: list[Object], pods: list[Object], needs: Needs) -> WaitingGang:
        scheduling: dict[str, Any] = job["spec"].get("gangScheduling") or {}
        spec = held[0]["spec"]
        required = scheduling.get("topologyMode", "Required") == "Required"
        released = [pod for pod in pods if pod not in held]
        last = _timed_out(job)
        first = min(pods, key=rank_of)
        return WaitingGang(
            key=key,
            pods=len(held),
            needs=needs,
            since=last["time"] if last else job["metadata"].get("creationTimestamp", ""),
            priority=spec.get("priority") or 0,
            preempts=spec.get("preemptionPolicy") != "Never",
            topology_key=scheduling.get("topologyKey"),
            required=required,
            domain=self._domain(scheduling.get("topologyKey"), released) if required else None,
            keeps_from=gated.keeps_from(first),
            begun=bool(released),
        )

    def _domain(self, key: str | None, released: list[Object]) -> str | None:
        places = (pod["spec"].get("nodeName") or gated.planned_node(pod) for pod in released)
        labels = (self._view.nodes[place].labels for place in places if place in self._view.nodes)
        return next((held[key] for held in labels if key in held), None) if key else None

    async def _keep_room(self, pod: Object, begin: float) -> None:
        annotations = {names.ANNOTATION_KEEPS_ROOM_FROM: datetime.fromtimestamp(begin, UTC).isoformat()}
        await self._patch(pod, {"metadata": {"uid": pod["metadata"]["uid"], "annotations": annotations}})

    async def _release(self, key: Key, waiting: tuple[WaitingGang, list[Object]], nodes: list[Node]) -> None:
        gang, held = waiting
        now, job = self._clock(), self._cache.job(key)
        logger.info("%s/%s: released to %s", *key, ", ".join(sorted({node.name for node in nodes})))
        # Where the scheduler has not followed the plan in time, it knows more (volumes, spread): it may choose.
        free = job is not None and _timed_out(job) is not None
        for pod, node in zip(held, nodes, strict=True):
            pins = {} if free else {HOSTNAME: node.labels[HOSTNAME]} if HOSTNAME in node.labels else {}
            if gang.topology_key in node.labels and gang.required:
                pins[gang.topology_key] = node.labels[gang.topology_key]
            await self._patch(pod, gated.release(pod, node.name, pins, now))
        self._told.pop(key, None)
        self._enqueue(key)
        deadline = time.monotonic() + BIND_SECONDS
        while time.monotonic() < deadline and not self._view.has_places([pod["metadata"]["uid"] for pod in held]):
            await asyncio.sleep(0.02)

    async def _patch(self, pod: Object, change: Object) -> None:
        metadata = pod["metadata"]
        try:
            made = await self._kube.patch("Pod", metadata["namespace"], metadata["name"], change)
        except KubeError as error:
            if error.code not in (404, 409):
                raise
            return  # gone, or another of its name: a watch will tell
        self._cache.put_child("Pod", made)
        self._view.put_pod(made)

    def _tell(self, told: dict[Key, tuple[str, str]], now: float) -> None:
        for key in self._told.keys() - told.keys():
            del self._told[key]
        for key, news in told.items():
            held, since = self._told.get(key, (("", ""), 0.0))
            if news != held and (news[0] != held[0] or now - since >= TELL_SECONDS):
                self._told[key] = news, now
                self._enqueue(key)


def _timed_out(job: Object) -> Object | None:
    """The restart that made the present attempt, where that was for want of placement."""
    status = job.get("status") or {}
    last: Object = (status.get("restarts") or [{}])[-1]
    return last if last.get("cause") == Cause.SCHEDULE_TIMEOUT else None
