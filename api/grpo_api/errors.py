"""Faults in a spec: which field, what value, and how to repair it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MAX_SHOWN = 80
"""Characters of a value that a message repeats."""


@dataclass(frozen=True)
class FieldError:
    """One fault. `path` is in YAML terms, such as `spec.actor.ppoMiniBatchSize`."""

    path: str
    value: Any
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" + ("" if self.value is None else f" (got {shown(self.value)})")


def shown(value: Any) -> str:
    """A value as YAML would have it, cut to MAX_SHOWN characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def exactly_one(path: str, given: dict[str, object], example: str) -> list[FieldError]:
    """Faults unless one of the fields is set."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if len(chosen) == 1:
        return []
    *first, last = given
    message = f"set exactly one of {', '.join(first)} and {last}"
    if chosen:
        return [FieldError(path, list(chosen), f"{message}; {' and '.join(chosen)} are set: keep one")]
    return [FieldError(path, None, f"{message}; none is set: add one, such as {example}")]


class InvalidJobError(ValueError):
    """A GRPOJob that cannot run; holds every fault found."""

    def __init__(self, faults: Sequence[FieldError]) -> None:
        self.faults = list(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))
