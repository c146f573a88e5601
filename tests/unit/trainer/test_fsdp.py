"""The FSDP actor on 1 and 2 gloo ranks: gradients do not depend on how a batch is cut, and equal plain autograd's."""

import hashlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from grpo_api.spec.training import ActorSpec
from grpo_trainer import packing
from grpo_trainer.errors import UserInputError
from grpo_trainer.sample import Sample
from grpo_trainer.workers.fsdp import FsdpActor
from tests.unit.trainer.trainer_support import make_model, make_samples, make_spec, on_ranks, plain_log_probs

CPU = torch.device("cpu")
OBJECTIVES: dict[str, dict[str, Any]] = {
    "token-mean, on-policy": {},
    "token-mean, KL, entropy": {
        "useKlLoss": True, "klLossCoef": 0.3, "entropyCoeff": 0.1, "clipRatioLow": 0.1, "clipRatioHigh": 0.3,
    },
    "seq-mean-token-sum": {"lossAggMode": "seq-mean-token-sum", "useKlLoss": True, "klLossType": "mse"},
    "seq-mean-token-mean": {"lossAggMode": "seq-mean-token-mean", "useKlLoss": True, "klLossType": "abs"},
    "seq-mean-token-sum-norm": {"lossAggMode": "seq-mean-token-sum-norm", "useKlLoss": True, "klLossType": "kl"},
    "gspo": {"policyLoss": {"lossMode": "gspo"}, "lossAggMode": "seq-mean-token-mean", "clipRatio": 0.9},
    "cispo": {"policyLoss": {"lossMode": "cispo"}, "lossAggMode": "token-sum", "useKlLoss": True, "klLossType": "kl+"},
    "sapo": {"policyLoss": {"lossMode": "sapo"}, "tauPos": 0.7, "tauNeg": 0.9, "entropyCoeff": 0.1},
    "geo_mean": {"policyLoss": {"lossMode": "geo_mean"}, "clipRatio": 0.9, "useKlLoss": True},
    "dppo_tv": {"policyLoss": {"lossMode": "dppo_tv"}, "clipRatio": 0.01, "clipRatioC": 20.0},
    "dppo_kl": {"policyLoss": {"lossMode": "dppo_kl"}, "clipRatio": 0.01, "clipRatioC": 20.0},
    "vanilla, rollout correction": {"clipRatio": 0.9},
    "gpg": {"policyLoss": {"lossMode": "gpg"}},
    "kl_cov": {"policyLoss": {"lossMode": "kl_cov", "klCovRatio": 0.2, "ppoKlCoef": 0.7}},
    "clip_cov, all within the bounds": {
        "policyLoss": {"lossMode": "clip_cov", "clipCovRatio": 1.0, "clipCovLb": 0.1, "clipCovUb": 2.0},
    },
    "clip_cov, some by chance": {
        "policyLoss": {"lossMode": "clip_cov", "clipCovRatio": 0.1, "clipCovLb": -3.0}, "clipRatio": 0.9,
    },
}  # fmt: skip
CUTS: dict[str, dict[str, Any]] = {
    "one row": {},
    "micro 1": {"ppoMicroBatchSizePerGpu": 1},
    "micro 2": {"ppoMicroBatchSizePerGpu": 2},
    "micro 4": {"ppoMicroBatchSizePerGpu": 4},
    "budget of 17 tokens": {"ppoMaxTokenLenPerGpu": 17},
}


ROLLOUT_WEIGHT_MAX = 1.5
ALGORITHM = {
    "rolloutCorrection": {
        "rolloutIsThreshold": ROLLOUT_WEIGHT_MAX, "rolloutRs": "seq_sum_k1", "rolloutRsThresholdLower": 0.9,
    }
}  # fmt: skip
"""Log ratios of 0.7 and -0.7 in turn add up to 0.7 in responses of odd length, which are rejected: e^-0.7 is below 0.9.
"""


def batch(objective: str) -> list[Sample]:
    """The objective named vanilla has log-probabilities of the rollout engine, too, e^0.7 and e^-0.7 off in turn. On
    policy old log-probabilities count for nothing: half of the samples have none, the others' are far off."""
    samples = make_samples(off_policy=True, reference="on-policy" not in objective)
    if "on-policy" in objective:
        for sample in samples[::2]:
            sample.old_log_probs = None
    if objective == "vanilla, rollout correction":
        for sample in samples:
            turns = torch.tensor([0.7, -0.7] * 5)[: len(sample.response_ids)]
            sample.rollout_log_probs = (sample.old_log_probs - turns).tolist()
    return samples


def _gspo(new: torch.Tensor, old: torch.Tensor, a: float, actor: ActorSpec) -> tuple[torch.Tensor, int]:
    s = torch.exp((new - old).mean())  # equation 7; its gradient is the same at every token of the sequence
    held = s.clamp(1 - actor.clip_ratio, 1 + actor.clip_ratio)
    cost = torch.maximum(-a * s, -a * held)
    return cost.expand(len(new)), len(new) * int(-a * held > -a * s)


def _cispo(new: torch.Tensor, old: torch.Tensor, a: float, actor: ActorSpec) -> tuple[torch.Tensor, int]:
    ratio = (new - old).exp().detach()
    outside = (ratio < 1 - actor.clip_ratio) | (ratio > 1 + actor.clip_ratio)
    return -a * new * ratio.clamp(1 - actor.clip_ratio, 1 + actor.clip_ratio), int(outside.sum())


def _sapo(new: torch.Tensor, old: torch.Tensor, a: float, actor: ActorSpec) -> tuple[torch.Tensor, int]:
    tau = actor.tau_pos if a > 0 else actor.tau_neg
    return -a * 4 / tau / (1 + torch.exp(-tau * ((new - old).exp() - 1))), 0


def _geo_mean(new: torch.Tensor, old: torch.Tensor, a: float, actor: ActorSpec) -> tuple[torch.Tensor, int]:
    logs = new - old
    held = logs.clamp(max=actor.clip_ratio) if a > 0 else logs.clamp(min=-actor.clip_ratio)
    outside = logs.abs() > actor.clip_ratio
    return -a * held.mean().exp().expand(len(new)), int(outside.sum()) if a > 0 else 0


def _dppo(new: torch.Tensor, old: torch.Tensor, a: float, actor: ActorSpec) -> tuple[torch.Tensor, int]:
    p, q = old.exp(), new.detach().exp()
    if actor.policy_loss.loss_mode == "dppo_tv":
        far = (q - p).abs() > actor.clip_ratio
    else:
        far = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log() > actor.clip_ratio
    left_out = far & (torch.sign(q - p) == (1 if a > 0 else -1))
    return -a * (q / p).clamp(max=actor.clip_ratio_c) * new * ~left_out, int(left_out.sum())


def _held_back(lm: LlamaForCausalLM, samples: list[Sample], actor: ActorSpec) -> list[set[int]]:
    """For each sample the positions of its tokens that `kl_cov` or `clip_cov` chooses, by lists and sorting."""
    found = []
    for number, s in enumerate(samples):
        new = plain_log_probs(lm, s)[0].detach()
        key = hashlib.blake2b(f"0/{s.group}/{s.response_ids}".encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key))
        draws = torch.rand(len(new), generator=generator, dtype=torch.float64).tolist()
        for position, (now, draw) in enumerate(zip(new.tolist(), draws, strict=True)):
            old = now if s.old_log_probs is None else s.old_log_probs[position].item()
            found.append((number, position, now, old, s.advantage, draw))
    mean_log_prob = sum(one[2] for one in found) / len(found)
    mean_advantage = sum(one[4] for one in found) / len(found)
    chosen = actor.policy_loss
    if chosen.loss_mode == "kl_cov":
        size = int(len(found) * chosen.kl_cov_ratio)
        ranked = sorted(found, key=lambda one: -(one[4] - mean_advantage) * (one[2] - mean_log_prob))
    else:
        size = int(len(found) * chosen.clip_cov_ratio)
        low, high, ranked = 1 - actor.clip_ratio, 1 + actor.clip_ratio, []
        for one in sorted(found, key=lambda one: -one[5]):
            ratio, a = math.exp(one[2] - one[3]), one[4]
            free = -a * min(max(ratio, low), high) <= -a * ratio
            fits = chosen.clip_cov_lb < (a - mean_advantage) * (one[2] - mean_log_prob) < chosen.clip_cov_ub
            ranked += [one] if free and fits else []
    return [{one[1] for one in ranked[:size] if one[0] == number} for number in range(len(samples))]


def _covariance(
    new: torch.Tensor, old: torch.Tensor, a: float, actor: ActorSpec, chosen: set[int]
) -> tuple[torch.Tensor, int]:
    ratio, here = (new - old).exp(), torch.tensor([t in chosen for t in range(len(new))])
    if actor.policy_loss.loss_mode == "kl_cov":
        return -a * ratio + actor.policy_loss.ppo_kl_coef * (new - old).abs() * here, 0
    cost = torch.maximum(-a * ratio, -a * ratio.clamp(1 - actor.clip_ratio, 1 + actor.clip_ratio))
    return cost * ~here, len(chosen)


OTHER_LOSSES = {
    "gspo": _gspo,
    "cispo": _cispo,
    "sapo": _sapo,
    "geo_mean": _geo_mean,
    "dppo_tv": _dppo,
    "dppo_kl": _dppo,
    "gpg": lambda new, old, a, actor: (-a * new, 0),
}


def plain_gradients(model: Path, objective: str) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """The objective written out for one sequence at a time, by plain autograd on the whole model."""
    actor = make_spec(model, actor=OBJECTIVES[objective]).actor
    lm = LlamaForCausalLM.from_pretrained(model)
    samples = [s for s in batch(objective) if s.mask and s.response_ids]
    tokens, sequences = sum(len(s.response_ids) for s in samples), len(samples)
    loss, clipped, entropies, kl_loss = torch.zeros(()), 0, 0.0, 0.0

    def aggregated(values: torch.Tensor) -> torch.Tensor:
        """A response's part of the mini-batch's number."""
        return {
            "token-mean": values.sum() / tokens,
            "token-sum": values.sum(),
            "seq-mean-token-sum": values.sum() / sequences,
            "seq-mean-token-mean": values.mean() / sequences,
            "seq-mean-token-sum-norm": values.sum() / sequences / 9,
        }[actor.loss_agg_mode]

    held = _held_back(lm, samples, actor) if objective.startswith(("kl_cov", "clip_cov")) else []
    for number, s in enumerate(samples):
        log_probs, every = plain_log_probs(lm, s)
        old = log_probs.detach() if "on-policy" in objective else s.old_log_probs
        ratio = (log_probs - old).exp()
        low = 1 - (actor.clip_ratio_low or actor.clip_ratio)
        high = 1 + (actor.clip_ratio_high or actor.clip_ratio)
        mode = actor.policy_loss.loss_mode
        if mode == "vanilla":
            token_losses = []
            for r in ratio:
                cost = torch.maximum(-s.advantage * r, -s.advantage * r.clamp(low, high))
                clipped += int((-s.advantage * r.clamp(low, high) > -s.advantage * r).item())
                token_losses.append(torch.minimum(cost, torch.tensor(-3.0 * s.advantage)) if s.advantage < 0 else cost)
            token_loss = torch.stack(token_losses)
        elif held:
            token_loss, count = _covariance(log_probs, old, s.advantage, actor, held[number])
            clipped += count
        else:
            token_loss, count = OTHER_LOSSES[mode](log_probs, old, s.advantage, actor)
            clipped += count
        if s.rollout_log_probs is not None:
            weights = (old - torch.tensor(s.rollout_log_probs)).exp().clamp(max=ROLLOUT_WEIGHT_MAX)
            token_loss = token_loss * weights * (len(s.response_ids) % 2 == 0)
        if actor.use_kl_loss:
            d = log_probs - s.ref_log_probs
            kl = {
                "kl": d, "abs": d.abs(), "mse": d * d / 2, "low_var_kl": (torch.exp(-d) + d - 1).clamp(-10, 10)
            }  # fmt: skip
            kl_loss += aggregated(kl[actor.kl_loss_type.removesuffix("+")]).item()
            learned = "mse" if actor.kl_loss_type == "kl+" else actor.kl_loss_type
            token_loss = token_loss + actor.kl_loss_coef * kl[learned]
        entropy = torch.distributions.Categorical(logits=every).entropy()
        entropies += entropy.sum().item()
        token_loss = token_loss - actor.entropy_coeff * entropy
        if mode in ("sapo", "geo_mean"):  # means over responses of means over tokens, beside the other terms' own mode
            policy = OTHER_LOSSES[mode](log_probs, old, s.advantage, actor)[0]
            loss = loss + policy.mean() / sequences
            token_loss = token_loss - policy
        loss = loss + aggregated(token_loss)
    loss.backward()
    metrics = {"pg_clipfrac": clipped / tokens, "entropy": entropies / tokens}
    if actor.use_kl_loss:
        metrics["kl_loss"] = kl_loss
    return {name: parameter.grad for name, parameter in lm.named_parameters()}, metrics


def gradients(rank: int, world_size: int, model: str) -> dict[str, Any]:
    """Gradients and metrics of each objective and cut; rank 1 holds a third of the samples."""
    results: dict[str, Any] = {}
    for objective, options in OBJECTIVES.items():
        samples = batch(objective)
        own = samples if world_size == 1 else (samples[:8], samples[8:])[rank]
        for cut, cut_options in CUTS.items():
            for reshard in (False, True) if "policyLoss" not in options else (False,):
                spec = make_spec(Path(model), actor=options | cut_options, algorithm=ALGORITHM)
                actor = FsdpActor(
                    spec, rank=rank, world_size=world_size, device=CPU, total_updates=1, reshard_after_forward=reshard
                )
                grads: dict[str, torch.Tensor] = {}

                def record(actor: FsdpActor = actor, grads: dict[str, torch.Tensor] = grads) -> None:
                    for name, parameter in actor.model.named_parameters():
                        grads[name.removeprefix("lm.")] = parameter.grad.full_tensor().clone()

                actor.spec.actor.grad_clip = 1e6
                actor.optimizer.step = record
                metrics = actor.update(own, on_policy="on-policy" in objective)
                results[f"{objective} | {cut} | reshard {reshard}"] = (grads, metrics)
    return results


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def rollout_kl() -> float:
    """k3 over the tokens of trained samples, whose ratios are e^0.7 and e^-0.7 in turn."""
    logs = [(0.7, -0.7)[t % 2] for s in make_samples() if s.trainable for t in range(len(s.response_ids))]
    return sum(math.exp(d) - d - 1 for d in logs) / len(logs)


@pytest.mark.parametrize("world_size", [1, 2])
def test_gradients_do_not_depend_on_the_cut_and_equal_plain_autograd(model: Path, world_size: int) -> None:
    per_rank = on_ranks(world_size, gradients, str(model))
    for key, (grads, metrics) in per_rank[0].items():
        expected, expected_metrics = plain_gradients(model, key.split(" | ")[0])
        assert grads.keys() == expected.keys()
        largest = max(1.0, *(gradient.abs().max().item() for gradient in expected.values()))
        for name in expected:
            torch.testing.assert_close(
                grads[name],
                expected[name],
                atol=1e-5 * largest,
                rtol=1e-4,
                msg=lambda m, at=f"{key} {name}": f"{at}: {m}",
            )
        norm = torch.stack([g.norm() for g in expected.values()]).norm().item()
        assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4), key
        for name, value in expected_metrics.items():
            assert metrics[name] == pytest.approx(value, rel=1e-4), (key, name)
        for other in per_rank[1:]:
            assert other[key][1] == metrics, key
        if "on-policy" in key:  # whatever the cut
            assert (metrics["pg_clipfrac"], metrics["pg_clipfrac_lower"], metrics["ppo_kl"]) == (0, 0, 0), key
        if "rollout" in key:
            assert metrics["rollout_log_prob_diff_mean"] == pytest.approx(0.7, rel=1e-4)
            # Of 40 trained tokens 20 are in responses of even length, one half below the threshold.
            total = 10 * (ROLLOUT_WEIGHT_MAX + math.exp(-0.7))
            squares = 10 * (ROLLOUT_WEIGHT_MAX**2 + math.exp(-1.4))
            assert metrics["rollout_is_mean"] == pytest.approx(total / 40, rel=1e-4)
            assert metrics["rollout_is_eff_sample_size"] == pytest.approx(total**2 / (40 * squares), rel=1e-4)
            assert metrics["rollout_k3_kl"] == pytest.approx(rollout_kl(), rel=1e-4)
    assert any(metrics["pg_clipfrac"] > 0 for _, metrics in per_rank[0].values())
    assert any(metrics["pg_clipfrac_lower"] > 0 for _, metrics in per_rank[0].values())


def train(rank: int, world_size: int, model: str) -> dict[str, Any]:
    """Log-probabilities before and after updates, the parameters handed to a rollout engine, odd batches."""
    spec = make_spec(Path(model), actor={"useKlLoss": True, "optim": {"lr": 1e-3, "lrWarmupSteps": 1}})
    actor = FsdpActor(spec, rank=rank, world_size=world_size, device=CPU, total_updates=5)
    samples = make_samples()
    own = samples[rank::world_size]
    before = actor.compute_log_probs(own)
    for sample, ref in zip(own, actor.compute_log_probs(own, reference=True), strict=True):
        sample.ref_log_probs = ref
        sample.rollout_log_probs = [-1.0] * len(sample.response_ids)
    first = {name: tensor.clone() for name, tensor in actor.full_parameters()}
    metrics = [actor.update(own), actor.update(own)]
    after = actor.compute_log_probs(own)
    second = {name: tensor.clone() for name, tensor in actor.full_parameters()}
    # All samples on rank 0, then none anywhere.
    lonely = actor.update(own if rank == 0 else [])
    nothing = actor.update([Sample(s.prompt_ids, s.response_ids, s.group, mask=False) for s in own])
    third = {name: tensor.clone() for name, tensor in actor.full_parameters()}
    broken = Sample([1], [2, 3], 0, advantage=float("inf"), ref_log_probs=torch.zeros(2))
    not_finite = actor.update([broken])
    fourth = {name: tensor.clone() for name, tensor in actor.full_parameters()}
    return {
        "before": before, "after": after, "ref": actor.compute_log_probs(own, reference=True), "metrics": metrics,
        "parameters": [first, second, third, fourth], "lonely": lonely, "nothing": nothing, "not_finite": not_finite,
    }  # fmt: skip


@pytest.mark.parametrize("world_size", [1, 2])
def test_log_probs_updates_and_parameters(model: Path, world_size: int, tmp_path: Path) -> None:
    per_rank = on_ranks(world_size, train, str(model))
    lm = LlamaForCausalLM.from_pretrained(model)
    samples = make_samples()
    for rank, result in enumerate(per_rank):
        with torch.no_grad():
            expected = [plain_log_probs(lm, s)[0] for s in samples[rank::world_size]]
        for got, ref, want in zip(result["before"], result["ref"], expected, strict=True):
            torch.testing.assert_close(got, want, atol=1e-5, rtol=0)
            torch.testing.assert_close(ref, want, atol=1e-5, rtol=0)
    first, second, third, fourth = per_rank[0]["parameters"]
    torch.testing.assert_close(first, dict(lm.named_parameters()), rtol=0, atol=0)
    lm.load_state_dict(second, strict=False)
    for rank, result in enumerate(per_rank):
        with torch.no_grad():
            expected = [plain_log_probs(lm, s)[0] for s in samples[rank::world_size]]
        torch.testing.assert_close(result["after"], expected, atol=1e-5, rtol=0)
        for other, own in zip(result["parameters"], (first, second, third, fourth), strict=True):
            torch.testing.assert_close(other, own, rtol=0, atol=0)

    warm_up, full = per_rank[0]["metrics"]
    assert (warm_up["lr"], full["lr"]) == (0.0, 1e-3)
    assert warm_up["update_skipped"] == 0
    assert warm_up["grad_norm"] > 0
    assert warm_up["kl_loss"] == pytest.approx(0.0, abs=1e-6)
    trained = [s for s in samples if s.trainable]
    with torch.no_grad():
        lm.load_state_dict(first, strict=False)
        differences = torch.cat([(plain_log_probs(lm, s)[0] + 1.0).abs() for s in trained])
    assert warm_up["rollout_log_prob_diff_mean"] == pytest.approx(differences.mean().item(), rel=1e-4)
    assert not torch.equal(first["model.norm.weight"], second["model.norm.weight"])

    assert per_rank[0]["lonely"]["grad_norm"] > 0
    for odd in ("nothing", "not_finite"):
        assert all(result[odd]["update_skipped"] == 1 for result in per_rank)
    torch.testing.assert_close(fourth, third, rtol=0, atol=0)


def test_what_cannot_be_loaded_is_the_users_fault(tmp_path: Path, model: Path) -> None:
    from grpo_trainer.workers.model_loading import load_model

    with pytest.raises(UserInputError, match="nowhere") as missing:
        load_model(make_spec(tmp_path / "nowhere").model, CPU)
    assert missing.value.exit_code == 65
    assert missing.value.reason == "ModelNotLoaded"
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 8}')
    with pytest.raises(UserInputError, match="could not be loaded"):
        load_model(make_spec(tmp_path).model, CPU)
    with pytest.raises(UserInputError, match="set float32"):
        load_model(make_spec(model, model={"dtype": "bfloat16"}).model, CPU)


def masks_made(rank: int, world_size: int, model: str) -> int:
    """For a row of three groups, through two decoder layers."""
    made, original = [], packing._block_mask

    def counted(block: packing.Block, device: torch.device) -> torch.Tensor:
        made.append(block)
        return original(block, device)

    packing._block_mask = counted
    actor = FsdpActor(make_spec(Path(model)), rank=rank, world_size=world_size, device=CPU, total_updates=1)
    actor.compute_log_probs(make_samples())
    return len(made)


def test_a_rows_masks_are_made_once_for_all_layers(model: Path) -> None:
    assert on_ranks(1, masks_made, str(model)) == [3]
