"""Padded batches, as verl and TRL take them, and the same tokens without padding, as ours does."""

from dataclasses import dataclass, replace

import torch

from grpo_api.job import GRPOJobSpec
from grpo_api.spec.training import ActorSpec
from grpo_trainer.aggregate import LossCounts, token_weights
from grpo_trainer.losses import LossInputs, LossOutputs, compute_loss
from grpo_trainer.policy_losses import MiniBatch, find_loss

HORIZON = 12
"""Padded length, and `data.maxResponseLength`."""


@dataclass(frozen=True)
class Batch:
    """B ragged responses of at most HORIZON tokens; tensors (B, HORIZON) float32."""

    log_probs: torch.Tensor
    old_log_probs: torch.Tensor
    ref_log_probs: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(self.mask.sum(-1).int().tolist())

    def flat(self, padded: torch.Tensor) -> torch.Tensor:
        return padded[self.mask.bool()]


def _random(seed: int, spread: float = 0.3, responses: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    lengths = torch.randint(1, HORIZON + 1, (responses,), generator=generator)
    mask = (torch.arange(HORIZON)[None] < lengths[:, None]).float()
    log_probs = -0.02 - 2 * normal(responses, HORIZON).abs()

    def near(scale: float) -> torch.Tensor:
        return torch.clamp(log_probs + scale * normal(responses, HORIZON), max=-1e-3)

    return Batch(log_probs, near(spread), near(spread), normal(responses, 1).expand(-1, HORIZON).clone(), mask)


def _batches() -> dict[str, Batch]:
    plain = _random(1)
    far = _random(2, spread=8.0)
    zero = _random(3)
    edge = _random(4, responses=4)
    by_token = torch.randn(8, HORIZON, generator=torch.Generator().manual_seed(7))
    ratios = torch.tensor([0.8, 1.2, 1.0, 3.0])[:, None].log()  # on the bounds themselves
    return {
        "random": plain,
        "random, larger": _random(5, spread=1.0, responses=32),
        "on-policy": replace(plain, old_log_probs=plain.log_probs.clone()),
        "ratios of e^8 and more": far,
        "ratios beyond e^20": replace(far, old_log_probs=(far.log_probs - 30).clone()),
        "advantage 0 in half": replace(zero, advantages=zero.advantages * (torch.arange(8) % 2)[:, None]),
        "ratios at the clip's bounds": replace(edge, old_log_probs=edge.log_probs - ratios),
        "one token each": replace(plain, mask=(torch.arange(HORIZON) == 0).float().expand(8, -1).clone()),
        "one response": _random(6, responses=1),
        "advantages by token": replace(plain, advantages=by_token),
        "all advantages equal": replace(plain, advantages=torch.full_like(plain.advantages, -0.5)),
    }


BATCHES = _batches()


def our_loss(
    batch: Batch, actor: ActorSpec, *, reference: bool = False, rollout: torch.Tensor | None = None
) -> tuple[LossOutputs, torch.Tensor]:
    """Our loss of the batch as one mini-batch, and its gradient to `log_probs`, padded; with a KL to the reference, and
    with the rollout correction's weights (B, HORIZON)."""
    log_probs = batch.log_probs.clone().requires_grad_()
    lengths = list(batch.lengths)
    counts = LossCounts(float(sum(lengths)), float(len(lengths)), HORIZON)
    weights = token_weights(actor.loss_agg_mode, lengths, counts)
    own = find_loss(actor.policy_loss).aggregation
    flat = batch.flat(log_probs)
    inputs = LossInputs(
        log_probs=flat,
        old_log_probs=batch.flat(batch.old_log_probs),
        advantages=batch.flat(batch.advantages),
        lengths=batch.lengths,
        weights=weights,
        policy_weights=weights if own is None else token_weights(own, lengths, counts),
        entropy=torch.zeros_like(flat),
        ref_log_probs=batch.flat(batch.ref_log_probs) if reference else None,
        rollout_weights=None if rollout is None else batch.flat(rollout),
        chosen=chosen(batch, actor),
    )
    outputs = compute_loss(inputs, actor)
    outputs.loss.backward()
    return outputs, log_probs.grad


def chosen(batch: Batch, actor: ActorSpec) -> torch.Tensor | None:
    """The tokens that a loss chooses within the mini-batch, which this batch is."""
    choose = find_loss(actor.policy_loss).choose
    if choose is None:
        return None
    tokens = [batch.flat(one) for one in (batch.log_probs, batch.old_log_probs, batch.advantages)]
    return choose(MiniBatch(*tokens, batch.lengths, tuple(map(str, range(len(batch.lengths)))), 0), actor)


def make_spec(**algorithm: object) -> GRPOJobSpec:
    return GRPOJobSpec.model_validate(
        {
            "model": {"path": "/model"},
            "data": {"train": {"files": ["/rows.jsonl"]}, "trainBatchSize": 4, "maxResponseLength": HORIZON},
            "reward": {"functions": [{"name": "exact", "builtin": {"rule": "exact_match"}}]},
            "rollout": {"n": 4},
            "actor": {"ppoMiniBatchSize": 4},
            "trainer": {"totalSteps": 1},
            "algorithm": algorithm,
        }
    )


def close(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    """Equal to 1e-5, of the largest value where that is above 1."""
    scale = max(1.0, want.abs().max().item()) if want.numel() else 1.0
    torch.testing.assert_close(
        got.double(), want.double(), atol=1e-5 * scale, rtol=0, msg=lambda text: f"{what}: {text}"
    )
