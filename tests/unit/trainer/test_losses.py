import math

import pytest
import torch

from grpo_api.spec.training import ActorSpec
from grpo_trainer.aggregate import LossCounts, token_weights
from grpo_trainer.kl import kl_penalty
from grpo_trainer.losses import LossInputs, policy_loss


def one_token(ratio: float, advantage: float, **actor: object) -> tuple[float, float, dict[str, float]]:
    """Loss of one token, its gradient to the log-probability, and the sums."""
    log_prob = torch.tensor([math.log(ratio) - 1.0], requires_grad=True)
    entropy = torch.tensor([0.7], requires_grad=True)
    inputs = LossInputs(log_prob, torch.tensor([-1.0]), torch.tensor([advantage]), torch.ones(1), entropy)
    outputs = policy_loss(inputs, ActorSpec(ppo_mini_batch_size=1, **actor))
    outputs.loss.backward()
    return outputs.loss.item(), log_prob.grad.item(), {name: float(value) for name, value in outputs.sums.items()}


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped", "bounded"),
    [
        (1.0, 2.0, -2.0, -2.0, 0, 0),
        (1.3, 2.0, -2.0 * 1.25, 0.0, 1, 0),  # above 1 + high: no more reward for going further
        (0.5, 2.0, -1.0, -1.0, 0, 0),  # below 1 - low with a good advantage: full gradient
        (0.5, -2.0, 2.0 * 0.9, 0.0, 1, 0),
        (1.3, -2.0, 2.6, 2.6, 0, 0),
        (9.0, -2.0, 2.0 * 3.0, 0.0, 0, 1),  # dual clip
    ],
)
def test_clipping(ratio: float, advantage: float, loss: float, gradient: float, clipped: int, bounded: int) -> None:
    got, grad, sums = one_token(ratio, advantage, clip_ratio_low=0.1, clip_ratio_high=0.25)
    assert (got, grad) == (pytest.approx(loss, rel=1e-5), pytest.approx(gradient, rel=1e-5, abs=1e-7))
    assert (sums["pg_clipfrac"], sums["pg_clipfrac_lower"]) == (clipped, bounded)
    assert sums["ppo_kl"] == pytest.approx(-math.log(ratio), rel=1e-5, abs=1e-6)
    assert sums["entropy"] == pytest.approx(0.7)


def test_the_entropy_bonus_lowers_the_loss() -> None:
    assert one_token(1.0, 2.0, entropy_coeff=0.5)[0] == pytest.approx(-2.0 - 0.35)


def test_a_token_of_weight_zero_counts_nowhere() -> None:
    def run(log_prob: float) -> tuple[float, dict[str, float]]:
        values = torch.tensor([-1.0, log_prob], requires_grad=True)
        inputs = LossInputs(
            values, torch.tensor([-1.5, -1.0]), torch.tensor([1.0, -9.0]), torch.tensor([1.0, 0.0]), values
        )
        outputs = policy_loss(inputs, ActorSpec(ppo_mini_batch_size=1))
        return outputs.loss.item(), {name: float(value) for name, value in outputs.sums.items()}

    assert run(-1.0) == run(5.0)


def test_kl_estimators() -> None:
    log_probs, ref = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0])
    d = torch.tensor([0.5, -1.0])
    for kind, expected in {
        "kl": d,
        "abs": d.abs(),
        "mse": d.square() / 2,
        "low_var_kl": torch.exp(-d) - 1 + d,
    }.items():
        torch.testing.assert_close(kl_penalty(log_probs, ref, kind), expected)
    assert kl_penalty(torch.tensor([-40.0]), torch.tensor([-1.0]), "low_var_kl").item() == 10.0
    with pytest.raises(ValueError, match="none of kl, abs, mse, low_var_kl"):
        kl_penalty(log_probs, ref, "k3")


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", (1 + 2 + 3 + 4) / 10),
        ("seq-mean-token-sum", (1 + 2 + 3 + 4) / 4),
        ("seq-mean-token-mean", (1 + (2 + 3 + 4) / 3) / 4),
        ("seq-mean-token-sum-norm", (1 + 2 + 3 + 4) / 4 / 20),
    ],
)
def test_aggregation_divides_by_counts_of_the_whole_mini_batch(mode: str, expected: float) -> None:
    """This rank has sequences of 1 and 3 tokens; the mini-batch has 10 tokens in 4 sequences."""
    counts = LossCounts(tokens=10, sequences=4, max_response_length=20)
    loss = (torch.tensor([1.0, 2.0, 3.0, 4.0]) * token_weights(mode, [1, 3], counts)).sum()
    assert loss.item() == pytest.approx(expected)


def test_an_empty_mini_batch_has_finite_weights() -> None:
    assert token_weights("seq-mean-token-mean", [], LossCounts(0, 0, 20)).shape == (0,)
    with pytest.raises(ValueError, match="none of token-mean"):
        token_weights("mean", [1], LossCounts(1, 1, 1))
