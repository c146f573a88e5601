import math

import pytest
import torch

from grpo_api.spec.training import RolloutCorrectionSpec
from grpo_trainer.rollout_correction import importance_weights, kept

LOGS = torch.tensor([0.5, -1.0, 1.5, 0.1])


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, [math.exp(0.5), math.exp(-1), 2.0, math.exp(0.1)]),
        ({"rollout_is_threshold": 9.0}, [math.exp(0.5), math.exp(-1), math.exp(1.5), math.exp(0.1)]),
        ({"rollout_is_threshold_lower": 0.5}, [math.exp(0.5), 0.0, 0.0, math.exp(0.1)]),
        ({"rollout_is": "sequence"}, [math.exp(-0.5)] * 2 + [2.0] * 2),
        ({"rollout_is": "sequence", "rollout_is_threshold_lower": 0.5}, [math.exp(-0.5)] * 2 + [0.0] * 2),
    ],
)
def test_weights(spec: dict[str, object], expected: list[float]) -> None:
    got = importance_weights(LOGS, [2, 2], RolloutCorrectionSpec(**spec))
    assert got.tolist() == pytest.approx(expected, rel=1e-6)


def test_equal_policies_have_weight_1_and_far_ones_a_finite_one() -> None:
    spec = RolloutCorrectionSpec(rollout_is_threshold=1e6)
    assert importance_weights(torch.zeros(3), [3], spec).tolist() == [1.0] * 3
    assert importance_weights(torch.tensor([1e4, -1e4]), [2], spec).tolist() == pytest.approx([1e6, math.exp(-20)])


@pytest.mark.parametrize(
    ("option", "upper", "lower", "expected"),
    [
        ("none", 0.01, None, [True] * 4),
        ("token_k1", 2.0, None, [True, False, False, True]),  # ln 2 = 0.69
        ("token_k1", 3.0, 0.7, [False, True, False, True]),  # from ln 0.7 = -0.36 to 1.1, of rollout over trainer
        ("token_k2", 0.2, None, [True, False, False, True]),
        ("seq_mean_k1", 2.0, None, [True, True, False, False]),  # means -0.25 and 0.8
        ("seq_sum_k2", 1.0, None, [True, True, False, False]),  # 0.625 and 1.13
        ("seq_max_k3", 1.0, None, [True, True, False, False]),  # e^1.5 - 2.5 = 1.98
    ],
)
def test_rejection(option: str, upper: float, lower: float | None, expected: list[bool]) -> None:
    spec = RolloutCorrectionSpec(rollout_rs=option, rollout_rs_threshold=upper, rollout_rs_threshold_lower=lower)
    assert kept(LOGS, [2, 2], spec).tolist() == expected
