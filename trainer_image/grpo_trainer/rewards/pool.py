"""The reward pool: processes that score responses, one call at a time each, with a time limit on every call."""

import logging
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from grpo_api.names import REWARD_DIR
from grpo_api.rewards.function import is_valid
from grpo_api.rewards.process import LOAD_TIMEOUT, RewardProcess, describe_end
from grpo_api.rewards.rows import RewardRow
from grpo_api.spec.reward import RewardSpec
from grpo_api.spec.reward_rules import rule_params
from grpo_trainer.errors import UserInputError

log = logging.getLogger(__name__)

CAUSES = ("exception", "timeout", "crash", "none", "nan")
"""Why a sample has no score."""
_MAX_FAILED_STARTS = 3


@dataclass
class RewardResult:
    """Scores of a batch, in input order."""

    rewards: list[float | None]
    """Weighted sum of the functions a sample; None where the sample is masked."""
    function_means: dict[str, float]
    """Mean unweighted score of each function over its samples that have one; functions without any are left out."""
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Failed samples by (function, cause); the causes are CAUSES."""
    function_scores: list[list[float | None]] = field(default_factory=list)
    """For each function its unweighted scores; None where it failed. Empty for an empty batch."""


@dataclass
class _Task:
    number: int
    function: int
    samples: list[int]
    """Positions of the rows in the batch; more than one for a function that takes the whole batch."""


@dataclass
class _Outcome:
    """What became of a task: scores, or the cause of failure and its text."""

    scores: list[float | None] | None = None
    cause: str = ""
    text: str = ""


class _Worker(RewardProcess):
    """A process with the task that it is on, and when that ends at the latest."""

    def __init__(self, config: dict[str, Any]) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        command = [sys.executable, "-m", "grpo_trainer.rewards.worker"]
        self.task: _Task | None = None
        self.deadline = time.monotonic() + LOAD_TIMEOUT
        super().__init__(command, config, {"PYTHONPATH": path})


class RewardPool:
    """Scores responses with the functions of a `reward` section.

    `source_dir` holds the inline sources as `<function name>.py`; where a file is missing, the spec's own text serves.
    """

    def __init__(self, spec: RewardSpec, source_dir: str = REWARD_DIR) -> None:
        self._spec = spec
        self._names = [function.name for function in spec.functions]
        self._config = {
            "memory_limit": max(_memory() // 4, 2**30),
            "functions": [_function_config(function, Path(source_dir)) for function in spec.functions],
        }
        self._workers: list[_Worker] = []
        self._failed_starts = 0
        self._task_count = 0

    def check(self, row: RewardRow) -> None:
        """Import every function and call it once on a sample row, whose completion should look like a good response.

        Raises UserInputError with file, line and error text where one cannot be imported, has no accepted form, raises,
        hangs or crashes. None and NaN are let pass: a function may answer so for some rows.
        """
        for name, loaded in zip(self._names, self._forms(), strict=True):
            if loaded["error"] is not None:
                reason = {"SyntaxError": "RewardSyntaxError", "SignatureError": "RewardSignatureError"}
                raise UserInputError(
                    reason.get(loaded["kind"], "RewardImportError"), f"reward function {name}: {loaded['error']}"
                )
        tasks = [self._task(index, [0]) for index in range(len(self._names))]
        for task, outcome in self._run(tasks, [row]):
            if outcome.scores is None:
                raise UserInputError(
                    "RewardTimeout" if outcome.cause == "timeout" else "RewardError",
                    f"reward function {self._names[task.function]} failed on a sample call (completion "
                    f"{row.completion[:100]!r}, ground truth {str(row.ground_truth)[:100]!r}): {outcome.text}",
                )

    def score(self, rows: Sequence[RewardRow]) -> RewardResult:
        """Score a batch. A sample that fails costs itself alone: it is masked, or 0 under `onError: Zero`."""
        rows = list(rows)
        if not rows:
            return RewardResult([], {})
        everything = list(range(len(rows)))
        tasks: list[_Task] = []
        for index, loaded in enumerate(self._forms()):
            cuts = [everything] if loaded["whole_batch"] else [[sample] for sample in everything]
            tasks += [self._task(index, samples) for samples in cuts]
        outcomes = self._run(tasks, rows)
        for task, outcome in list(outcomes):
            if outcome.scores is None and len(task.samples) > 1:
                log.warning(
                    "reward function %s failed on the whole batch (%s: %s); calling it a sample at a time",
                    self._names[task.function],
                    outcome.cause,
                    outcome.text,
                )
                outcomes.remove((task, outcome))
                outcomes += self._run([self._task(task.function, [sample]) for sample in task.samples], rows)
        return self._combine(outcomes, len(rows))

    def close(self) -> None:
        """End every worker."""
        for worker in self._workers:
            worker.kill()
        self._workers.clear()

    def _combine(self, outcomes: list[tuple[_Task, _Outcome]], count: int) -> RewardResult:
        scores: list[list[float | None]] = [[None] * count for _ in self._names]
        errors: Counter[tuple[str, str]] = Counter()
        examples: dict[tuple[str, str], str] = {}
        for task, outcome in outcomes:
            name = self._names[task.function]
            for sample, score in zip(task.samples, outcome.scores or [None] * len(task.samples), strict=True):
                if is_valid(score):
                    scores[task.function][sample] = score
                    continue
                cause = outcome.cause or ("none" if score is None else "nan")
                errors[name, cause] += 1
                examples.setdefault((name, cause), outcome.text or f"returned {score}")
        for (name, cause), failed in errors.items():
            text = examples[name, cause]
            log.warning(
                "reward function %s: %d of %d samples failed (%s), such as: %s", name, failed, count, cause, text
            )
        weights = [function.weight for function in self._spec.functions]
        failed_reward = 0.0 if self._spec.on_error == "Zero" else None
        rewards: list[float | None] = []
        for sample in range(count):
            parts = [column[sample] for column in scores]
            valid = [part for part in parts if part is not None]
            whole = len(valid) == len(parts)
            rewards.append(sum(w * part for w, part in zip(weights, valid, strict=True)) if whole else failed_reward)
        means = {}
        for name, column in zip(self._names, scores, strict=True):
            if valid := [score for score in column if score is not None]:
                means[name] = sum(valid) / len(valid)
        return RewardResult(rewards, means, errors, scores)

    def _task(self, function: int, samples: list[int]) -> _Task:
        self._task_count += 1
        return _Task(self._task_count, function, samples)

    def _forms(self) -> list[dict[str, Any]]:
        """What the workers found when they imported the functions."""
        while True:
            self._fill()
            for worker in self._workers:
                if worker.loaded is not None:
                    return worker.loaded
            self._wait()

    def _run(self, tasks: Sequence[_Task], rows: list[RewardRow]) -> list[tuple[_Task, _Outcome]]:
        """Run the tasks on the workers; each comes back with its outcome, in the order of ending."""
        waiting, done = deque(tasks), list[tuple[_Task, _Outcome]]()
        while len(done) < len(tasks):
            self._fill()
            for worker in self._workers:
                if waiting and worker.loaded is not None and worker.task is None:
                    task = waiting.popleft()
                    worker.task, worker.deadline = task, time.monotonic() + self._spec.timeout_seconds
                    try:
                        worker.connection.send((task.number, task.function, [rows[sample] for sample in task.samples]))
                    except OSError:  # it died idle; the task is not to blame
                        worker.task = None
                        waiting.appendleft(task)
                        self._drop(worker)
                        break
            done += self._wait()
        return done

    def _wait(self) -> list[tuple[_Task, _Outcome]]:
        """Wait for a message, a death or a deadline; returns the tasks that ended."""
        now = time.monotonic()
        busy = [worker for worker in self._workers if worker.loaded is None or worker.task is not None]
        if not busy:
            return []
        heard = wait([worker.connection for worker in busy], max(0.0, min(worker.deadline for worker in busy) - now))
        ended = []
        for worker in busy:
            if worker.connection in heard:
                ended += self._hear(worker)
            elif worker.deadline <= time.monotonic():
                ended += self._overdue(worker)
        return ended

    def _hear(self, worker: _Worker) -> list[tuple[_Task, _Outcome]]:
        task = worker.task
        try:
            message = worker.receive()
            if worker.loaded is None:
                worker.loaded = message["loaded"]
                self._failed_starts = 0
                return []
            if task is None or message["task"] != task.number:
                raise ValueError("an answer to no question")
            scores = message.get("scores")
            outcome = _Outcome(scores) if "error" not in message else _Outcome(None, "exception", message["error"])
        # EOFError, OSError: it died. ValueError, KeyError: the user's code wrote into the socket.
        except (EOFError, OSError, ValueError, KeyError):
            end = describe_end(self._drop(worker))
            if task is None:
                self._start_failed(f"{end} while it imported the functions")
                return []
            return [(task, _Outcome(None, "crash", f"{end} during the call"))]
        worker.task = None
        return [(task, outcome)]

    def _overdue(self, worker: _Worker) -> list[tuple[_Task, _Outcome]]:
        task = worker.task
        text = worker.overdue(self._spec.timeout_seconds) if task else ""
        self._drop(worker)
        if task is None:
            self._start_failed(f"importing the functions took more than {LOAD_TIMEOUT:g} s")
            return []
        return [(task, _Outcome(None, "timeout", text))]

    def _fill(self) -> None:
        while len(self._workers) < self._spec.workers:
            self._workers.append(_Worker(self._config))

    def _drop(self, worker: _Worker) -> int:
        self._workers.remove(worker)
        return worker.kill()

    def _start_failed(self, text: str) -> None:
        self._failed_starts += 1
        if self._failed_starts >= _MAX_FAILED_STARTS:
            raise UserInputError(
                "RewardImportError",
                f"reward functions {', '.join(self._names)}: {text}, {self._failed_starts} times in a row",
            )


def _function_config(function: Any, source_dir: Path) -> dict[str, Any]:
    if function.builtin:
        params = rule_params(function.builtin.rule, function.builtin.params).model_dump()
        return {"name": function.name, "rule": function.builtin.rule, "params": params}
    file = source_dir / f"{function.name}.py"
    source = file.read_text(encoding="utf-8") if file.is_file() else function.python.source
    return {"name": function.name, "source": source, "function": function.python.function}


def _memory() -> int:
    """Bytes of memory that this container may use."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return physical if text == "max" else min(physical, int(text))
