"""Rules that compare an answer in the response with the ground truth."""

import re
from decimal import Decimal

from grpo_api.rewards.rows import RewardRow

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


def exact_match(row: RewardRow, *, ignore_case: bool) -> float:
    """1.0 where the response, stripped, equals the ground truth's text, stripped."""
    wanted, given = truth_text(row).strip(), row.completion.strip()
    return float(wanted.casefold() == given.casefold() if ignore_case else wanted == given)


def numeric(row: RewardRow, *, first: bool, tolerance: float) -> float:
    """1.0 where the response's last number equals the last number of the ground truth.

    `first` compares the response's first number instead; `tolerance` is the greatest absolute difference.
    Raises ValueError where the ground truth holds no number.
    """
    wanted = numbers(truth_text(row))
    if not wanted:
        raise ValueError(f"the ground truth {row.ground_truth!r} holds no number")
    given = numbers(row.completion)
    if not given:
        return 0.0
    answer = given[0 if first else -1]
    return float(answer == wanted[-1] or abs(answer - wanted[-1]) <= Decimal(str(tolerance)))


_GSM8K_CHARACTERS = 300


def gsm8k(row: RewardRow, *, method: str, format_score: float) -> float:
    """GSM8K as `verl.utils.reward_score.gsm8k` scores it: the digits of a number in the last 300 characters.

    The ground truth is the number, or the data set's whole `answer`, which ends in `#### 72`.
    """
    text = row.completion[-_GSM8K_CHARACTERS:]
    wanted = truth_text(row).rpartition("#### ")[2].strip().replace(",", "")
    if method == "strict":
        found = [number.replace(",", "") for number in re.findall(r"#### (-?[0-9.,]+)", text)]
    else:
        found = re.findall(r"-?[0-9.,]+", text)
        # The last that is more than a full stop; where all are such, verl takes the first.
        found = [number for number in found if number != "."] or found[:1]
    if not found:
        return 0.0
    return 1.0 if found[-1] == wanted else format_score


def math(row: RewardRow, *, boxed: bool) -> float:
    """1.0 where math-verify finds the response's answer equal to the ground truth, as
    `verl.utils.reward_score.math_verify` calls it.

    The ground truth is a formula or number, or a text that holds it in `\\boxed{}`. Raises ValueError where
    math-verify finds no answer in it.
    """
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    truth = truth_text(row)
    wanted = parse(truth if "\\boxed{" in truth else f"\\boxed{{{truth}}}", (LatexExtractionConfig(),))
    if not wanted:
        raise ValueError(f"the ground truth {row.ground_truth!r} holds no answer that math-verify can read")
    text = row.completion
    if boxed:
        start = text.rfind("\\boxed{")
        if start < 0:
            return 0.0
        text = text[start:]
        given = parse(
            text,
            (LatexExtractionConfig(boxed_match_priority=0, normalization_config=NormalizationConfig(boxed="last")),),
        )
    else:
        given = parse(text, (ExprExtractionConfig(), LatexExtractionConfig()))
    return float(any(verify(one, other) for one in wanted for other in given))


def regex(row: RewardRow, *, pattern: str, ignore_case: bool) -> float:
    """1.0 where the pattern (Python's `re`, dot matches newlines) is found in the response."""
    return float(re.search(pattern, row.completion, re.DOTALL | (re.IGNORECASE if ignore_case else 0)) is not None)


def truth_text(row: RewardRow) -> str:
    """The ground truth as text. Raises ValueError where there is none."""
    if row.ground_truth is None:
        raise ValueError("the row has no ground truth: set data.groundTruthKey to the column that holds it")
    return str(row.ground_truth)
