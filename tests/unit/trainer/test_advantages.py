import pytest
import torch

from grpo_api.job import GRPOJobSpec
from grpo_trainer.advantages import compute_advantages
from grpo_trainer.algorithms import estimator
from grpo_trainer.errors import SpecError
from tests.unit.trainer.trainer_support import make_spec


def spec(**algorithm: object) -> GRPOJobSpec:
    from pathlib import Path

    return make_spec(Path("/model"), algorithm=algorithm)


def test_grpo_divides_by_the_groups_standard_deviation() -> None:
    rewards = [1.0, 0.0, 0.0, 5.0, 3.0]
    result = compute_advantages(spec(), rewards, [7, 7, 7, 2, 2])
    s = torch.tensor(rewards[:3], dtype=torch.float64)
    expected = ((s - s.mean()) / (s.std() + 1e-6)).tolist()
    half = 1 / (2**0.5 + 1e-6)
    assert result == pytest.approx([*expected, half, -half])


def test_dr_grpo_does_not_divide() -> None:
    assert compute_advantages(spec(normAdvByStdInGrpo=False), [1.0, 0.0], [0, 0]) == [0.5, -0.5]


def test_rloo_compares_with_the_mean_of_the_others() -> None:
    rewards = [1.0, 0.0, 4.0]
    expected = [1 - 4 / 2, 0 - 5 / 2, 4 - 1 / 2]
    assert compute_advantages(spec(advEstimator="rloo"), rewards, [0, 0, 0]) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_masked_rewards_leave_their_group(name: str) -> None:
    of = spec(advEstimator=name)
    masked = compute_advantages(of, [1.0, None, 0.0, 0.5], [0, 0, 0, 0])
    assert masked[1] is None
    assert [masked[0], *masked[2:]] == compute_advantages(of, [1.0, 0.0, 0.5], [0, 0, 0])


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_nothing_to_compare_is_zero(name: str) -> None:
    rewards = [0.1, 0.1, 0.1, None, 5.0, None, None]
    assert compute_advantages(spec(advEstimator=name), rewards, [0, 0, 0, 1, 1, 2, 2]) == [0, 0, 0, None, 0, None, None]


def test_an_unknown_estimator_lists_the_names() -> None:
    with pytest.raises(SpecError, match="'gae'; use one of grpo, rloo"):
        estimator("gae")
