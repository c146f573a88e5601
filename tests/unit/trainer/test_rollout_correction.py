import math

import pytest
import torch

from grpo_api.spec.training import RolloutCorrectionSpec
from grpo_trainer.rollout_correction import importance_weights

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
