"""What is left of a followed job: the step table as CSV, the reward curve as a picture."""

import csv
from itertools import pairwise
from pathlib import Path

from grpoctl.errors import CliError
from grpoctl.steps import StepTable

RUNNING_MEAN_STEPS = 5
PICTURES = frozenset({".png", ".svg", ".pdf"})


def check_picture(path: Path) -> None:
    """Refuse a name that no picture can be written to, before hours of training."""
    if path.suffix.lower() not in PICTURES:
        raise CliError(f"--curve {path}: the name must end in one of {', '.join(sorted(PICTURES))}", 2)


def write_csv(path: Path, steps: StepTable) -> None:
    """One line a step; the columns are the log line's keys, in the order in which they first appear."""
    columns = list(dict.fromkeys(key for row in steps for key in row.values))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "attempt", *columns])
        for row in steps:
            writer.writerow([row.step, row.attempt, *(row.values.get(key, "") for key in columns)])


def running_mean(values: list[float], width: int = RUNNING_MEAN_STEPS) -> list[float]:
    """Mean of each value and the `width - 1` before it; fewer at the beginning."""
    windows = [values[max(0, end - width) : end] for end in range(1, len(values) + 1)]
    return [sum(window) / len(window) for window in windows]


def write_curve(path: Path, steps: StepTable, title: str) -> None:
    """Mean reward of every step, its running mean, and a mark where a restarted gang went on."""
    import matplotlib  # takes a second to import, and most commands draw nothing

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    rows = [row for row in steps if row.reward is not None]
    numbers, rewards = [row.step for row in rows], [row.reward for row in rows if row.reward is not None]
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(numbers, rewards, "o-", color="#9db4d0", markersize=4, linewidth=1, label="mean reward of the step")
    mean_label = f"mean of the last {RUNNING_MEAN_STEPS} steps"
    axes.plot(numbers, running_mean(rewards), color="#1f4e8c", linewidth=2, label=mean_label)
    resumed = [row.step for before, row in pairwise(rows) if row.attempt != before.attempt]
    for index, step in enumerate(resumed):
        axes.axvline(step, color="#b04a3a", linestyle=":", label="restarted gang goes on" if index == 0 else None)
    axes.set(title=title, xlabel="step", ylabel="mean reward")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e5e5e5")
    axes.legend(frameon=False, loc="best")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
