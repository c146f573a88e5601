"""Our advantages, losses and gradients against verl 0.9.1's own functions.

Where we differ on purpose a test says how; docs/algorithms.md says why.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from conformance_cases import BATCHES, HORIZON, Batch, chosen, close, make_spec, our_loss

core_algos = pytest.importorskip("verl.trainer.ppo.core_algos")

from verl.trainer.ppo import rollout_corr_helper  # noqa: E402
from verl.workers.config import ActorConfig  # noqa: E402
from verl.workers.config.actor import PolicyLossConfig  # noqa: E402

from grpo_api.spec.training import ActorSpec, PolicyLossSpec, RolloutCorrectionSpec  # noqa: E402
from grpo_trainer.advantages import compute_advantages  # noqa: E402
from grpo_trainer.aggregate import LossCounts, token_weights  # noqa: E402
from grpo_trainer.kl import kl_penalty  # noqa: E402
from grpo_trainer.kl_control import KlInReward  # noqa: E402
from grpo_trainer.losses import LossOutputs  # noqa: E402
from grpo_trainer.rollout_correction import Mismatch, importance_weights, kept  # noqa: E402
from grpo_trainer.sample import Sample  # noqa: E402

# Advantages

GROUPS = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
REWARDS = {
    "normal": torch.randn(12, generator=torch.Generator().manual_seed(0)).tolist(),
    "0 and 1": [1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0],
    "large": [1e4, 2e4, -3e4, 5e3, 1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 1e4],
    "tiny deviations": [1e-7, 0.0, 0.0, 0.0, 1e-6, 0.0, 0.0, 1e-6, 1e-5, 0.0, 1e-5, 1e-5],
    "negative": [-1.0, -2.0, -3.0, -4.0, -1.0, 0.0, -1.0, 0.0, -5.0, -5.0, -5.0, -4.0],
    "two best equal": [1, 1, 0, 0, 2, 1, 1, 1, 0, 0, 1, 0],
    "an all-equal group": [0.5, 0.5, 0.5, 0.5, 1, 0, 1, 0, 3, 1, 2, 0],
}
LENGTHS = [1, 12, 5, 7, 3, 3, 2, 9, 12, 1, 1, 4]


def config(**given: object) -> SimpleNamespace:
    return SimpleNamespace(gamma=0.97, get=given.get)


def padded() -> torch.Tensor:
    return (torch.arange(HORIZON)[None] < torch.tensor(LENGTHS)[:, None]).float()


def verl_advantages(name: str, rewards: list[float], by_std: bool = True) -> list[torch.Tensor]:
    mask = padded().double()
    token_rewards = torch.zeros_like(mask)
    token_rewards[torch.arange(len(LENGTHS)), torch.tensor(LENGTHS) - 1] = torch.tensor(rewards, dtype=torch.float64)
    if name == "gae":
        gamma, lam = torch.tensor(0.97), torch.tensor(0.9)
        advantages, returns = core_algos.compute_gae_advantage_return(token_rewards, token_rewards, mask, gamma, lam)
        advantages = returns - token_rewards  # before whitening
    else:
        more = {"index": np.array(GROUPS), "config": config(norm_adv_by_std_in_grpo=by_std)}
        if name in ("grpo", "gdpo"):
            more["norm_adv_by_std_in_grpo"] = by_std
        function = core_algos.get_adv_estimator_fn(name)
        advantages, _ = function(token_level_rewards=token_rewards, response_mask=mask, **more)
    return [row[:length] for row, length in zip(advantages, LENGTHS, strict=True)]


def our_advantages(name: str, rewards: list[float], **algorithm: object) -> list[torch.Tensor]:
    spec = make_spec(advEstimator=name, gamma=0.97, lam=0.9, **algorithm)
    values = compute_advantages(spec, rewards, GROUPS, LENGTHS)
    return [
        torch.tensor(value, dtype=torch.float64).expand(length) for value, length in zip(values, LENGTHS, strict=True)
    ]


@pytest.mark.parametrize("rewards", REWARDS)
@pytest.mark.parametrize(
    ("ours", "verls", "by_std"),
    [
        ("grpo", "grpo", True),
        ("grpo", "grpo", False),
        ("dr_grpo", "grpo", False),
        ("grpo", "grpo_vectorized", True),
        ("rloo", "rloo", True),
        ("rloo", "rloo_vectorized", True),
        ("opo", "opo", True),
        ("gpg", "gpg", True),
        ("grpo_passk", "grpo_passk", True),
        ("grpo_passk", "grpo_passk", False),
        ("gdpo", "gdpo", True),
        ("gdpo", "gdpo", False),
        ("reinforce_plus_plus", "reinforce_plus_plus", True),
        ("reinforce_plus_plus_baseline", "reinforce_plus_plus_baseline", True),
        ("gae", "gae", True),
    ],
)
def test_advantages(ours: str, verls: str, by_std: bool, rewards: str) -> None:
    values = [float(value) for value in REWARDS[rewards]]
    got, want = our_advantages(ours, values, normAdvByStdInGrpo=by_std), verl_advantages(verls, values, by_std)
    whitened = ours in ("gdpo", "reinforce_plus_plus_baseline")
    for index, (one, other) in enumerate(zip(got, want, strict=True)):
        if whitened and rewards == "an all-equal group" and index < 4:
            assert (
                one.abs().max() == 0 < other.abs().max()
            )  # verl moves it by the step's mean; there is nothing to learn
            continue
        close(one, other, f"{ours} {rewards} response {index}")


@pytest.mark.parametrize("rewards", REWARDS)
def test_remax(rewards: str) -> None:
    mask = padded().double()
    values, baselines = [float(value) for value in REWARDS[rewards]], REWARDS["normal"]
    token_rewards = torch.zeros_like(mask)
    token_rewards[torch.arange(len(LENGTHS)), torch.tensor(LENGTHS) - 1] = torch.tensor(values, dtype=torch.float64)
    theirs, _ = core_algos.compute_remax_outcome_advantage(
        token_rewards, torch.tensor(baselines, dtype=torch.float64), mask
    )
    ours = compute_advantages(make_spec(advEstimator="remax"), values, GROUPS, LENGTHS, baselines=baselines)
    for one, other, length in zip(ours, theirs, LENGTHS, strict=True):
        close(torch.tensor(one), other[:length], f"remax {rewards}")


@pytest.mark.parametrize("name", ["grpo", "rloo", "opo", "gpg"])
def test_a_lone_response_gets_its_raw_score_from_verl_and_0_from_us(name: str) -> None:
    function = core_algos.get_adv_estimator_fn(name)
    theirs, _ = function(
        token_level_rewards=torch.tensor([[0.0, 5.0]]),
        response_mask=torch.ones(1, 2),
        index=np.array([0]),
        config=config(),
    )
    assert theirs[0, 0] == pytest.approx(5.0, rel=1e-5)
    assert compute_advantages(make_spec(advEstimator=name), [5.0], [0], [2]) == [0.0]


@pytest.mark.parametrize("by_std", [True, False])
def test_several_reward_functions(by_std: bool) -> None:
    """The first group's rewards are equal as sums, and the functions' scores are not: there is something to compare. Of
    the second group one function has nothing to say."""
    first, second = REWARDS["normal"].copy(), [float(value) for value in REWARDS["0 and 1"]]
    first[:4], second[:4] = [1.0, 0.5, 0.0, 0.0], [0.0, 2.0, 4.0, 4.0]
    second[4:8] = [1.0] * 4
    mask = padded()
    want, _ = core_algos.compute_gdpo_outcome_advantage(
        torch.zeros_like(mask),
        mask,
        np.array(GROUPS),
        norm_adv_by_std_in_grpo=by_std,
        config=config(gdpo_reward_keys=["first", "second"], gdpo_reward_weights=[2.0, 0.5]),
        non_tensor_batch={"first": np.array(first), "second": np.array(second)},
        batch={"prompts": torch.zeros(12, 1), "attention_mask": torch.cat([torch.ones(12, 1), mask], 1).long()},
    )
    spec = make_spec(advEstimator="gdpo", normAdvByStdInGrpo=by_std)
    one = spec.reward.functions[0]
    spec.reward.functions = [one.model_copy(update={"weight": 2.0}), one.model_copy(update={"weight": 0.5})]
    rewards = [2 * a + 0.5 * b for a, b in zip(first, second, strict=True)]
    got = compute_advantages(spec, rewards, GROUPS, LENGTHS, function_scores=[first, second])
    close(torch.tensor(got), want[:, 0], "gdpo")


# Losses

MODES = ["vanilla", "gspo", "cispo", "sapo", "geo_mean", "dppo_tv", "dppo_kl", "gpg"]
AGGREGATIONS = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
CLIPS = {
    "defaults": {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0},
    "clip-higher": {"clip_ratio_low": 0.1, "clip_ratio_high": 0.28, "clip_ratio_c": 10.0},
    "narrow": {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4, "clip_ratio_c": 1.5, "tau_pos": 2.0, "tau_neg": 3.0},
}


def verl_loss(
    batch: Batch,
    mode: str,
    aggregation: str,
    clip: dict[str, float],
    *,
    rollout: torch.Tensor | None = None,
    kl: float = 0.0,
    **more: float,
) -> tuple[torch.Tensor, torch.Tensor, dict]:
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        loss_agg_mode=aggregation,
        policy_loss=PolicyLossConfig(loss_mode=mode, **more),
        **clip,
    )
    log_probs = batch.log_probs.clone().requires_grad_()
    loss, metrics = core_algos.get_policy_loss_fn(mode)(
        batch.old_log_probs, log_probs, batch.advantages, batch.mask, aggregation, config, rollout
    )
    if kl:
        divergence = core_algos.kl_penalty(log_probs, batch.ref_log_probs, "low_var_kl")
        loss = loss + kl * core_algos.agg_loss(divergence, batch.mask, aggregation)
    loss.backward()
    return loss.detach(), log_probs.grad, metrics


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("mode", MODES)
def test_losses_and_gradients(mode: str, name: str, clip: str) -> None:
    batch, options = BATCHES[name], CLIPS[clip]
    for aggregation in AGGREGATIONS:
        actor = ActorSpec(ppo_mini_batch_size=1, policy_loss={"loss_mode": mode}, loss_agg_mode=aggregation, **options)
        want, want_gradient, metrics = verl_loss(batch, mode, aggregation, options)
        outputs, gradient = our_loss(batch, actor)
        what = f"{mode}, {name}, {clip}, {aggregation}"
        close(outputs.loss.detach(), want, what)
        close(gradient, torch.where(batch.mask.bool(), want_gradient, 0.0), f"gradient of {what}")
        for metric in ("ppo_kl", "pg_clipfrac", "pg_clipfrac_lower"):
            if metric == "ppo_kl" and name == "ratios beyond e^20":
                continue  # ours is held within 20 with every loss, verl's with some
            if f"actor/{metric}" in metrics:
                ours = outputs.sums[metric] / batch.mask.sum()
                assert ours.item() == pytest.approx(metrics[f"actor/{metric}"], rel=1e-4, abs=1e-5), f"{metric}: {what}"


@pytest.mark.parametrize("name", ["random", "random, larger", "advantages by token"])
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "geo_mean"])
def test_rollout_weights_multiply_the_policy_loss_and_not_the_kl(mode: str, name: str) -> None:
    """The KL is aggregated as the spec says, also where the policy loss has a mode of its own. How `geo_mean` is
    weighted differs, as docs/algorithms.md says."""
    batch, options = BATCHES[name], CLIPS["clip-higher"]
    rollout = 2 * torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(8))
    for aggregation in AGGREGATIONS:
        actor = ActorSpec(
            ppo_mini_batch_size=1, policy_loss={"loss_mode": mode}, loss_agg_mode=aggregation, use_kl_loss=True,
            kl_loss_coef=0.3, **options,
        )  # fmt: skip
        want, want_gradient, _ = verl_loss(batch, mode, aggregation, options, rollout=rollout, kl=0.3)
        outputs, gradient = our_loss(batch, actor, reference=True, rollout=rollout)
        what = f"{mode}, {name}, {aggregation}"
        close(outputs.loss.detach(), want, what)
        close(gradient, torch.where(batch.mask.bool(), want_gradient, 0.0), f"gradient of {what}")


# Losses that choose tokens: verl within a micro-batch, which is the whole mini-batch here


@pytest.fixture
def alone():
    """A process group of this process, as the choice is made over all ranks."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


HELD = [name for name in BATCHES if name != "ratios beyond e^20"]
"""Ours hold the ratio's logarithm within 20 with every loss, verl's with these two do not."""


def compare(batch: Batch, mode: str, aggregation: str, more: dict[str, float], what: str) -> tuple[LossOutputs, dict]:
    policy = PolicyLossSpec(loss_mode=mode, **more)
    actor = ActorSpec(ppo_mini_batch_size=1, policy_loss=policy, loss_agg_mode=aggregation)
    clip = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2}
    want, want_gradient, metrics = verl_loss(batch, mode, aggregation, clip, **more)
    outputs, gradient = our_loss(batch, actor)
    close(outputs.loss.detach(), want, what)
    close(gradient, torch.where(batch.mask.bool(), want_gradient, 0.0), f"gradient of {what}")
    return outputs, metrics


@pytest.mark.parametrize("ratio", [0.0002, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("name", [name for name in HELD if name not in ("all advantages equal", "one response")])
def test_kl_cov(name: str, ratio: float, alone) -> None:
    for aggregation in AGGREGATIONS:
        more = {"kl_cov_ratio": ratio, "ppo_kl_coef": 0.7}
        compare(BATCHES[name], "kl_cov", aggregation, more, f"{name}, {ratio}, {aggregation}")


@pytest.mark.parametrize("name", ["all advantages equal", "one response"])
def test_kl_cov_without_covariance_chooses_nothing(name: str, alone) -> None:
    """Every covariance is 0; verl penalises tokens that its sort happens to put first."""
    policy = PolicyLossSpec(loss_mode="kl_cov", kl_cov_ratio=0.2)
    assert not chosen(BATCHES[name], ActorSpec(ppo_mini_batch_size=1, policy_loss=policy)).any()


@pytest.mark.parametrize("bounds", [(1.0, 5.0), (-0.5, 0.5), (-100.0, 100.0)])
@pytest.mark.parametrize("name", HELD)
def test_clip_cov_where_all_within_the_bounds_are_chosen(name: str, bounds: tuple[float, float], alone) -> None:
    batch = BATCHES[name]
    more = {"clip_cov_ratio": 1.0, "clip_cov_lb": bounds[0], "clip_cov_ub": bounds[1]}
    for aggregation in AGGREGATIONS:
        outputs, metrics = compare(batch, "clip_cov", aggregation, more, f"{name}, {bounds}, {aggregation}")
        ours = outputs.sums["pg_clipfrac"] / batch.mask.sum()
        assert ours.item() == pytest.approx(metrics["actor/pg_clipfrac"], abs=1e-6)


@pytest.mark.parametrize("ratio", [0.0002, 0.1, 0.3])
@pytest.mark.parametrize("name", HELD)
def test_clip_cov_chooses_as_many_as_verl_and_of_the_same(name: str, ratio: float, alone, monkeypatch) -> None:
    """verl's chance is told which of the tokens that it has found to take: those that ours takes."""
    batch, more = BATCHES[name], {"clip_cov_lb": -1.0, "clip_cov_ub": 5.0}
    actor = ActorSpec(ppo_mini_batch_size=1, policy_loss={"loss_mode": "clip_cov"} | more, loss_agg_mode="token-mean")
    actor.policy_loss.clip_cov_ratio = 1.0
    fit = chosen(batch, actor)
    actor.policy_loss.clip_cov_ratio = ratio
    ours = chosen(batch, actor)
    assert not (ours & ~fit).any()
    assert ours.sum() == min(max(int(ratio * len(ours)), 1), fit.sum())
    first = ours[fit]
    order = torch.cat([first.nonzero()[:, 0], (~first).nonzero()[:, 0]])
    monkeypatch.setattr(core_algos.torch, "randperm", lambda count: order if count == len(order) else 1 / 0)
    compare(batch, "clip_cov", "token-mean", more | {"clip_cov_ratio": ratio}, f"{name}, {ratio}")


@pytest.mark.parametrize("kind", ["kl", "abs", "mse", "low_var_kl", "kl+", "abs+", "low_var_kl+"])
@pytest.mark.parametrize("name", BATCHES)
def test_kl(kind: str, name: str) -> None:
    batch = BATCHES[name]
    ours, theirs = batch.log_probs.clone().requires_grad_(), batch.log_probs.clone().requires_grad_()
    got = kl_penalty(ours, batch.ref_log_probs, kind)
    want = core_algos.kl_penalty(theirs, batch.ref_log_probs, kind)
    (got * batch.mask).sum().backward()
    (want * batch.mask).sum().backward()
    close(got.detach(), want.detach(), f"{kind} {name}")
    close(ours.grad, theirs.grad, f"gradient of {kind} {name}")


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("thresholds", [(None, 2.0), (None, 1.01), (0.5, 2.0), (0.99, 5.0)])
@pytest.mark.parametrize("name", BATCHES)
def test_rollout_correction(level: str, thresholds: tuple[float | None, float], name: str, alone) -> None:
    batch, (lower, upper) = BATCHES[name], thresholds
    log_ratio = batch.log_probs - batch.old_log_probs
    spec = RolloutCorrectionSpec(rollout_is=level, rollout_is_threshold=upper, rollout_is_threshold_lower=lower)
    ours = importance_weights(batch.flat(log_ratio), list(batch.lengths), spec)
    try:
        theirs, metrics = rollout_corr_helper.compute_rollout_correction_weights(
            log_ratio, batch.mask, level, upper if lower is None else f"{lower}_{upper}"
        )
    except ZeroDivisionError:  # verl's effective sample size, where it has masked everything
        assert ours.abs().max() == 0
        return
    close(ours, batch.flat(theirs), f"{level} {thresholds} {name}")
    mismatch = Mismatch(torch.device("cpu"))
    for one, weights in zip(batch.flat(log_ratio).split(5), ours.split(5), strict=True):
        mismatch.add(one, weights)
    found = mismatch.reduce()
    for metric in ("rollout_is_mean", "rollout_is_eff_sample_size"):
        assert found[metric] == pytest.approx(metrics[metric], rel=1e-4, abs=1e-6), metric
    if name != "ratios beyond e^20":  # where verl's is beyond all bounds
        theirs = rollout_corr_helper.compute_offpolicy_metrics(batch.log_probs, batch.old_log_probs, batch.mask)
        assert found["rollout_k3_kl"] == pytest.approx(theirs["k3_kl"], rel=1e-4)


REJECTIONS = [
    (option, thresholds)
    for option in sorted(rollout_corr_helper.SUPPORTED_ROLLOUT_RS_OPTIONS)
    for thresholds in ((None, 2.0), (None, 1.01), (0.2, 1.5), (None, 0.3), (None, 300.0))
    if thresholds[1] > 1 or not option.endswith("k1")  # below 1 a ratio's upper bound is below its lower
]


@pytest.mark.parametrize(("option", "thresholds"), REJECTIONS)
@pytest.mark.parametrize("name", BATCHES)
def test_rejection(option: str, thresholds: tuple[float | None, float], name: str) -> None:
    batch, (lower, upper) = BATCHES[name], thresholds
    log_ratio = batch.log_probs - batch.old_log_probs
    spec = RolloutCorrectionSpec(rollout_rs=option, rollout_rs_threshold=upper, rollout_rs_threshold_lower=lower)
    given = f"{lower}_{upper}" if lower and option.endswith("k1") else str(upper)
    theirs, _ = rollout_corr_helper.compute_rollout_rejection_mask(log_ratio, batch.mask, option, given)
    ours = kept(batch.flat(log_ratio), list(batch.lengths), spec)
    assert torch.equal(ours.float(), batch.flat(theirs)), f"{option} {thresholds} {name}"


def test_adaptive_kl_coefficient() -> None:
    spec = make_spec(useKlInReward=True, klCtrl={"type": "adaptive", "klCoef": 0.2, "targetKl": 0.05, "horizon": 50})
    ours, theirs = KlInReward(spec.algorithm), core_algos.AdaptiveKLController(0.2, 0.05, 50)
    batch = BATCHES["random"]
    for shift in (0.0, 0.3, -2.0, 5.0):
        log_probs = batch.log_probs + shift
        samples = [
            Sample([1], [1] * n, 0, old_log_probs=old[:n], ref_log_probs=ref[:n])
            for old, ref, n in zip(log_probs, batch.ref_log_probs, batch.lengths, strict=True)
        ]
        penalties, _ = ours.penalties(samples)
        divergence = core_algos.kl_penalty(log_probs, batch.ref_log_probs, "kl")
        close(torch.cat(penalties), batch.flat(theirs.value * divergence), f"penalty at {shift}")
        current = core_algos.verl_F.masked_mean(divergence, batch.mask, axis=-1).mean().item()
        theirs.update(current_kl=current, n_steps=len(samples))
        assert ours.coefficient == pytest.approx(theirs.value, rel=1e-5)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", BATCHES)
def test_aggregation_over_two_ranks(aggregation: str, name: str) -> None:
    """verl's global counts: every rank's loss times the number of ranks, averaged, is the whole."""
    batch = BATCHES[name]
    half = max(1, len(batch.lengths) // 2)
    counts = LossCounts(float(sum(batch.lengths)), float(len(batch.lengths)), HORIZON)
    ours = theirs = 0.0
    for rows in (slice(0, half), slice(half, None)):
        mask, costs = batch.mask[rows], batch.log_probs[rows]
        if not len(mask):
            continue
        theirs = theirs + 0.5 * core_algos.agg_loss(
            costs, mask, aggregation, dp_size=2, batch_num_tokens=counts.tokens, global_batch_size=counts.sequences
        )
        ours = ours + (costs[mask.bool()] * token_weights(aggregation, list(batch.lengths[rows]), counts)).sum()
    close(ours, theirs, f"{aggregation} {name}")
