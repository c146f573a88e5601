import pytest

from grpo_api.spec.reward import OverlongBufferSpec
from grpo_trainer.rewards.overlong import overlong_penalty


@pytest.mark.parametrize(
    ("tokens", "penalty"),
    [(0, 0.0), (80, 0.0), (81, -0.1), (90, -1.0), (100, -2.0)],
)
def test_the_penalty_grows_over_the_last_tokens(tokens: int, penalty: float) -> None:
    spec = OverlongBufferSpec(enable=True, len=20, penalty_factor=2.0)
    assert overlong_penalty(tokens, 100, spec) == pytest.approx(penalty)
    assert overlong_penalty(tokens, 100, spec.model_copy(update={"enable": False})) == 0
