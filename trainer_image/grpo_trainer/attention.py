"""Attention over a packed row, given to Transformers under a name of its own.

On CPU each block is one call of torch's scaled_dot_product_attention with its own small mask, so that a row's cost
grows with its tokens and not with their square. On CUDA in half precision it is torch's variable-length flash kernel.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from grpo_trainer.errors import UserInputError
from grpo_trainer.packing import Pack

PACKED_ATTENTION = "grpo_packed"


def _refuse(what: str) -> UserInputError:
    return UserInputError(
        "UnsupportedModel",
        f"the model's attention uses {what}, which packed rows do not support; set model.attnImplementation: eager",
    )


class Whole:
    """A pack on its way through the decoder layers. FSDP copies dataclasses among a layer's arguments when it casts
    them, and a copy has lost what its pack computed once for all layers: masks, and on GPUs indices, whose transfer
    makes the host wait for the device."""

    def __init__(self, pack: Pack):
        self.pack = pack


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    pack: Whole | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Attention of one row. query (1, Hq, L, D), key and value (1, Hkv, L, D) -> (1, L, Hq, D).

    Raises UserInputError for a model whose attention is not plain softmax over all of a sequence.
    """
    assert pack is not None, "packed attention is called by PolicyModel alone"
    row = pack.pack
    if softcap is not None:
        raise _refuse("softcapping")
    if s_aux is not None:
        raise _refuse("attention sinks")
    if sliding_window is not None and row.segments.max_key > sliding_window:
        raise _refuse(f"a sliding window of {sliding_window} tokens, less than the longest sequence")
    grouped = query.shape[1] != key.shape[1]
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        from torch.nn.attention.varlen import varlen_attn

        segments = row.segments
        repeat = query.shape[1] // key.shape[1]
        gathered = [
            tensor[0].transpose(0, 1).index_select(0, segments.key_index).repeat_interleave(repeat, dim=1)
            for tensor in (key, value)
        ]
        output = varlen_attn(
            query[0].transpose(0, 1).contiguous(),
            *gathered,
            segments.cu_query,
            segments.cu_key,
            segments.max_query,
            segments.max_key,
            scale=scaling,
            window_size=(-1, 0),
        )
        return output[None], None
    outputs = [
        scaled_dot_product_attention(
            query[:, :, block.start : block.stop],
            key[:, :, block.start : block.stop],
            value[:, :, block.start : block.stop],
            attn_mask=mask,
            scale=scaling,
            enable_gqa=grouped,
        )
        for block, mask in zip(row.blocks, row.block_masks, strict=True)
    ]
    return torch.cat(outputs, dim=2).transpose(1, 2), None


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
