"""Builtin reward rules: pure functions of the response text and the ground truth that return 0.0 or 1.0."""

import inspect
import re
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

# A sign counts only where no operand stands before it, so that "7-9" ends in 9 and "= -2" in -2. U+2212 is the minus
# sign that models like to print. Exponents are bounded: Decimal refuses larger ones.
_NUMBER = re.compile(
    r"(?:(?<![\w)\].,])[-+\u2212])?"
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![0-9])\.[0-9]+)"
    r"(?:[eE][-+]?[0-9]{1,4}(?![0-9]))?"
)


def numbers(text: str) -> list[Decimal]:
    """Every number in a text, in order: `-2`, `−2` (U+2212), `1,234`, `3.0`, `.5`, `1e3`."""
    return [Decimal(found.replace(",", "").replace("\u2212", "-")) for found in _NUMBER.findall(text)]


def exact_match(response: str, ground_truth: Any, *, ignore_case: bool = False) -> float:
    """1.0 where the response, stripped, equals the ground truth's text, stripped."""
    wanted, given = _text(ground_truth).strip(), response.strip()
    return float(wanted.casefold() == given.casefold() if ignore_case else wanted == given)


def numeric(response: str, ground_truth: Any, *, first: bool = False, tolerance: float = 0.0) -> float:
    """1.0 where the response's last number equals the last number of the ground truth.

    `first` compares the response's first number instead; `tolerance` is the greatest absolute difference.
    Raises ValueError where the ground truth holds no number.
    """
    wanted = numbers(_text(ground_truth))
    if not wanted:
        raise ValueError(f"the ground truth {ground_truth!r} holds no number")
    given = numbers(response)
    if not given:
        return 0.0
    answer = given[0 if first else -1]
    return float(answer == wanted[-1] or abs(answer - wanted[-1]) <= Decimal(str(tolerance)))


def regex(response: str, ground_truth: Any, *, pattern: str, ignore_case: bool = False) -> float:
    """1.0 where the pattern (Python's `re`, dot matches newlines) is found in the response."""
    return float(re.search(pattern, response, re.DOTALL | (re.IGNORECASE if ignore_case else 0)) is not None)


RULES: dict[str, Callable[..., float]] = {"exact_match": exact_match, "numeric": numeric, "regex": regex}


def make_rule(rule: str, params: dict[str, Any]) -> Callable[[str, Any], float]:
    """The rule with its parameters bound. Raises ValueError that names the parameters it takes."""
    function = RULES[rule]
    try:
        inspect.signature(function).bind("", None, **params)
    except TypeError as error:
        takes = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
        raise ValueError(f"rule {rule}: {error}; its params are {', '.join(takes)}") from None
    if "pattern" in params:
        try:
            re.compile(params["pattern"])
        except (re.error, TypeError) as error:
            raise ValueError(
                f"rule {rule}: params.pattern {params['pattern']!r} is no regular expression: {error}"
            ) from None
    return partial(function, **params)


def _text(ground_truth: Any) -> str:
    if ground_truth is None:
        raise ValueError("the row has no ground truth: set data.groundTruthKey to the column that holds it")
    return str(ground_truth)
