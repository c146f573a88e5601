"""Variable-length packing: a micro-batch is one row without padding, and a group's prompt is in it once.

A row is a chain of blocks, one for each group: [prompt][response 1][response 2]... Positions restart after the prompt
for each response, which sees the prompt and itself only. The first token of a response is predicted at the prompt's
last position, and a response's last token, from which nothing is predicted, is left out of the row.
"""

from dataclasses import dataclass
from functools import cached_property

import torch

from grpo_trainer.sample import Sample


@dataclass(frozen=True)
class Block:
    """Where a group lies in its row."""

    start: int
    prompt_length: int
    response_lengths: tuple[int, ...]
    """Tokens of each response in the row: T - 1."""

    @property
    def stop(self) -> int:
        return self.start + self.prompt_length + sum(self.response_lengths)


@dataclass(frozen=True)
class Pack:
    """One row of L tokens that predicts R response tokens."""

    input_ids: torch.Tensor
    """(1, L)"""
    position_ids: torch.Tensor
    """(1, L)"""
    predict: torch.Tensor
    """(R,) positions in the row whose next token is a response token."""
    targets: torch.Tensor
    """(R,) those tokens."""
    blocks: tuple[Block, ...]
    samples: tuple[int, ...]
    """Index of each response's sample in the list that was packed, in the order of `predict`."""
    lengths: tuple[int, ...]
    """T of each."""

    @property
    def num_tokens(self) -> int:
        return self.input_ids.shape[1]

    @cached_property
    def block_masks(self) -> list[torch.Tensor]:
        """For each block, (B, B) booleans: True where a row's token sees a column's."""
        return [_block_mask(block, self.input_ids.device) for block in self.blocks]

    @cached_property
    def dense_mask(self) -> torch.Tensor:
        """(1, 1, L, L) booleans, all blocks together."""
        return torch.block_diag(*self.block_masks).bool()[None, None]

    @cached_property
    def segments(self) -> "Segments":
        return Segments.of(self)


@dataclass(frozen=True)
class Segments:
    """The row as sequences for a variable-length attention kernel, whose causal mask is aligned to the last key: each
    prompt with itself as keys, and each response with its prompt and itself as keys."""

    key_index: torch.Tensor
    """(K,) position in the row of each key, a prompt repeated for each of its responses."""
    cu_query: torch.Tensor
    """(S + 1,) int32 bounds of the segments' queries."""
    cu_key: torch.Tensor
    """(S + 1,) int32 bounds of their keys."""
    max_query: int
    max_key: int

    @staticmethod
    def of(pack: Pack) -> "Segments":
        keys: list[torch.Tensor] = []
        queries: list[int] = []
        for block in pack.blocks:
            prompt = torch.arange(block.start, block.start + block.prompt_length)
            keys.append(prompt)
            queries.append(block.prompt_length)
            at = block.start + block.prompt_length
            for length in block.response_lengths:
                if length:
                    keys.append(torch.cat([prompt, torch.arange(at, at + length)]))
                    queries.append(length)
                at += length
        lengths = [len(index) for index in keys]
        device = pack.input_ids.device

        def bounds(sizes: list[int]) -> torch.Tensor:
            return torch.tensor([0, *sizes]).cumsum(0).to(device, torch.int32)

        return Segments(torch.cat(keys).to(device), bounds(queries), bounds(lengths), max(queries), max(lengths))


def _block_mask(block: Block, device: torch.device) -> torch.Tensor:
    lengths = torch.tensor([block.prompt_length, *block.response_lengths], device=device)
    part = torch.arange(len(lengths), device=device).repeat_interleave(lengths)
    same_or_prompt = (part[:, None] == part[None, :]) | (part[None, :] == 0)
    return same_or_prompt & torch.ones_like(same_or_prompt).tril()


def pack_samples(
    samples: list[Sample], *, max_samples: int | None = None, max_tokens: int | None = None, share_prompts: bool = True
) -> list[Pack]:
    """Rows of at most `max_samples` responses or `max_tokens` tokens (one response at least), group by group.

    Samples without response tokens are in no row.
    """
    order: dict[object, list[int]] = {}
    for index, sample in enumerate(samples):
        if sample.response_ids:
            order.setdefault((sample.group, tuple(sample.prompt_ids)), []).append(index)
    packs: list[list[list[int]]] = []
    tokens = count = 0
    for members in order.values():
        open_block = False
        for index in members:
            sample = samples[index]
            response = len(sample.response_ids) - 1
            cost = response + (0 if open_block and share_prompts else len(sample.prompt_ids))
            full = (max_samples is not None and count >= max_samples) or (
                max_tokens is not None and count > 0 and tokens + cost > max_tokens
            )
            if full or not packs:
                packs.append([])
                tokens = count = 0
                open_block = False
                cost = response + len(sample.prompt_ids)
            if open_block and share_prompts:
                packs[-1][-1].append(index)
            else:
                packs[-1].append([index])
            open_block = True
            tokens += cost
            count += 1
    return [_pack(samples, blocks) for blocks in packs]


def _pack(samples: list[Sample], groups: list[list[int]]) -> Pack:
    ids: list[int] = []
    positions: list[int] = []
    predict: list[int] = []
    targets: list[int] = []
    blocks: list[Block] = []
    for members in groups:
        prompt = samples[members[0]].prompt_ids
        start, last = len(ids), len(ids) + len(prompt) - 1
        ids += prompt
        positions += range(len(prompt))
        for index in members:
            response = samples[index].response_ids
            predict.append(last)
            predict += range(len(ids), len(ids) + len(response) - 1)
            targets += response
            ids += response[:-1]
            positions += range(len(prompt), len(prompt) + len(response) - 1)
        blocks.append(Block(start, len(prompt), tuple(len(samples[index].response_ids) - 1 for index in members)))
    members = [index for group in groups for index in group]
    return Pack(
        input_ids=torch.tensor([ids]),
        position_ids=torch.tensor([positions]),
        predict=torch.tensor(predict),
        targets=torch.tensor(targets),
        blocks=tuple(blocks),
        samples=tuple(members),
        lengths=tuple(len(samples[index].response_ids) for index in members),
    )


def idle_pack(token: int = 0) -> Pack:
    """A row that predicts one token for no sample: what a rank computes where others have more rows than it."""
    pack = _pack([Sample(prompt_ids=[token], response_ids=[token], group=0)], [[0]])
    return Pack(pack.input_ids, pack.position_ids, pack.predict, pack.targets, pack.blocks, samples=(), lengths=())


def to_device(pack: Pack, device: torch.device) -> Pack:
    """The same row on another device."""
    return Pack(
        input_ids=pack.input_ids.to(device),
        position_ids=pack.position_ids.to(device),
        predict=pack.predict.to(device),
        targets=pack.targets.to(device),
        blocks=pack.blocks,
        samples=pack.samples,
        lengths=pack.lengths,
    )
