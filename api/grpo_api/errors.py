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


class InvalidJobError(ValueError):
    """A GRPOJob that cannot run; holds every fault found."""

    def __init__(self, faults: Sequence[FieldError]) -> None:
        self.faults = list(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))
