"""What a reward function may see of one response."""

from dataclasses import dataclass, field
from typing import Any

MISSING = object()
"""What `look_up` returns where there is no such key."""


@dataclass
class RewardRow:
    """One response with what reward functions may see of its prompt."""

    prompt: str
    completion: str
    ground_truth: Any
    data_source: str
    extra_info: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)
    """The data row's columns but the prompt, by name."""
    messages: list[dict[str, Any]] | None = None
    """The prompt as chat messages, where the data holds it so. TRL's convention makes the completion messages then."""
    response_tokens: int | None = None
    """Tokens of the response, where they are known."""


def look_up(row: dict[str, Any], key: str) -> Any:
    """The value at a key; dots descend into objects where no column has the whole name."""
    if key in row:
        return row[key]
    value: Any = row
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return MISSING
        value = value[part]
    return value
