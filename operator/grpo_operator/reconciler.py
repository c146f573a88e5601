"""One reconcile: observe, plan, apply."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from grpo_api import names
from grpo_api.job import is_managed_elsewhere
from grpo_operator import apply, events, metrics
from grpo_operator import status as statuses
from grpo_operator.cache import Cache
from grpo_operator.kube import Kube, KubeError, Object
from grpo_operator.left_behind import LeftBehind
from grpo_operator.observe import CreateFault, observe
from grpo_operator.plan import Plan, plan
from grpo_operator.policies.podstate import attempt_of, rank_of
from grpo_operator.policies.problems import from_events
from grpo_operator.progress import ProgressReader
from grpo_operator.reasons import Reason
from grpo_operator.settings import Settings
from grpo_operator.workqueue import Key, WorkQueue

CREATE_RETRY_SECONDS = 10.0
DELETE_CHECK_SECONDS = 10.0
"""A watch tells of a deletion long before, unless somebody took our label off the object."""
MAX_ROUNDS = 5
PASSING_SECONDS = 1.0
"""A state that a gang passes through on its way is written when it has lasted for so long."""

CONSULT_BASE_SECONDS, CONSULT_CAP_SECONDS = 1.0, 60.0
EVENTS_BASE_SECONDS, EVENTS_CAP_SECONDS, EVENTS_SPACING_SECONDS = 20.0, 300.0, 0.1

logger = logging.getLogger(__name__)


@dataclass
class StuckPod:
    """A pod that does not start, and what its Events said of it."""

    uid: str
    due: float
    told: dict[str, tuple[str, str]] = field(default_factory=dict)
    asked: int = 0


@dataclass
class Consulted:
    """What another controller says of a gang that waits, and when it is read again."""

    name: tuple[str, str]
    due: float
    found: Object | None = None
    asked: int = 0


class Reconciler:
    """Brings jobs to what their specs ask for, one call a job at a time."""

    def __init__(
        self,
        kube: Kube,
        cache: Cache,
        settings: Settings,
        reader: ProgressReader,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
        line: Callable[[Key], tuple[str, str] | None] = lambda key: None,
    ) -> None:
        self._line = line
        self._kube, self._cache, self._settings, self._reader, self._clock = kube, cache, settings, reader, clock
        self._monotonic = monotonic
        self._faults: dict[Key, CreateFault] = {}
        self._stuck: dict[Key, StuckPod] = {}
        self._consulted: dict[Key, Consulted] = {}
        self._going: dict[Key, dict[str, float]] = {}
        self._next_turn = 0.0
        self._left_behind = LeftBehind(kube, cache)
        self._events = events.EventWriter(kube, settings.identity)
        self._patched: dict[Key, float] = {}
        self._passing: dict[Key, tuple[str, float]] = {}
        """The state that is not on show yet, and since when."""
        self.queue = WorkQueue(self.reconcile, settings.workers)

    async def reconcile(self, key: Key) -> None:
        with metrics.RECONCILE_SECONDS.time(), metrics.count_errors():
            for _ in range(MAX_ROUNDS):
                if not await self._round(key):
                    return
            self.queue.add_after(key, 1.0)

    async def _round(self, key: Key) -> bool:
        """One plan carried out; returns whether to plan again at once."""
        now = self._clock()
        observed = observe(
            self._cache,
            key,
            head_report=self._reader.report(key),
            head_quiet=self._reader.quiet(key),
            create_fault=self._faults.get(key),
            default_image=self._settings.trainer_image,
            consulted=self._consulted[key].found if key in self._consulted else None,
            told=self._line(key),
            pod_events=self._stuck[key].told if key in self._stuck else None,
        )
        if observed is None:
            self._forget(key)
            pods = [item for (kind, _), item in self._cache.children(key).items() if kind == "Pod"]
            await apply.let_go(self._kube, pods, self._cache.capabilities, [])
            await self._collect(key)
            return False
        job = observed.job
        old = job.get("status") or {}
        made = plan(observed, now)
        if job["metadata"].get("deletionTimestamp") or is_managed_elsewhere(job):
            return False
        if statuses.blames(old, made.status) and await apply.refresh(self._kube, self._cache, observed.pods):
            return True
        written = False
        if made.status == old:
            self._passing.pop(key, None)
        elif made.decides or observed.create_fault or not made.create:
            due = self._write_at(key, old, made) - self._monotonic()
            if due > 0:
                self.queue.add_after(key, due)
            else:
                await apply.patch_status(self._kube, self._cache, job, made.status, now)
                # Times that count from it are in the next plan; the watch brings no news of it, only of deletions.
                written = not made.delete
                self._patched[key] = self._monotonic()
                self._passing.pop(key, None)
                metrics.count_restart(old, made.status)
                await self._events.write(job, events.told(old, made.status), now)
        surprised = await apply.delete_all(self._kube, self._cache, made)
        if made.delete:
            self.queue.add_after(key, DELETE_CHECK_SECONDS)
        going = self._going.setdefault(key, {})
        left = await apply.force_stuck(self._kube, observed, going, self._monotonic())
        if left is not None:
            self.queue.add_after(key, left)
        await self._collect(key)
        fault = await apply.create_all(self._kube, self._cache, job, made)
        if fault is not None:
            again = self._faults.get(key) != fault
            self._faults[key] = fault
            self.queue.add_after(key, CREATE_RETRY_SECONDS)
            return again or written
        self._faults.pop(key, None)
        if made.wake_after is not None:
            self.queue.add_after(key, made.wake_after + 0.1)
        self._watch_progress(key, made.status, observed.pods)
        news = await self._ask_why(key, made.stuck)
        news |= await self._consult(key, made.consult)
        return made.again or written or bool(made.create) or surprised or news

    async def _collect(self, key: Key) -> None:
        left = await self._left_behind.collect(key, self._monotonic())
        if left is not None:
            self.queue.add_after(key, left)

    def _write_at(self, key: Key, old: Object, made: Plan) -> float:
        """When a status may be written, by the monotonic clock.

        A gang's pods change many times in its first seconds; Kubernetes' own Job controller, too, sums up a second.
        """
        now = self._monotonic()
        if apply.without_progress(made.status) == apply.without_progress(old):
            return self._patched.get(key, -math.inf) + self._settings.progress_interval
        passing = made.status["reason"] in (Reason.WAITING_FOR_SCHEDULER, Reason.STARTING)
        made_pods = old.get("createdAttempt") != made.status.get("createdAttempt")
        # Many jobs at once wait in the queue for longer than their pods take to start.
        if made.decides or not passing or (made_pods and self.queue.depth <= self._settings.workers):
            return now
        state = made.status["state"]
        held, since = self._passing.get(key, ("", now))
        self._passing[key] = (state, since if held == state else now)
        return self._passing[key][1] + PASSING_SECONDS

    async def _ask_why(self, key: Key, pod: Object | None) -> bool:
        """Read the Events of a pod that does not start, then again and again, ever less often. True: there is news."""
        if pod is None:
            return self._stuck.pop(key, None) is not None
        uid, held, now = pod["metadata"]["uid"], self._stuck.get(key), self._monotonic()
        if held is None or held.uid != uid:
            held = self._stuck[key] = StuckPod(uid, self._turn(now, 0))
        if (left := held.due - now) > 0:
            self.queue.add_after(key, left)
            return False
        held.due = self._turn(now, min(EVENTS_CAP_SECONDS, EVENTS_BASE_SECONDS * 2**held.asked))
        held.asked += 1
        self.queue.add_after(key, held.due - now)
        try:
            fields = f"involvedObject.uid={uid},type=Warning"
            found = from_events(await self._kube.list("Event", pod["metadata"]["namespace"], fields=fields))
        except KubeError:
            return False  # not allowed, or not now: the state says what it can without them
        before, held.told = held.told, {uid: found} if found else {}
        return held.told != before

    async def _consult(self, key: Key, wanted: tuple[str, str] | None) -> bool:
        """Read the object that says why a gang waits, then again and again, ever less often. True: there is news."""
        if wanted is None:
            self._consulted.pop(key, None)
            return False
        held, now = self._consulted.get(key), self._monotonic()
        if held is None or held.name != wanted:
            held = self._consulted[key] = Consulted(wanted, now)
        if (left := held.due - now) <= 0:
            left = min(CONSULT_CAP_SECONDS, CONSULT_BASE_SECONDS * 2**held.asked)
            held.due, held.asked = now + left, held.asked + 1
            kind, name = wanted
            before, held.found = held.found, await self._kube.get(kind, key[0], name)
            self.queue.add_after(key, left)
            return (before or {}).get("status") != (held.found or {}).get("status")
        self.queue.add_after(key, left)
        return False

    def _turn(self, now: float, seconds: float) -> float:
        """When Events may be read, `seconds` from now at the soonest: the API server looks at all of a namespace."""
        turn = max(now, self._next_turn)
        self._next_turn = turn + EVENTS_SPACING_SECONDS
        return max(turn, now + seconds)

    def _watch_progress(self, key: Key, status: Object, pods: list[Object]) -> None:
        """Let the reader follow the head pod of the present attempt, and no other."""
        head = next((p for p in pods if rank_of(p) == 0 and attempt_of(p) == status.get("attempt")), None)
        live = status.get("state") not in names.TERMINAL_STATES
        told = (head or {}).get("status", {})
        address = told.get("podIP") if live else None
        job = self._cache.job(key)
        port = ((job or {}).get("spec", {}).get("metrics") or {}).get("port", names.TRAINER_METRICS_PORT)
        self._reader.follow(key, _host_port(address, port) if address and told.get("phase") == "Running" else None)

    def _forget(self, key: Key) -> None:
        self._faults.pop(key, None)
        self._patched.pop(key, None)
        self._passing.pop(key, None)
        self._stuck.pop(key, None)
        self._consulted.pop(key, None)
        self._going.pop(key, None)
        self._events.forget(key)
        self._reader.follow(key, None)


def _host_port(address: str, port: object) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
