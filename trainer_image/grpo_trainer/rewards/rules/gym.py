"""reasoning-gym's own scorers."""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

from grpo_api.rewards.rows import RewardRow
from grpo_trainer.rewards.rules.answers import truth_text


def reasoning_gym(row: RewardRow, *, task: str | None) -> float:
    """What the task's `score_answer` gives the response, 0 to 1. Raises ValueError where no task is named or known."""
    name = task or row.extra_info.get("source_dataset") or row.data_source.removeprefix("reasoning_gym/")
    entry = {"question": row.prompt, "answer": truth_text(row), "metadata": row.extra_info}
    return float(_scorer(name)(row.completion.strip(), entry))


@cache
def _scorer(task: str) -> Callable[[str, dict[str, Any]], float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        from reasoning_gym.factory import DATASETS, get_score_answer_fn
    if task not in DATASETS:
        raise ValueError(f"reasoning-gym has no task {task!r}: set builtin.params.task to one of its names")
    scorer: Callable[[str, dict[str, Any]], float] = get_score_answer_fn(task)
    return scorer
