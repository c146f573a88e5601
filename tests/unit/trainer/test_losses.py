import math
from typing import get_args

import pytest
import torch

from grpo_api.spec.training import ActorSpec, LossMode
from grpo_trainer.aggregate import LossCounts, token_weights
from grpo_trainer.errors import SpecError
from grpo_trainer.kl import kl_penalty
from grpo_trainer.losses import LossInputs, compute_loss
from grpo_trainer.policy_losses import LOSSES


def one_token(
    ratio: float, advantage: float, *, chosen: bool = False, **actor: object
) -> tuple[float, float, dict[str, float]]:
    """Loss of one token, its gradient to the log-probability, and the sums."""
    log_prob = torch.tensor([math.log(ratio) - 1.0], requires_grad=True)
    entropy = torch.tensor([0.7], requires_grad=True)
    one = torch.ones(1)
    inputs = LossInputs(
        log_prob,
        torch.tensor([-1.0]),
        torch.tensor([advantage]),
        (1,),
        one,
        one,
        entropy,
        chosen=torch.tensor([chosen]),
    )
    outputs = compute_loss(inputs, ActorSpec(ppo_mini_batch_size=1, **actor))
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


@pytest.mark.parametrize(
    ("mode", "ratio", "advantage", "loss", "gradient", "clipped", "more"),
    [
        ("gspo", 1.3, 2.0, -2.5, 0.0, 1, {}),
        ("gspo", 1.3, -2.0, 2.6, 2.6, 0, {}),
        ("cispo", 1.3, 2.0, -2.5 * (math.log(1.3) - 1), -2.5, 1, {}),  # clipped, and still a gradient
        ("cispo", 0.5, 2.0, -1.8 * (math.log(0.5) - 1), -1.8, 1, {}),
        ("sapo", 1.0, 2.0, -2.0 * 0.5 * 4 / 3, -2.0, 0, {"tau_pos": 3.0}),  # slope 1 at ratio 1, whatever tau
        ("sapo", 1.0, -2.0, 2.0 * 0.5 * 4 / 5, 2.0, 0, {"tau_neg": 5.0}),
        ("geo_mean", math.exp(0.3), 2.0, -2.0 * math.exp(0.25), 0.0, 1, {}),
        ("geo_mean", math.exp(-0.3), 2.0, -2.0 * math.exp(-0.3), -2.0 * math.exp(-0.3), 1, {}),
        ("gpg", 1.3, 2.0, -2.0 * (math.log(1.3) - 1), -2.0, 0, {}),
        # old probability 1/e = 0.368; 1.3 times that is 0.110 more, 0.0247 nats as coins
        ("dppo_tv", 1.3, 2.0, 0.0, 0.0, 1, {"clip_ratio_high": 0.11}),
        ("dppo_tv", 1.3, 2.0, -2.6 * (math.log(1.3) - 1), -2.6, 0, {"clip_ratio_high": 0.111}),
        ("dppo_tv", 1.3, -2.0, 2.6 * (math.log(1.3) - 1), 2.6, 0, {"clip_ratio_low": 0.01}),
        ("dppo_kl", 1.3, 2.0, 0.0, 0.0, 1, {"clip_ratio_high": 0.0245}),
        ("dppo_kl", 1.3, 2.0, -2.2 * (math.log(1.3) - 1), -2.2, 0, {"clip_ratio_high": 0.025, "clip_ratio_c": 1.1}),
    ],
)
def test_other_policy_losses(
    mode: str, ratio: float, advantage: float, loss: float, gradient: float, clipped: int, more: dict[str, float]
) -> None:
    options = {"clip_ratio_low": 0.1, "clip_ratio_high": 0.25} | more
    got, grad, sums = one_token(ratio, advantage, policy_loss={"loss_mode": mode}, **options)
    assert (got, grad) == (pytest.approx(loss, rel=1e-5), pytest.approx(gradient, rel=1e-5, abs=1e-7))
    assert sums["pg_clipfrac"] == clipped


@pytest.mark.parametrize(
    ("mode", "ratio", "chosen", "loss", "gradient", "clipped"),
    [
        ("clip_cov", 1.1, True, 0.0, 0.0, 1),
        ("clip_cov", 1.1, False, -2.2, -2.2, 0),
        ("clip_cov", 1.5, False, -2.4, 0.0, 0),  # by the clip, which verl does not count here
        ("kl_cov", 1.1, True, -2.2 + 0.7 * math.log(1.1), -2.2 + 0.7, 0),
        ("kl_cov", 0.5, True, -1.0 + 0.7 * math.log(2), -1.0 - 0.7, 0),
        ("kl_cov", 9.0, False, -18.0, -18.0, 0),  # nothing is clipped
    ],
)
def test_losses_that_choose_tokens(
    mode: str, ratio: float, chosen: bool, loss: float, gradient: float, clipped: int
) -> None:
    policy = {"loss_mode": mode, "ppo_kl_coef": 0.7}
    got, grad, sums = one_token(ratio, 2.0, chosen=chosen, policy_loss=policy)
    assert (got, grad) == (pytest.approx(loss, rel=1e-5), pytest.approx(gradient, rel=1e-5, abs=1e-7))
    assert sums["pg_clipfrac"] == clipped


@pytest.mark.parametrize("mode", LOSSES.names())
def test_on_policy_nothing_is_clipped(mode: str) -> None:
    _, gradient, sums = one_token(1.0, -2.0, policy_loss={"loss_mode": mode}, clip_ratio=1e-6, tau_neg=1.0)
    assert (sums["pg_clipfrac"], sums["pg_clipfrac_lower"], sums["ppo_kl"]) == (0, 0, 0)
    assert gradient == pytest.approx(2.0)  # all of them are REINFORCE there


def test_sequence_losses_see_whole_sequences_only() -> None:
    """Two sequences of 2 and 1 tokens; the second one's ratio must not reach the first."""

    def gradient(last: float, mode: str) -> list[float]:
        log_probs = torch.tensor([-1.0, -1.4, last], requires_grad=True)
        weights = torch.full((3,), 0.5)
        inputs = LossInputs(log_probs, torch.full((3,), -1.0), torch.ones(3), (2, 1), weights, weights, log_probs)
        compute_loss(inputs, ActorSpec(ppo_mini_batch_size=1, policy_loss={"loss_mode": mode})).loss.backward()
        return log_probs.grad.tolist()

    assert gradient(-1.1, "gspo")[:2] == pytest.approx([-0.5 * math.exp(-0.2)] * 2)
    assert gradient(-1.1, "geo_mean")[:2] == pytest.approx([-0.5 * math.exp(-0.2)] * 2)
    for mode in ("gspo", "geo_mean"):
        assert gradient(-1.1, mode)[:2] == gradient(-3.0, mode)[:2]


def test_an_unknown_loss_lists_the_names() -> None:
    assert LOSSES.names() == sorted(get_args(LossMode))
    with pytest.raises(SpecError, match="'ppo'; use one of cispo, clip_cov, dppo_kl, "):
        LOSSES.find("ppo")


def test_the_entropy_bonus_lowers_the_loss() -> None:
    assert one_token(1.0, 2.0, entropy_coeff=0.5)[0] == pytest.approx(-2.0 - 0.35)


@pytest.mark.parametrize("advantage", [9.0, -9.0])
def test_a_token_of_weight_zero_counts_nowhere(advantage: float) -> None:
    def run(log_prob: float) -> tuple[float, dict[str, float]]:
        values = torch.tensor([-1.0, log_prob], requires_grad=True)
        weights = torch.tensor([1.0, 0.0])
        inputs = LossInputs(
            values, torch.tensor([-1.5, -1.0]), torch.tensor([1.0, advantage]), (1, 1), weights, weights, values
        )
        outputs = compute_loss(inputs, ActorSpec(ppo_mini_batch_size=1))
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
    with pytest.raises(ValueError, match="use kl, abs, mse or low_var_kl, or kl\\+"):
        kl_penalty(log_probs, ref, "k3")


@pytest.mark.parametrize("kind", ["kl", "abs", "low_var_kl"])
def test_straight_through_kl_has_the_value_of_one_and_the_gradient_of_k2(kind: str) -> None:
    log_probs, ref = torch.tensor([-1.0, -2.0], requires_grad=True), torch.tensor([-1.5, -1.0])
    value = kl_penalty(log_probs, ref, f"{kind}+")
    torch.testing.assert_close(value, kl_penalty(log_probs, ref, kind))
    value.sum().backward()
    assert log_probs.grad.tolist() == [0.5, -1.0]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", (1 + 2 + 3 + 4) / 10),
        ("token-sum", 1 + 2 + 3 + 4),
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
