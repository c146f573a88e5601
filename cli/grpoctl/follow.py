"""Follow a job to its end: take in the source's updates, show them, and say how it ended."""

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from grpo_api.names import TERMINAL_STATES, State
from grpoctl.cluster import Object
from grpoctl.source import JobGone, JobSeen, JobSource, LogLine, Trouble, Update
from grpoctl.steps import ETA_SECONDS, REWARD, TOKENS_PER_SECOND, StepRow, StepTable, parse_line

TICK_SECONDS = 0.5
LAST_LOG_SECONDS = 5.0
"""After the job's end its log gets this long to arrive in full."""


class Outcome(IntEnum):
    """How following ended; the values are the exit codes."""

    SUCCEEDED = 0
    FAILED = 1
    GONE = 2
    TIMED_OUT = 124
    INTERRUPTED = 130


@dataclass
class Followed:
    """All that is known of a followed job."""

    name: str
    status: Object = field(default_factory=dict)
    steps: StepTable = field(default_factory=StepTable)
    troubles: dict[str, str] = field(default_factory=dict)
    """What cannot be read at the moment, and why."""
    step_seen: float = 0.0
    """When the last new step came, by the follower's clock."""

    @property
    def state(self) -> str:
        return str(self.status.get("state") or State.PENDING)

    @property
    def attempt(self) -> int:
        return int(self.status.get("attempt") or 0)

    @property
    def cause(self) -> str:
        """Reason and message of the state, as one text."""
        reason, message = self.status.get("reason") or "", self.status.get("message") or ""
        return f"{reason}: {message}" if reason and message else reason or message

    @property
    def progress(self) -> tuple[int, int]:
        """(steps done, steps of the run); 0 where unknown."""
        held = self.status.get("progress") or {}
        last = self.steps.last
        done, total = int(held.get("step") or 0), int(held.get("totalSteps") or 0)
        if last is not None:
            done, total = last.step, last.total_steps or total
        return done, total or int((self.status.get("batchPlan") or {}).get("totalSteps") or 0)

    @property
    def has_ended(self) -> bool:
        return self.state in TERMINAL_STATES

    def eta_seconds(self, now: float) -> float | None:
        """The last step's estimate, less the time since."""
        last = self.steps.last
        if last is None or ETA_SECONDS not in last.values:
            return None
        return max(0.0, last.values[ETA_SECONDS] - (now - self.step_seen))

    def take(self, update: Update, now: float) -> StepRow | None:
        """Take an update in; returns the step that it made known, if any."""
        row: StepRow | None = None
        if isinstance(update, JobSeen):
            self.status = update.job.get("status") or {}
            row = self._row_of_status() if "log" in self.troubles else None
        elif isinstance(update, LogLine):
            row = parse_line(update.text, update.attempt)
        elif isinstance(update, Trouble):
            if update.message is None:
                self.troubles.pop(update.what, None)
            else:
                self.troubles[update.what] = update.message
                row = self._row_of_status() if update.what == "log" else None
        if row is None or not self.steps.add(row):
            return None
        self.step_seen = now
        return row

    def _row_of_status(self) -> StepRow | None:
        """The status' own last step, for users who may not read pod logs."""
        held = self.status.get("progress") or {}
        if not held.get("step"):
            return None
        keys = {REWARD: "rewardMean", TOKENS_PER_SECOND: "tokensPerSecond", ETA_SECONDS: "etaSeconds"}
        values = {key: float(held[field]) for key, field in keys.items() if held.get(field) is not None}
        return StepRow(int(held["step"]), int(held.get("totalSteps") or 0), self.attempt, values)


class View(Protocol):
    """Shows a followed job."""

    def show(self, followed: Followed, row: StepRow | None, now: float) -> None:
        """Something may have changed; `row` is a step seen for the first time."""

    def close(self, followed: Followed, now: float) -> None:
        """Nothing more comes."""


def follow(
    source: JobSource,
    view: View,
    name: str,
    timeout: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Outcome, Followed]:
    """Follow until the job ends, is gone, or `timeout` seconds pass."""
    followed = Followed(name)
    updates: queue.Queue[Update] = queue.Queue()
    deadline = None if timeout is None else clock() + timeout
    source.start(updates.put)
    try:
        outcome = _until_end(followed, updates, view, deadline, clock)
        if outcome in (Outcome.SUCCEEDED, Outcome.FAILED):
            source.finish(LAST_LOG_SECONDS)
            while not updates.empty():
                _take(followed, updates.get(), view, clock())
    except KeyboardInterrupt:
        outcome = Outcome.INTERRUPTED
    view.close(followed, clock())
    return outcome, followed


def _until_end(
    followed: Followed, updates: "queue.Queue[Update]", view: View, deadline: float | None, clock: Callable[[], float]
) -> Outcome:
    while True:
        try:
            update = updates.get(timeout=TICK_SECONDS)
        except queue.Empty:
            view.show(followed, None, clock())
        else:
            if isinstance(update, JobGone):
                return Outcome.GONE
            _take(followed, update, view, clock())
        if followed.has_ended:
            return Outcome.SUCCEEDED if followed.state == State.SUCCEEDED else Outcome.FAILED
        if deadline is not None and clock() > deadline:
            return Outcome.TIMED_OUT


def _take(followed: Followed, update: Update, view: View, now: float) -> None:
    row = followed.take(update, now)
    if row is not None or not isinstance(update, LogLine):
        view.show(followed, row, now)
