import pytest
import torch

from grpo_api.spec.training import AlgorithmSpec
from grpo_trainer.kl_control import KlInReward
from grpo_trainer.sample import Sample


def samples() -> list[Sample]:
    """KL (k1) of 0.5 and 1.5 on average; the third response is empty."""
    old = ([-1.0, -1.0], [-1.0], [])
    ref = ([-1.2, -1.8], [-2.5], [])
    return [
        Sample([1], [2] * len(a), 0, old_log_probs=torch.tensor(a), ref_log_probs=torch.tensor(b))
        for a, b in zip(old, ref, strict=True)
    ]


@pytest.mark.parametrize(
    ("kind", "first"),
    [("kl", [0.2, 0.8]), ("abs", [0.2, 0.8]), ("mse", [0.02, 0.32]), ("low_var_kl", [0.01873075, 0.24932896])],
)
def test_penalties_are_the_coefficient_times_the_kl(kind: str, first: list[float]) -> None:
    control = KlInReward(AlgorithmSpec(use_kl_in_reward=True, kl_penalty=kind, kl_ctrl={"kl_coef": 0.5}))
    penalties, _ = control.penalties(samples())
    assert penalties[0].tolist() == pytest.approx([0.5 * value for value in first], rel=1e-5)
    assert penalties[2].tolist() == []
    assert control.coefficient == 0.5


@pytest.mark.parametrize(("target", "error"), [(0.9, 1 / 9), (0.1, 0.2), (100.0, -0.2)])
def test_the_coefficient_moves_towards_the_target_by_a_fifth_at_most(target: float, error: float) -> None:
    ctrl = {"type": "adaptive", "kl_coef": 0.5, "target_kl": target, "horizon": 30}
    control = KlInReward(AlgorithmSpec(use_kl_in_reward=True, kl_ctrl=ctrl))
    _, current = control.penalties(samples())
    assert current == pytest.approx(1.0)
    assert control.coefficient == pytest.approx(0.5 * (1 + error * 3 / 30))
