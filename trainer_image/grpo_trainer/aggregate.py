"""How token losses become one number: a weight for each token, from counts over the whole mini-batch.

Every mode is linear in the token losses, so the loss is their weighted sum, and a micro-batch, pack or rank adds its
own part of it whatever the cut.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class LossCounts:
    """Sizes of a mini-batch over all ranks, samples left out of the loss not counted."""

    tokens: float
    """Response tokens."""
    sequences: float
    """Responses."""
    max_response_length: int
    """`data.maxResponseLength`, the constant that `seq-mean-token-sum-norm` divides by (Dr.GRPO)."""


def token_weights(mode: str, lengths: list[int], counts: LossCounts) -> torch.Tensor:
    """(sum of lengths,) float32 weights of the tokens of sequences with these lengths, in order.

    With N tokens and S sequences in the mini-batch and T tokens in a sequence: `token-mean` 1/N, `token-sum` 1,
    `seq-mean-token-sum` 1/S, `seq-mean-token-mean` 1/(S T), `seq-mean-token-sum-norm` 1/(S maxResponseLength). verl:
    `agg_loss`.
    """
    of_sequence = {
        "token-mean": lambda _: 1.0 / max(counts.tokens, 1.0),
        "token-sum": lambda _: 1.0,
        "seq-mean-token-sum": lambda _: 1.0 / max(counts.sequences, 1.0),
        "seq-mean-token-mean": lambda length: 1.0 / (max(counts.sequences, 1.0) * max(length, 1)),
        "seq-mean-token-sum-norm": lambda _: 1.0 / (max(counts.sequences, 1.0) * counts.max_response_length),
    }
    if mode not in of_sequence:
        raise ValueError(f"loss_agg_mode {mode!r} is none of {', '.join(of_sequence)}")
    weights = torch.tensor([of_sequence[mode](length) for length in lengths], dtype=torch.float32)
    return weights.repeat_interleave(torch.tensor(lengths, dtype=torch.long))
