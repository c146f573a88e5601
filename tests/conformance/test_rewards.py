"""Reward rules against the scorers of verl and TRL."""

import random

import pytest

from grpo_api.rewards.rows import RewardRow
from grpo_api.spec.reward_rules import rule_params
from grpo_trainer.rewards.rules import make_rule

accuracy_reward = pytest.importorskip("trl.rewards").accuracy_reward
gsm8k = pytest.importorskip("verl.utils.reward_score.gsm8k")
math_verify = pytest.importorskip("verl.utils.reward_score.math_verify")

PIECES = ["#### ", "72", "-72", "7,200", "72.0", ".", ",", "$", " ", "\n", "The answer is ", "1.5", "####72", "x" * 280]


@pytest.mark.parametrize("method", ["strict", "flexible"])
def test_gsm8k_is_verls(method):
    ours = make_rule("gsm8k", rule_params("gsm8k", {"method": method, "format_score": 0.25}).model_dump())
    draw = random.Random(7)
    scores = []
    for _ in range(5000):
        response = "".join(draw.choices(PIECES, k=draw.randrange(9)))
        truth = draw.choice(["72", "-72", "7200", "72.0"])
        scores.append(gsm8k.compute_score(response, truth, method, format_score=0.25))
        assert ours(RewardRow("", response, truth, "", {})) == scores[-1], (response, truth)
    assert set(scores) == {0, 0.25, 1}


def test_defaults_by_data_source_are_verls():
    """Mathematics of MATH and DAPO where texts decide; docs/rewards.md says that math-verify takes more as equal."""
    default_compute_score = pytest.importorskip("verl.utils.reward_score").default_compute_score
    ours = make_rule("verl", rule_params("verl", {}).model_dump())
    sources = ["openai/gsm8k", "lighteval/MATH", "HuggingFaceH4/MATH-500", "math_dapo", "math", "aime2024"]
    scores = []
    for source in sources:
        for truth in ("72", r"\frac{1}{2}", "x+1"):
            for answer in ("72", "7", r"\frac{1}{2}", r"\dfrac{1}{2}", "x+1", "x"):
                for form in ("#### {}", r"So \boxed{{{}}}.", "Answer: {}", "Answer: 5\nAnswer: ${}$", "{}"):
                    response = form.format(answer)
                    scores.append(default_compute_score(source, response, truth))
                    row = RewardRow("", response, truth, source, {})
                    scores[-1] = scores[-1]["score"] if isinstance(scores[-1], dict) else scores[-1]
                    # By value where verl may go by text:
                    equal = {answer, truth} == {r"\frac{1}{2}", r"\dfrac{1}{2}"}
                    assert ours(row) == scores[-1] or (equal and ours(row) == 1.0), (source, response, truth)
    assert set(scores) == {-1.0, 0.0, 1.0}
    with pytest.raises(ValueError, match="no rule for data_source 'mine'"):
        ours(RewardRow("", "7", "7", "mine", {}))
    cases = {"inputs": ["1", "2"], "outputs": ["2", "5"]}
    program = "```python\nprint(2 * int(input()))\n```"
    assert ours(RewardRow("", program, cases, "taco", {})) == 0.5


TRUTHS = ["3", r"\frac{1}{2}", "(1,2]", "x^2-1", r"\sqrt{8}", "50\\%", "1,000", r"\text{Monday}", r"\{1,2\}", "2x+1=5"]
ANSWERS = [
    *TRUTHS,
    "3.0",
    "0.5",
    r"\dfrac12",
    "(x-1)(x+1)",
    r"2\sqrt{2}",
    "0.5",
    "1000",
    "Monday",
    r"\{2,1\}",
    "x=2",
    "[1,2]",
    "-3",
]
FORMS = ["{}", r"\boxed{{{}}}", r"The answer is ${}$.", r"$$x$$ and then $\boxed{{{}}}$", "Final answer: {}."]


def test_math_is_verls():
    ours = make_rule("math", rule_params("math", {}).model_dump())
    scores = []
    for truth in TRUTHS:
        for answer in ANSWERS:
            for form in FORMS:
                response = form.format(answer)
                scores.append(math_verify._verify_in_subprocess(f"\\boxed{{{truth}}}", response))
                assert ours(RewardRow("", response, truth, "", {})) == scores[-1], (response, truth)
    assert {0.0, 1.0} == set(scores)


def test_boxed_math_agrees_with_trls():
    ours = make_rule("math", rule_params("math", {"boxed": True}).model_dump())
    scores = []
    for truth in TRUTHS:
        for answer in ANSWERS:
            response = rf"So $\boxed{{{answer}}}$."
            completions = [[{"role": "assistant", "content": response}]]
            scores += accuracy_reward(completions, [rf"$\boxed{{{truth}}}$"])
            assert ours(RewardRow("", response, truth, "", {})) == scores[-1], (response, truth)
    assert {0.0, 1.0} == set(scores)
