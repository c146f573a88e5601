"""Builtin rules: answers against other people's scorers, and every parameter."""

import math
from typing import Any

import pytest

from grpo_api.rewards.rows import RewardRow
from grpo_api.spec.reward_rules import rule_params
from grpo_trainer.rewards.rules import make_rule
from grpo_trainer.rewards.rules.answers import numbers


def score(rule: str, response: str, truth: Any = "7", *, tokens: int | None = None, **params: Any) -> float:
    row = RewardRow("What is 3 + 4?", response, truth, "sums", {}, response_tokens=tokens)
    return make_rule(rule, rule_params(rule, params).model_dump())(row)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("-2", [-2]),
        ("\u22122", [-2]),
        ("The answer is 1,234.", [1234]),
        ("3.0", [3]),
        ("7 - 9 = -2", [7, 9, -2]),
        ("7-9=-2", [7, 9, -2]),
        ("(1)-2", [1, 2]),
        ("1,2345", [1, 2345]),
        ("$\\boxed{-4}$", [-4]),
        (".5 and 1e3", [0.5, 1000]),
        ("It is 5.", [5]),
        ("-1,000,000.25", [-1000000.25]),
        ("1e99999999999999999999", [1, 99999999999999999999.0]),
        ("no number", []),
    ],
)
def test_numbers(text, found):
    assert [float(number) for number in numbers(text)] == found


def test_numeric():
    assert score("numeric", "7 - 9 = \u22122", "-2") == 1
    assert score("numeric", "It is 1,234.00", 1234) == 1
    assert score("numeric", "-2, I think, or 3", "-2") == 0
    assert score("numeric", "-2, I think, or 3", "-2", first=True) == 1
    assert score("numeric", "3.14", "3.1416") == 0
    assert score("numeric", "3.14", "3.1416", tolerance=0.01) == 1
    assert score("numeric", "seven", "7") == 0
    assert score("numeric", "72", "48 + 24 = 72\n#### 72") == 1
    with pytest.raises(ValueError, match="holds no number"):
        score("numeric", "7", "seven")
    with pytest.raises(ValueError, match=r"data\.groundTruthKey"):
        score("numeric", "7", None)


def test_exact_match_and_regex():
    assert score("exact_match", " Paris\n", "Paris") == 1
    assert score("exact_match", "paris", "Paris") == 0
    assert score("exact_match", "paris", "Paris", ignore_case=True) == 1
    assert score("regex", "<think>\na\n</think> 7", None, pattern="^<think>.*</think>") == 1
    assert score("regex", "7", None, pattern="^<think>") == 0
    assert score("regex", "SEVEN", None, pattern="seven") == 0
    assert score("regex", "SEVEN", None, pattern="seven", ignore_case=True) == 1


def test_answer_tag_is_where_a_rule_looks():
    response = "<think>8</think><answer>\n7\n</answer> not 9"
    for rule in ("exact_match", "numeric", "math"):
        assert score(rule, response) == 0
        assert score(rule, response, answer_tag="answer") == 1
        assert score(rule, response, answer_tag="solution") == 0
    assert score("numeric", "<answer>6</answer> no, <answer> <answer>7</answer>", answer_tag="answer") == 1


def test_gsm8k():
    assert score("gsm8k", "48 + 24 = 72\n#### 72", "72") == 1
    assert score("gsm8k", "#### 1,234", "1234") == 1
    assert score("gsm8k", "The answer is 72.", "72") == 0
    assert score("gsm8k", "The answer is 72 .", "72", method="flexible") == 1
    assert score("gsm8k", "#### 71", "72", format_score=0.1) == 0.1
    assert score("gsm8k", "#### 72", "48 + 24 = <<48+24=72>>72\n#### 72") == 1  # the data set's own column
    assert score("gsm8k", "#### 72" + " " * 294, "72") == 0


@pytest.mark.parametrize(
    ("response", "truth", "expected"),
    [
        (r"so $\boxed{\frac{1}{2}}$", "0.5", 1),
        (r"the answer is $\frac{2}{4}$", r"\frac12", 1),
        (r"\boxed{x^2+2x+1}", "(x+1)^2", 1),
        (r"\boxed{(1, 2]}", "(1,2]", 1),
        (r"\boxed{3}", r"Thus \boxed{\sqrt{9}} is it", 1),
        (r"\boxed{4}", "3", 0),
        ("no answer here", "3", 0),
    ],
)
def test_math(response, truth, expected):
    assert score("math", response, truth) == expected


def test_math_boxed_and_unreadable_truth():
    assert score("math", "it is 3", "3") == 1
    assert score("math", "it is 3", "3", boxed=True) == 0
    assert score("math", r"\boxed{3}, or rather \boxed{4}", "4", boxed=True) == 1
    assert score("math", r"\boxed{3}, or rather \boxed{4}", "3", boxed=True) == 0
    with pytest.raises(ValueError, match="no answer that math-verify can read"):
        score("math", "3", "")


GOOD = "<think>\nsum\n</think>\n<answer>7</answer>\n"


@pytest.mark.parametrize(
    ("response", "params", "expected"),
    [
        (GOOD, {}, 1),
        ("Well. " + GOOD, {}, 0),
        (GOOD + "Done.", {}, 0),
        (GOOD + "Done.", {"rest": True}, 1),
        (GOOD + "</answer>", {"rest": True}, 0),
        ("<answer>7</answer><think></think>", {}, 0),
        ("sum</think><answer>7</answer>", {}, 0),
        ("sum</think><answer>7</answer>", {"prefilled": True}, 1),
        ("sum</think>7", {"partial": True}, 0.25),
        ("sum</think>7", {"partial": True, "prefilled": True}, 1 / 3),
        (GOOD, {"partial": True}, 1),
        ("<a>1</a>", {"tags": ["a"]}, 1),
        (GOOD, {"tags": ["answer", "think"]}, 0),
    ],
)
def test_tags(response, params, expected):
    assert score("tags", response, None, **params) == pytest.approx(expected)


def test_length():
    scores = [
        score("length", "", None, tokens=tokens, min_tokens=10, max_tokens=20, margin=10)
        for tokens in (0, 5, 10, 20, 25, 30, 99)
    ]
    assert scores == [0, 0.5, 1, 1, 0.5, 0, 0]
    assert score("length", "", None, tokens=21, max_tokens=20) == 0
    assert score("length", "", None, tokens=0, max_tokens=20) == 1
    with pytest.raises(ValueError, match="not known"):
        score("length", "", None, max_tokens=20)


def test_json_schema():
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    for response, expected in [
        ('{"n": 7}', 1),
        ('```json\n{"n": 7}\n```', 1),
        ('{"n": "7"}', 0),
        ('{"n": 7} is it', 0),
        ("", 0),
    ]:
        assert score("json_schema", response, None, json_schema=schema) == expected
    assert score("json_schema", '<answer>{"n": 7}</answer>', None, json_schema=schema, answer_tag="answer") == 1
    # As draft 4 had it, where `$schema` says so: an exclusive bound is a flag.
    old = {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 7, "exclusiveMinimum": True}
    assert [score("json_schema", text, None, json_schema=old) for text in ("7", "8")] == [0, 1]


def test_json_schema_fetches_nothing():
    with pytest.raises(Exception, match="Unresolvable"):
        score("json_schema", "7", None, json_schema={"$ref": "http://127.0.0.1:9/schema.json"})


def test_reasoning_gym_scores_as_the_task_does():
    """countdown takes any expression that reaches the target; the default scorer would compare texts."""
    import reasoning_gym

    entry = reasoning_gym.create_dataset("countdown", size=1, seed=3)[0]
    target, answer = entry["metadata"]["target"], entry["answer"]
    for response, params, expected in [
        (answer, {}, 1.0),
        (f"<answer> {answer} </answer>", {"answer_tag": "answer"}, 1.0),
        (f"{target + 1}", {}, 0.05),
        ("nothing", {}, 0.01),
    ]:
        row = RewardRow(entry["question"], response, answer, "reasoning_gym/countdown", entry["metadata"])
        assert make_rule("reasoning_gym", rule_params("reasoning_gym", params).model_dump())(row) == expected
        row.data_source, row.extra_info = "mine", entry["metadata"] | {"source_dataset": ""}
        named = rule_params("reasoning_gym", params | {"task": "countdown"}).model_dump()
        assert make_rule("reasoning_gym", named)(row) == expected
    with pytest.raises(ValueError, match="no task 'sums'"):
        score("reasoning_gym", "7")


def test_rules_return_finite_floats():
    for rule, params in {"tags": {}, "gsm8k": {}, "math": {}, "numeric": {}}.items():
        assert math.isfinite(score(rule, "\u0000\ud7ff" * 10, "7", **params))


@pytest.mark.parametrize(
    ("source", "response", "truth", "expected"),
    [
        ("openai/gsm8k", "#### 7", "7", 1),
        ("lighteval/MATH", "7", "7", 0),
        ("lighteval/MATH", r"\boxed{7}", "7", 1),
        ("math_dapo", "Answer: 8", "7", -1),
        ("aime2025", "Answer: $7$.", "7", 1),
        ("numina_olympiads", "it is 7", "7", 1),
        ("apps", "print(input())", '{"inputs": ["1", "2"], "outputs": ["1", "1"]}', 0.5),
    ],
)
def test_verls_rule_goes_by_data_source(source, response, truth, expected):
    """Values of verl's own scorers; tests/conformance holds more against them."""
    row = RewardRow("", response, truth, source)
    assert make_rule("verl", rule_params("verl", {}).model_dump())(row) == expected


def test_verls_rule_refuses_other_sources():
    with pytest.raises(ValueError, match="no rule for data_source 'sums'"):
        score("verl", "7")
