"""The trainer's log lines, and the table of steps that they make."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

REWARD = "reward/mean"
TOKENS_PER_SECOND = "tokens_per_s"
STEP_SECONDS = "step_s"
ETA_SECONDS = "eta_s"

_LINE = re.compile(r"(?:^|\s)step=(\d+)/(\d+)((?:\s+\S+=\S+)+)")


@dataclass(frozen=True)
class StepRow:
    """One finished step. `values` keeps the log line's keys, such as `reward/mean` and `tokens_per_s`."""

    step: int
    total_steps: int
    attempt: int = 0
    values: dict[str, float] = field(default_factory=dict)

    @property
    def reward(self) -> float | None:
        return self.values.get(REWARD)


def parse_line(line: str, attempt: int = 0) -> StepRow | None:
    """The step that a log line tells of, or None. Values that are no numbers are left out."""
    found = _LINE.search(line)
    if found is None:
        return None
    values = {}
    for item in found[3].split():
        key, _, text = item.partition("=")
        try:
            values[key] = float(text)
        except ValueError:
            continue
    return StepRow(int(found[1]), int(found[2]), attempt, values)


class StepTable:
    """Steps by number. A restarted gang repeats the steps after its checkpoint; the later numbers are the true ones."""

    def __init__(self) -> None:
        self._rows: dict[int, StepRow] = {}

    def __iter__(self) -> Iterator[StepRow]:
        return iter(sorted(self._rows.values(), key=lambda row: row.step))

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def last(self) -> StepRow | None:
        return self._rows[max(self._rows)] if self._rows else None

    def add(self, row: StepRow) -> bool:
        """Take a row over; False where the step is known from this attempt or a later one."""
        held = self._rows.get(row.step)
        if held is not None and held.attempt >= row.attempt:
            return False
        undone = [step for step, old in self._rows.items() if step >= row.step and old.attempt < row.attempt]
        for step in undone:
            del self._rows[step]
        self._rows[row.step] = row
        return True

    def recent_rewards(self, count: int) -> list[float]:
        """Rewards of the last steps, `count` at most, as far back as no step is missing."""
        found: list[float] = []
        step = self.last.step if self.last else 0
        while len(found) < count and (row := self._rows.get(step)) is not None and row.reward is not None:
            found.insert(0, row.reward)
            step -= 1
        return found

    def rewards(self) -> list[float]:
        return [row.reward for row in self if row.reward is not None]
