from pathlib import Path
from typing import get_args

import pytest
import torch

from grpo_api.job import GRPOJobSpec
from grpo_api.spec.training import AdvEstimator
from grpo_trainer.advantages import compute_advantages
from grpo_trainer.algorithms import ESTIMATORS
from grpo_trainer.errors import SpecError
from tests.unit.trainer.trainer_support import make_spec

NAMES = get_args(AdvEstimator)
WITHIN_GROUPS = [name for name in NAMES if name not in ("reinforce_plus_plus", "remax", "gae")]


def spec(**algorithm: object) -> GRPOJobSpec:
    return make_spec(Path("/model"), algorithm=algorithm)


def advantages(name: str, rewards: list[float | None], groups: list[int], lengths: list[int] | None = None, **more):
    return compute_advantages(spec(advEstimator=name, **more), rewards, groups, lengths)


def test_the_registry_and_the_spec_have_the_same_names() -> None:
    assert ESTIMATORS.names() == sorted(NAMES)


def test_grpo_divides_by_the_groups_standard_deviation() -> None:
    rewards = [1.0, 0.0, 0.0, 5.0, 3.0]
    s = torch.tensor(rewards[:3], dtype=torch.float64)
    expected = ((s - s.mean()) / (s.std() + 1e-6)).tolist()
    half = 1 / (2**0.5 + 1e-6)
    assert advantages("grpo", rewards, [7, 7, 7, 2, 2]) == pytest.approx([*expected, half, -half])


def test_dr_grpo_does_not_divide() -> None:
    assert advantages("dr_grpo", [1.0, 0.0], [0, 0]) == [0.5, -0.5]
    assert advantages("grpo", [1.0, 0.0], [0, 0], normAdvByStdInGrpo=False) == [0.5, -0.5]


@pytest.mark.parametrize(
    ("name", "rewards", "lengths", "expected"),
    [
        ("rloo", [1.0, 0.0, 4.0], [1, 1, 1], [1 - 4 / 2, 0 - 5 / 2, 4 - 1 / 2]),
        ("opo", [1.0, 0.0, 4.0], [1, 2, 5], [1 - 21 / 8, 0 - 21 / 8, 4 - 21 / 8]),
        ("gpg", [1.0, 0.0, 0.0], [1, 1, 1], [3 * 2 / 3, -1.0, -1.0]),
        ("max_rl", [1.0, 0.0, 0.0, 0.0], [1, 1, 1, 1], [3.0, -1.0, -1.0, -1.0]),  # a quarter succeeds: 1/p - 1
        ("max_rl", [-1.0, -3.0], [1, 1], [0.0, 0.0]),
        ("max_rl", [-1.0, 1.0], [1, 1], [0.0, 0.0]),
        ("grpo_passk", [1.0, 0.0, 4.0], [1, 1, 1], [0.0, 0.0, 3 / (13 / 3) ** 0.5]),
    ],
)
def test_estimators_by_hand(name: str, rewards: list[float], lengths: list[int], expected: list[float]) -> None:
    assert advantages(name, rewards, [0] * len(rewards), lengths) == pytest.approx(expected, rel=1e-5)


def test_reinforce_plus_plus_whitens_discounted_returns_over_all_tokens() -> None:
    returns = [0.25, 0.5, 1.0, 2.0]  # gamma 0.5: tokens of the responses with rewards 1 and 2
    mean, variance = 3.75 / 4, sum((g - 3.75 / 4) ** 2 for g in returns) / 3
    white = [(g - mean) / variance**0.5 for g in returns]
    got = advantages("reinforce_plus_plus", [1.0, 2.0], [0, 1], [3, 1], gamma=0.5)
    assert got == [pytest.approx(white[:3], rel=1e-6), pytest.approx(white[3:], rel=1e-6)]


def test_reinforce_plus_plus_baseline_whitens_by_tokens() -> None:
    got = advantages("reinforce_plus_plus_baseline", [1.0, 0.0], [0, 0], [3, 1])
    mean, variance = 0.25, (3 * 0.25**2 + 0.75**2) / 3
    assert got == pytest.approx([0.25 / variance**0.5, -0.75 / variance**0.5], rel=1e-6)
    assert mean == 0.5 * 3 / 4 - 0.5 / 4


def test_gae_without_a_critic_discounts_the_next_reward() -> None:
    """A_t = sum over l of (gamma lam)^l gamma r_(t+l+1): only the last token has a reward, R = 2."""
    g, lam = 0.9, 0.8
    got = advantages("gae", [2.0, 1.0], [0, 0], [4, 1], gamma=g, lam=lam)
    assert got == [pytest.approx([(g * lam) ** 2 * g * 2, g * lam * g * 2, g * 2, 0.0]), [0.0]]


def test_remax_compares_with_the_greedy_response() -> None:
    penalties = [torch.tensor([0.1, 0.2]), torch.tensor([0.5])]
    got = compute_advantages(
        spec(advEstimator="remax"), [1.0, 0.25], [0, 1], [2, 1], baselines=[0.5, 1.0], token_penalties=penalties
    )
    assert got == [pytest.approx([1 - 0.3 - 0.5, 1 - 0.2 - 0.5]), pytest.approx([0.25 - 0.5 - 1.0])]


def test_gdpo_normalises_each_function_by_itself() -> None:
    two = [
        {"name": "small", "weight": 2.0, "builtin": {"rule": "exact_match"}},
        {"name": "large", "builtin": {"rule": "exact_match"}},
    ]
    of = make_spec(Path("/model"), algorithm={"advEstimator": "gdpo"}, reward={"functions": two})
    small, large = [0.0, 0.01, 0.02], [0.0, 100.0, 0.0]
    rewards = [2 * a + b for a, b in zip(small, large, strict=True)]

    def normal(values: list[float]) -> torch.Tensor:
        s = torch.tensor(values, dtype=torch.float64)
        return (s - s.mean()) / (s.std() + 1e-6)

    total = 2 * normal(small) + normal(large)
    expected = (total - total.mean()) / total.std()
    got = compute_advantages(of, rewards, [0, 0, 0], [2, 2, 2], function_scores=[small, large])
    scale = (5 / 6 / (2 / 3)) ** 0.5  # the deviation is over 6 tokens, not 3 responses
    assert got == pytest.approx((expected * scale).tolist(), rel=1e-3)
    assert got[2] > got[0]  # small's opinion is not drowned
    without = [None, 0.01, 0.02]  # a function that says nothing of a response counts 0
    assert compute_advantages(of, rewards, [0, 0, 0], [2, 2, 2], function_scores=[without, large]) == got


@pytest.mark.parametrize("name", NAMES)
def test_masked_rewards_count_nowhere(name: str) -> None:
    masked = advantages(name, [1.0, None, 0.0, 0.5], [0, 0, 0, 1], [3, 9, 2, 4])
    assert masked[1] is None
    assert [masked[0], *masked[2:]] == advantages(name, [1.0, 0.0, 0.5], [0, 0, 1], [3, 2, 4])
    assert advantages(name, [None, None], [0, 1]) == [None, None]


@pytest.mark.parametrize("name", WITHIN_GROUPS)
def test_nothing_to_compare_is_zero(name: str) -> None:
    rewards = [0.1, 0.1, 0.1, None, 5.0, None, None, 1.0, 0.0]
    got = advantages(name, rewards, [0, 0, 0, 1, 1, 2, 2, 3, 3], [3, 1, 2, 1, 7, 1, 1, 2, 2])
    assert got[:7] == [0, 0, 0, None, 0, None, None]
    assert got[7] > 0


@pytest.mark.parametrize("name", [name for name in NAMES if name != "remax"])
def test_a_step_of_one_token_teaches_nothing(name: str) -> None:
    assert torch.tensor(advantages(name, [5.0], [0], [1])).abs().max() == 0


@pytest.mark.parametrize("name", NAMES)
def test_rounding_is_not_blown_up(name: str) -> None:
    """Rewards that differ in their last bits only, as the sums of several functions do."""
    base = 0.1 + 0.2
    rewards = [base, 0.3, base, 0.3, 1.0, 0.0]
    got = advantages(name, rewards, [0, 0, 0, 0, 1, 1], [2] * 6)
    if name in WITHIN_GROUPS:
        first = torch.tensor(got[:4])
        assert (first - first.mean()).abs().max() < 1e-9
    alone = advantages(name, rewards[:4], [0] * 4, [2] * 4)
    flat = torch.tensor([v for value in alone for v in (value if isinstance(value, list) else [value])])
    if name not in ("gae", "remax"):
        assert flat.abs().max() < 1e-6


def test_the_kl_penalty_is_taken_off_token_by_token() -> None:
    penalties = [torch.tensor([0.1, 0.2, 0.0]), torch.tensor([0.0, 0.4, 0.0])]
    of = spec(advEstimator="dr_grpo")
    got = compute_advantages(of, [1.0, 0.0], [0, 0], [3, 3], token_penalties=penalties)
    assert got == pytest.approx([(0.7 + 0.4) / 2, -(0.7 + 0.4) / 2])
    of = spec(advEstimator="gae", gamma=1.0, lam=0.0)
    got = compute_advantages(of, [1.0, 0.0], [0, 0], [3, 3], token_penalties=penalties)
    assert got == [pytest.approx([-0.2, 1.0, 0.0]), pytest.approx([-0.4, 0.0, 0.0])]


def test_an_unknown_estimator_lists_the_names() -> None:
    with pytest.raises(SpecError, match="'vtrace'; use one of dr_grpo, gae, gdpo, gpg, grpo, "):
        ESTIMATORS.find("vtrace")
