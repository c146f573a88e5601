"""The reward pool: scores a batch with the functions of a `reward` section, in processes that may hang or die."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_api.names import REWARD_DIR, REWARD_TOKEN_FILE, REWARD_TOKENS_DIR
from grpo_api.quantity import amount
from grpo_api.reward_items import reward_item
from grpo_api.rewards.rows import RewardRow
from grpo_api.spec.reward import RewardFunction, RewardSpec
from grpo_trainer.errors import UserInputError
from grpo_trainer.rewards.crew import Crew, Lane, Task
from grpo_trainer.rewards.result import RewardResult, combine

log = logging.getLogger(__name__)


class RewardPool:
    """Scores responses with the functions of a `reward` section.

    `source_dir` holds the inline sources as `<function name>.py`; where a file is missing, the spec's own text serves.
    `token_dir` holds a directory for each function with a token.
    """

    def __init__(self, spec: RewardSpec, source_dir: str = REWARD_DIR, token_dir: str = REWARD_TOKENS_DIR) -> None:
        self._spec = spec
        self._names = [function.name for function in spec.functions]
        self._crew = Crew(_lanes(spec, Path(source_dir), Path(token_dir)), spec.timeout_seconds)

    def check(self, row: RewardRow) -> None:
        """Import every function and call it once on a sample row, whose completion should look like a good response.

        Raises UserInputError with file, line and error text where one cannot be imported, has no accepted form, raises,
        hangs or crashes. None and NaN are let pass: a function may answer so for some rows.
        """
        for index, loaded in sorted(self._crew.loaded().items()):
            if loaded["error"] is not None:
                reason = {"SyntaxError": "RewardSyntaxError", "SignatureError": "RewardSignatureError"}
                raise UserInputError(
                    reason.get(loaded["kind"], "RewardImportError"),
                    f"reward function {self._names[index]}: {loaded['error']}",
                )
        for task, outcome in self._crew.run([Task(index, [0]) for index in range(len(self._names))], [row]):
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
        tasks: list[Task] = []
        for index, loaded in self._crew.loaded().items():
            size = loaded["batch_size"] or len(rows)
            cuts = (range(start, min(start + size, len(rows))) for start in range(0, len(rows), size))
            tasks += [Task(index, list(cut)) for cut in cuts]
        outcomes = []
        again: list[Task] = []
        for task, outcome in self._crew.run(tasks, rows):
            if outcome.scores is None and outcome.divisible and len(task.samples) > 1:
                log.warning(
                    "reward function %s failed on %d samples at once (%s: %s); calling it a sample at a time",
                    self._names[task.function],
                    len(task.samples),
                    outcome.cause,
                    outcome.text,
                )
                again += [Task(task.function, [sample]) for sample in task.samples]
            else:
                outcomes.append((task, outcome))
        return combine(self._spec, outcomes + self._crew.run(again, rows), len(rows))

    def close(self) -> None:
        """End every process."""
        self._crew.close()


def _lanes(spec: RewardSpec, source_dir: Path, token_dir: Path) -> list[Lane]:
    """`reward.workers` processes for rules and Python; each server and each classifier has processes of its own."""
    memory = int(amount(spec.worker_memory)) if spec.worker_memory is not None else max(_memory() // 4, 2**30)
    shared: list[int] = []
    lanes: list[Lane] = []
    items = [_item(function, spec.timeout_seconds, source_dir, token_dir) for function in spec.functions]
    for index, function in enumerate(spec.functions):
        config: dict[str, Any] = {"memory_limit": memory, "functions": [items[index]]}
        if function.http is not None:
            lanes.append(Lane([index], function.http.concurrency, config))
        elif function.classifier is not None:
            # Its size is that of the model, which nobody but the user chose.
            config["memory_limit"] = None
            lanes.append(Lane([index], 1, config, {"OMP_NUM_THREADS": str(function.classifier.threads)}))
        else:
            shared.append(index)
    if shared:
        config = {"memory_limit": memory, "functions": [items[index] for index in shared]}
        lanes.append(Lane(shared, spec.workers, config))
    return lanes


def _item(function: RewardFunction, timeout: float, source_dir: Path, token_dir: Path) -> dict[str, Any]:
    item = reward_item(function, timeout, str(token_dir / function.name / REWARD_TOKEN_FILE))
    file = source_dir / f"{function.name}.py"
    if function.python and file.is_file():
        item["source"] = file.read_text(encoding="utf-8")
    return item


def _memory() -> int:
    """Bytes of memory that this container may use."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return physical if text == "max" else min(physical, int(text))
