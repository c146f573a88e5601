"""verl's default reward: each row's data source names its rule (`verl.utils.reward_score.default_compute_score`)."""

import re
from dataclasses import replace
from typing import Any

from grpo_api.rewards.rows import RewardRow
from grpo_trainer.rewards.rules.answers import gsm8k, math
from grpo_trainer.rewards.rules.code import code

_BOXED = ("lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500")
_DAPO = ("math_dapo", "math", "math_dapo_reasoning")
_NUMINA = ("aops_forum", "synthetic_math", "amc_aime", "synthetic_amc", "cn_k12", "olympiads")
_CODE = ("codecontests", "apps", "codeforces", "taco")


def verl(row: RewardRow, **code_params: Any) -> float:
    """The score by the rule of the row's data source. Raises ValueError on a source that verl or we have no rule for.

    Mathematics is compared by math-verify, where verl compares normalised texts: 1/2 equals 0.5 here.
    """
    source = row.data_source
    if source == "openai/gsm8k":
        return gsm8k(row, method="strict", format_score=0.0)
    if source in _BOXED:
        return math(row, boxed=True)
    if source in _DAPO or source.startswith("aime"):
        return _dapo(row)
    if source.removeprefix("numina_") in _NUMINA and source.startswith("numina_"):
        return math(row, boxed=False)
    if source in _CODE:
        return code(row, **code_params)
    raise ValueError(
        f"no rule for data_source {source!r} (there are openai/gsm8k, {', '.join((*_BOXED, *_DAPO, *_CODE))}, aime..., "
        "numina_...): give the rows a rule of your own in reward.functions"
    )


def _dapo(row: RewardRow) -> float:
    """1 where what follows the last `Answer:` of the last 300 characters is the ground truth, else -1 (math_dapo).

    Without an `Answer:` the last `\\boxed{}` of the last 100 characters counts.
    """
    found = re.findall(r"(?i)Answer\s*:\s*([^\n]+)", row.completion[-300:])
    if not found:
        return 1.0 if math(replace(row, completion=row.completion[-100:]), boxed=True) else -1.0
    answer = found[-1].strip().strip("$").rstrip(".")
    given = answer if "\\boxed{" in answer else f"\\boxed{{{answer}}}"
    return 1.0 if math(replace(row, completion=given), boxed=True) else -1.0
