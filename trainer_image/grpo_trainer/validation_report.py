"""What a validation tells the log, under verl's names, and /metrics."""

from collections import Counter
from dataclasses import dataclass, field

from grpo_api import metric_names as names
from grpo_trainer.metrics import TrainerMetrics, short

REWARD = "reward"
"""The variable that holds the weighted sum of the reward functions."""


@dataclass(frozen=True)
class ValidationReport:
    """Numbers of one validation."""

    step: int
    """Steps done before it."""
    seconds: float
    prompts: int
    reward_mean: float | None
    """Mean over the prompts of their responses' mean reward; None where no response has one."""
    values: dict[str, dict[str, dict[str, float]]]
    """By data source, variable (`reward` and, where there are several, the reward functions) and statistic."""
    response_length: float
    """Mean tokens a response."""
    truncated: float
    """Share of responses cut at `data.maxResponseLength`, 0 to 1."""
    overlong_prompts: int = 0
    """Validation rows whose prompt is longer than maxPromptLength."""
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Failed samples by (function, cause); they are in no statistic."""


def log_lines(report: ValidationReport) -> list[str]:
    """`validation step=20 prompts=100 seconds=8.1 val-core/...=0.42`, and a line for each data source with the rest.

    The names are verl's (`_val_metrics_update` of verl 0.9): core are the mean and the best of all n rewards, or of the
    function `acc` where there is one among several.
    """
    core, rest = {}, {}
    for source, by_variable in report.values.items():
        name = "_".join(source.split())
        main = "acc" if "acc" in by_variable else REWARD
        for variable, values in by_variable.items():
            last = max((int(key.split("@")[1].split("/")[0]) for key in values), default=0)
            for statistic, value in values.items():
                is_core = (
                    variable == main
                    and statistic.startswith(("mean", "best", "pass"))
                    and statistic.split("/")[0].endswith(f"@{last}")
                )
                if is_core:
                    core[f"val-core/{name}/{variable}/{statistic}"] = value
                else:
                    rest.setdefault(name, {})[f"val-aux/{name}/{variable}/{statistic}"] = value
    head = {
        "prompts": report.prompts,
        "seconds": report.seconds,
        "response_len": report.response_length,
        "truncated": report.truncated,
    }
    head |= {f"reward_errors/{name}/{cause}": count for (name, cause), count in report.errors.items()}
    lines = [head | core, *rest.values()]
    return [
        " ".join([f"validation step={report.step}", *(f"{key}={short(value)}" for key, value in line.items())])
        for line in lines
    ]


def record(report: ValidationReport, metrics: TrainerMetrics) -> None:
    """Takes a validation over into /metrics."""
    metrics.set(names.VAL_STEP, report.step)
    metrics.set(names.OVERLONG, report.overlong_prompts, data="val")
    metrics.set(names.PHASE_DURATION, report.seconds, phase="validation")
    metrics.add(names.PHASE_SECONDS, report.seconds, phase="validation")
    for (function, cause), count in report.errors.items():
        metrics.add(names.REWARD_ERRORS, count, function=function, cause=cause)
    for source, by_variable in report.values.items():
        for variable, values in by_variable.items():
            for statistic, value in values.items():
                if statistic.startswith(("mean@", "pass@")) or statistic.endswith("/mean"):
                    metrics.set(names.VAL_SCORE, value, data_source=source, variable=variable, statistic=statistic)
