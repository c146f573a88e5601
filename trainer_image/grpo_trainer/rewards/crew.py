"""The reward pool's processes: tasks in, outcomes out, whatever the tasks do to the processes."""

import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from grpo_api.names import REWARD_WORKER
from grpo_api.rewards.process import (
    LOAD_TIMEOUT,
    WHERE_TIMEOUT,
    RewardProcess,
    describe_end,
    describe_overdue,
)
from grpo_api.rewards.rows import RewardRow
from grpo_trainer.errors import UserInputError

_MAX_FAILED_STARTS = 3


@dataclass
class Task:
    """One call."""

    function: int
    """Position in the spec's list."""
    samples: list[int]
    """Positions of the rows in the batch."""
    number: int = 0


@dataclass
class Outcome:
    """What became of a task: scores, or the cause of failure and its text."""

    scores: list[float | None] | None = None
    cause: str = ""
    text: str = ""
    seconds: float = 0.0
    """That the call took."""
    divisible: bool = True
    """Where it failed, some of its samples alone may not."""


@dataclass
class Lane:
    """Processes that run the same functions."""

    functions: list[int]
    """Their positions in the spec's list."""
    size: int
    config: dict[str, Any]
    """What each process is told to load, in that order."""
    environment: dict[str, str] = field(default_factory=dict)
    workers: list["_Worker"] = field(default_factory=list)
    loaded: list[dict[str, Any]] | None = None
    """What the first process found when it loaded them."""
    failed_starts: int = 0


class _Worker(RewardProcess):
    """A process with the task that it is on, and when that ends at the latest."""

    def __init__(self, lane: Lane) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        command = [sys.executable, "-m", REWARD_WORKER]
        self.lane = lane
        self.task: Task | None = None
        self.began = time.monotonic()
        self.deadline = self.began + LOAD_TIMEOUT
        self.overdue_task = False
        super().__init__(command, lane.config, {"PYTHONPATH": path} | lane.environment)


class Crew:
    """All lanes, served by one loop."""

    def __init__(self, lanes: list[Lane], timeout: float) -> None:
        self.lanes = lanes
        self._timeout = timeout
        self._lane_of = {function: lane for lane in lanes for function in lane.functions}
        self._count = 0

    def loaded(self) -> dict[int, dict[str, Any]]:
        """What the processes found when they loaded the functions, by the functions' positions.

        Raises UserInputError where a lane's process ends, or takes too long, time and again.
        """
        while any(lane.loaded is None for lane in self.lanes):
            self._fill()
            self._wait()
        return {
            function: found
            for lane in self.lanes
            for function, found in zip(lane.functions, lane.loaded or [], strict=True)
        }

    def run(self, tasks: Sequence[Task], rows: list[RewardRow]) -> list[tuple[Task, Outcome]]:
        """Run the tasks; each comes back with its outcome, in the order of ending."""
        done: list[tuple[Task, Outcome]] = []
        waiting: dict[int, deque[Task]] = {id(lane): deque() for lane in self.lanes}
        for task in tasks:
            waiting[id(self._lane_of[task.function])].append(task)
        while len(done) < len(tasks):
            self._fill()
            for worker in self._all():
                if worker.loaded is not None and worker.task is None and waiting[id(worker.lane)]:
                    self._give(worker, waiting[id(worker.lane)], rows)
            done += self._wait()
        return done

    def close(self) -> None:
        """End every process."""
        for worker in self._all():
            self._drop(worker)

    def _all(self) -> list[_Worker]:
        return [worker for lane in self.lanes for worker in lane.workers]

    def _give(self, worker: _Worker, waiting: deque[Task], rows: list[RewardRow]) -> None:
        task = waiting[0]
        self._count += 1
        task.number = self._count
        position = worker.lane.functions.index(task.function)
        try:
            worker.connection.send((task.number, position, [rows[sample] for sample in task.samples]))
        except OSError:  # it died idle; the task is not to blame
            self._drop(worker)
            return
        waiting.popleft()
        worker.task, worker.began = task, time.monotonic()
        worker.deadline = worker.began + self._timeout

    def _wait(self) -> list[tuple[Task, Outcome]]:
        """Wait for a message, a death or a deadline; returns the tasks that ended."""
        busy = [worker for worker in self._all() if worker.loaded is None or worker.task is not None]
        if not busy:
            return []
        first = min(worker.deadline for worker in busy) - time.monotonic()
        places = [place for worker in busy for place in (worker.connection, worker.end)]
        heard = set(wait(places, max(0.0, first)))
        ended = []
        for worker in busy:
            if worker.connection in heard or worker.end in heard:
                ended += self._hear(worker)
            elif worker.deadline <= time.monotonic():
                ended += self._overdue(worker)
        return ended

    def _hear(self, worker: _Worker) -> list[tuple[Task, Outcome]]:
        task = worker.task
        try:
            # It ended where its end alone was heard. What it sent before counts all the same.
            message = worker.receive() if worker.connection.poll() else _no_message()
            if worker.loaded is None:
                worker.loaded = worker.lane.loaded = message["loaded"]
                worker.lane.failed_starts = 0
                return []
            if worker.overdue_task:
                return self._end_overdue(worker, str(message.get("where") or ""))
            if task is None or message["task"] != task.number:
                raise ValueError("an answer to no question")
            seconds = message["seconds"]
            if "error" in message:
                outcome = Outcome(None, "exception", message["error"], seconds, not message.get("indivisible"))
            else:
                outcome = Outcome(message["scores"], seconds=seconds)
        # EOFError, OSError: it died. ValueError, KeyError: the user's code wrote into the socket.
        except (EOFError, OSError, ValueError, KeyError):
            end = describe_end(self._drop(worker))
            if task is None:
                self._start_failed(worker.lane, f"{end} while it imported the functions")
                return []
            seconds = time.monotonic() - worker.began
            return [(task, Outcome(None, "crash", f"{end} during the call", seconds))]
        worker.task = None
        return [(task, outcome)]

    def _overdue(self, worker: _Worker) -> list[tuple[Task, Outcome]]:
        if worker.task is None:
            self._drop(worker)
            self._start_failed(worker.lane, f"importing the functions took more than {LOAD_TIMEOUT:g} s")
            return []
        if worker.overdue_task:
            return self._end_overdue(worker, "")
        # It has a moment to say which line it is on, in which the others go on.
        worker.overdue_task = True
        worker.deadline = time.monotonic() + WHERE_TIMEOUT
        worker.ask_where()
        return []

    def _end_overdue(self, worker: _Worker, where: str) -> list[tuple[Task, Outcome]]:
        assert worker.task is not None
        self._drop(worker)
        seconds = time.monotonic() - worker.began
        return [(worker.task, Outcome(None, "timeout", describe_overdue(self._timeout, where), seconds))]

    def _fill(self) -> None:
        for lane in self.lanes:
            while len(lane.workers) < lane.size:
                lane.workers.append(_Worker(lane))

    def _drop(self, worker: _Worker) -> int:
        worker.lane.workers.remove(worker)
        return worker.kill()

    def _start_failed(self, lane: Lane, text: str) -> None:
        lane.failed_starts += 1
        if lane.failed_starts >= _MAX_FAILED_STARTS:
            names = ", ".join(item["name"] for item in lane.config["functions"])
            raise UserInputError(
                "RewardImportError", f"reward functions {names}: {text}, {lane.failed_starts} times in a row"
            )


def _no_message() -> dict[str, Any]:
    raise EOFError
