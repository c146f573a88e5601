"""The policy as FSDP sees it: a packed row in, log-probabilities and entropy of its response tokens out."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from grpo_trainer.attention import Whole
from grpo_trainer.errors import UserInputError
from grpo_trainer.packing import Pack

CHUNK_ROWS = 1024
"""Rows of logits that exist at a time on an accelerator: 1024 x 151,936 x 4 bytes = 0.6 GB."""

_LOGIT_CHANGES = {"final_logit_softcapping": None, "logits_scaling": 1.0, "logit_scale": 1.0}
"""Config entries by which some families change logits after the LM head, with the value that changes nothing."""


class PolicyModel(nn.Module):
    """A Transformers causal language model. Logits are made at predicting positions only, a chunk at a time."""

    def __init__(self, lm: nn.Module, *, temperature: float, entropy_grad: bool = False):
        """Raises UserInputError for a family whose logits are not simply the LM head's output."""
        super().__init__()
        for name, neutral in _LOGIT_CHANGES.items():
            if getattr(lm.config, name, neutral) not in (neutral, None):
                raise UserInputError(
                    "UnsupportedModel", f"model.path: {type(lm).__name__} has {name}, which the trainer does not apply"
                )
        self.lm = lm
        self.temperature = temperature
        self.entropy_grad = entropy_grad

    def forward(self, pack: Pack) -> tuple[torch.Tensor, torch.Tensor]:
        """((R,), (R,)) float32: log-probability of each target under the tempered distribution, and its entropy in
        nats."""
        eager = self.lm.config._attn_implementation == "eager"
        hidden = self.lm.base_model(
            input_ids=pack.input_ids,
            position_ids=pack.position_ids,
            attention_mask=_additive(pack.dense_mask, self.lm.dtype) if eager else None,
            use_cache=False,
            pack=Whole(pack),
        ).last_hidden_state[0]
        rows = hidden[pack.predict]
        recompute = torch.is_grad_enabled() and rows.is_cuda
        parts = []
        for chunk, targets in zip(rows.split(CHUNK_ROWS), pack.targets.split(CHUNK_ROWS), strict=True):
            parts.append(
                checkpoint(self._head, chunk, targets, use_reentrant=False) if recompute else self._head(chunk, targets)
            )
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def _head(self, rows: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.lm.get_output_embeddings()(rows).float()
        if self.temperature != 1.0:
            logits = logits / self.temperature
        log_probs = torch.log_softmax(logits, dim=-1)
        taken = log_probs.gather(-1, targets[:, None])[:, 0]
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.entropy_grad):
            entropy = -(log_probs.exp() * log_probs).sum(-1)
        return taken, entropy


def _additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)
