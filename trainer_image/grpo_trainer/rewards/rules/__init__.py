"""Builtin reward rules: functions of a response and its row to a score.

Parameters, their bounds and defaults are those of `grpo_api.spec.reward_rules`; here they come filled in.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from grpo_api.rewards.rows import RewardRow
from grpo_trainer.rewards.rules.answers import exact_match, gsm8k, math, numeric, regex
from grpo_trainer.rewards.rules.by_source import verl
from grpo_trainer.rewards.rules.code import code
from grpo_trainer.rewards.rules.gym import reasoning_gym
from grpo_trainer.rewards.rules.shape import json_schema, length, tags

Rule = Callable[[RewardRow], float]

RULES: dict[str, Callable[..., float]] = {
    "exact_match": exact_match,
    "numeric": numeric,
    "gsm8k": gsm8k,
    "math": math,
    "regex": regex,
    "tags": tags,
    "length": length,
    "json_schema": json_schema,
    "reasoning_gym": reasoning_gym,
    "code": code,
    "verl": verl,
}


def make_rule(rule: str, params: dict[str, Any]) -> Rule:
    """The rule with all of its parameters bound."""
    params = dict(params)
    tag = params.pop("answer_tag", None)
    scored: Rule = partial(RULES[rule], **params)
    return scored if tag is None else partial(_in_tag, scored, re.compile(f"<{tag}>((?:(?!<{tag}>).)*?)</{tag}>", re.S))


def _in_tag(rule: Rule, element: re.Pattern[str], row: RewardRow) -> float:
    found = element.findall(row.completion)
    return rule(replace(row, completion=found[-1].strip())) if found else 0.0
