"""From scores of single functions to the reward of each sample."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev

from grpo_api.rewards.function import is_valid
from grpo_api.spec.reward import ClipSpec, RewardSpec
from grpo_trainer.rewards.crew import Outcome, Task

log = logging.getLogger(__name__)

CAUSES = ("exception", "timeout", "crash", "none", "nan")
"""Why a sample has no score."""


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
    """For each function its unweighted scores, clipped; None where it has none. Empty for an empty batch."""
    function_seconds: Counter[str] = field(default_factory=Counter)
    """Seconds that the calls of each function took, all processes together."""


def combine(spec: RewardSpec, outcomes: Sequence[tuple[Task, Outcome]], count: int) -> RewardResult:
    """The rewards of `count` samples, each of which every function has an outcome for."""
    names = [function.name for function in spec.functions]
    scores: list[list[float | None]] = [[None] * count for _ in names]
    failed = [False] * count
    errors: Counter[tuple[str, str]] = Counter()
    seconds = Counter(dict.fromkeys(names, 0.0))
    examples: dict[tuple[str, str], str] = {}
    for task, outcome in outcomes:
        function = spec.functions[task.function]
        seconds[function.name] += outcome.seconds
        for sample, score in zip(task.samples, outcome.scores or [None] * len(task.samples), strict=True):
            if score is not None and is_valid(score):
                scores[task.function][sample] = _clipped(score, function.clip)
                continue
            cause = outcome.cause or ("none" if score is None else "nan")
            failed[sample] |= cause != "none" or spec.on_none == "Error"
            errors[function.name, cause] += 1
            examples.setdefault((function.name, cause), outcome.text or f"returned {score}")
    for (name, cause), number in errors.items():
        text = examples[name, cause]
        log.warning("reward function %s: %d of %d samples failed (%s), such as: %s", name, number, count, cause, text)
    weights = [function.weight for function in spec.functions]
    rewards: list[float | None] = []
    for sample in range(count):
        parts = [w * column[sample] for w, column in zip(weights, scores, strict=True) if column[sample] is not None]
        without = 0.0 if spec.on_error == "Zero" else None
        rewards.append(without if failed[sample] or not parts else sum(parts))
    means = {name: fmean(valid) for name, valid in zip(names, map(_valid, scores), strict=True) if valid}
    return RewardResult(rewards, means, errors, scores, seconds)


def standard_deviations(names: Sequence[str], function_scores: Sequence[list[float | None]]) -> dict[str, float]:
    """Population standard deviation of each function's scores; functions without any are left out."""
    return {name: pstdev(valid) for name, valid in zip(names, map(_valid, function_scores), strict=True) if valid}


def _valid(scores: list[float | None]) -> list[float]:
    return [score for score in scores if score is not None]


def _clipped(score: float, clip: ClipSpec | None) -> float:
    if clip is None:
        return score
    low, high = clip.min, clip.max
    score = score if low is None else max(score, low)
    return score if high is None else min(score, high)
