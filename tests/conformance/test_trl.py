"""Our losses and gradients against TRL 1.16's own `GRPOTrainer._compute_loss`, run without a model."""

import warnings
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance_cases import BATCHES, HORIZON, Batch, close, our_loss
from grpo_api.spec.training import ActorSpec

pytest.importorskip("trl")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from trl.trainer.grpo_trainer import GRPOTrainer


def trl_loss(batch: Batch, loss_type: str, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and gradient of one generation batch in one accumulation step, on one process."""
    log_probs = batch.log_probs.clone().requires_grad_()
    settings = {"epsilon_low": 0.2, "epsilon_high": 0.28, "beta": 0.0, "importance_sampling_level": "token"} | options
    arguments = {
        "delta": None, "use_bias_correction_kl": False, "steps_per_generation": 1,
        "sapo_temperature_pos": 2.0, "sapo_temperature_neg": 3.0,
    }  # fmt: skip
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (log_probs, torch.zeros_like(log_probs), None),
        loss_type=loss_type,
        args=SimpleNamespace(**arguments | {name: options[name] for name in options if name in arguments}),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=HORIZON,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        aux_loss_enabled=False,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
        **{name: value for name, value in settings.items() if name not in arguments},
    )
    ids = torch.zeros(batch.mask.shape, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1] + 1,
        "completion_ids": ids,
        "completion_mask": batch.mask,
        "advantages": batch.advantages[:, 0],
        "old_per_token_logps": batch.old_log_probs,
        "ref_per_token_logps": batch.ref_log_probs,
        "num_items_in_batch": batch.mask.sum(),
    }
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    return loss.detach(), log_probs.grad


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grpo": ({"loss_type": "grpo"}, {"loss_agg_mode": "seq-mean-token-mean"}),
    "bnpo": ({"loss_type": "bnpo"}, {"loss_agg_mode": "token-mean"}),
    "dapo": ({"loss_type": "dapo"}, {"loss_agg_mode": "token-mean"}),
    "dr_grpo": ({"loss_type": "dr_grpo"}, {"loss_agg_mode": "seq-mean-token-sum-norm"}),
    "gspo": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
        {"loss_agg_mode": "seq-mean-token-mean", "policy_loss": {"loss_mode": "gspo"}},
    ),
    # TRL bounds the ratio itself, from above only
    "cispo": (
        {"loss_type": "cispo", "epsilon_high": 1.28},
        {"policy_loss": {"loss_mode": "cispo"}, "clip_ratio_low": 1.0},
    ),
    "sapo": ({"loss_type": "sapo"}, {"policy_loss": {"loss_mode": "sapo"}, "tau_pos": 2.0, "tau_neg": 3.0}),
    "KL": (
        {"loss_type": "dapo", "beta": 0.3},
        {"use_kl_loss": True, "kl_loss_coef": 0.3},
    ),
}  # fmt: skip
NOT_TRLS = ("ratios of e^8 and more", "ratios beyond e^20", "advantages by token")
"""Ratios that TRL lets grow without bound; ours, like verl's, stop at e^20, and k3 at 10. Its advantages are those of
whole responses."""


@pytest.mark.parametrize("name", [name for name in BATCHES if name not in NOT_TRLS])
@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients(case: str, name: str) -> None:
    theirs, ours = CASES[case]
    options = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 100.0} | ours  # TRL has no dual clip
    want, want_gradient = trl_loss(BATCHES[name], **theirs)
    outputs, gradient = our_loss(
        BATCHES[name], ActorSpec(ppo_mini_batch_size=1, **options), reference="use_kl_loss" in ours
    )
    close(outputs.loss.detach(), want, f"{case}, {name}")
    close(gradient, want_gradient * BATCHES[name].mask, f"gradient of {case}, {name}")
