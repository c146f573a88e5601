"""Rules about a response's shape: its elements, its length, JSON that a schema accepts."""

import json
import re
from typing import Any

from grpo_api.rewards.rows import RewardRow


def tags(row: RewardRow, *, tags: list[str], prefilled: bool, rest: bool, partial: bool) -> float:
    """1.0 where the response is these elements, each once, in this order; see `TagsParams`."""
    text = (f"<{tags[0]}>" if prefilled else "") + row.completion
    marks = [mark for name in tags for mark in (f"<{name}>", f"</{name}>")]
    if partial:
        counted = marks[1:] if prefilled else marks
        return sum(text.count(mark) == 1 for mark in counted) / len(counted)
    if any(text.count(mark) != 1 for mark in marks):
        return 0.0
    places = [text.index(mark) for mark in marks]
    if places != sorted(places):
        return 0.0
    between, after = (".*?", ".*") if rest else (r"\s*", r"\s*")
    elements = between.join(f"<{name}>.*?</{name}>" for name in tags)
    return float(re.fullmatch(rf"\s*{elements}{after}", text, re.DOTALL) is not None)


def length(row: RewardRow, *, min_tokens: int, max_tokens: int, margin: int) -> float:
    """1.0 within the bounds, else 1 - distance / margin, and at least 0. Raises ValueError without a token count."""
    if row.response_tokens is None:
        raise ValueError("the number of the response's tokens is not known here")
    outside = max(min_tokens - row.response_tokens, row.response_tokens - max_tokens, 0)
    if outside == 0:
        return 1.0
    return max(0.0, 1.0 - outside / margin) if margin else 0.0


_FENCE = re.compile(r"\s*```(?:json)?[^\S\n]*\n(.*)\n\s*```\s*", re.S)


def json_schema(row: RewardRow, *, json_schema: dict[str, Any]) -> float:
    """1.0 where the response, without a fence around it, is JSON that the schema accepts."""
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry

    fenced = _FENCE.fullmatch(row.completion)
    try:
        value = json.loads(fenced[1] if fenced else row.completion)
    except ValueError:
        return 0.0
    # A registry of our own: the library's default one would fetch what a `$ref` names.
    validator = validator_for(json_schema, Draft202012Validator)(json_schema, registry=Registry())
    return float(validator.is_valid(value))
