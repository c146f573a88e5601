"""The usable prompts of one data source, known before any model is loaded."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from grpo_api.spec.model_data import DataSource, DataSpec, MixedSource
from grpo_trainer.data_sources import load_rows
from grpo_trainer.errors import UserInputError
from grpo_trainer.prompts import Prompt, PromptEncoder

log = logging.getLogger(__name__)

PREFLIGHT_ROWS = 200_000
"""Rows checked before training at most (about a minute); later ones are checked when they are reached."""
_CHUNK = 1000


class Dataset:
    """Rows of one source as prompts. Making it reads and checks them: raises UserInputError (`BadData`)."""

    def __init__(self, spec: DataSpec, source: DataSource | MixedSource, tokenizer: Any, field: str) -> None:
        """`field` is where the spec names the source, for messages."""
        self._spec = spec
        self._rows = load_rows(source, field)
        self.name = self._rows.name
        self._encoder = PromptEncoder(spec, tokenizer, self._rows, field if isinstance(source, MixedSource) else None)
        self.largest_token = 0
        """The greatest token of the rows checked."""
        self._overlong = np.zeros(len(self._rows), dtype=bool)
        self.kept = self._preflight()
        """Positions of the usable rows, int64."""
        if not len(self.kept):
            raise UserInputError(
                "BadData",
                f"{field}: no prompt of {self.name} fits data.maxPromptLength ({spec.max_prompt_length}): raise it",
            )

    def __len__(self) -> int:
        """Rows, with those that are not usable."""
        return len(self._rows)

    @property
    def overlong(self) -> int:
        """Rows met so far whose prompt is longer than `data.maxPromptLength`: dropped or cut."""
        return int(self._overlong.sum())

    def prompts(self, indices: Sequence[int]) -> list[Prompt]:
        """Prompts of the rows at these positions, by the overlong policy: cut, or fewer."""
        return list(self._fit(self._encoder.encode(indices)))

    def sample(self) -> Prompt:
        """The first usable row, for trial calls."""
        return self._encoder.encode([int(self.kept[0])])[0]

    def _preflight(self) -> np.ndarray:
        """Positions of the usable rows. Encodes each row once; nothing is kept but its length."""
        count = len(self._rows)
        checked = min(count, PREFLIGHT_ROWS)
        kept = np.ones(count, dtype=bool)
        longest = 0
        # Of later files the first and last row: where a column is missing or a copy was cut off.
        edges = [edge for edge in self._rows.edges() if edge >= checked]
        chunks: list[Sequence[int]] = [
            range(start, min(start + _CHUNK, checked)) for start in range(0, checked, _CHUNK)
        ]
        for chunk in [*chunks, edges]:
            prompts = self._encoder.encode(chunk)
            longest = max([longest, *(len(prompt.prompt_ids) for prompt in prompts)])
            fitting = {prompt.index for prompt in self._fit(prompts)}
            for prompt in prompts:
                kept[prompt.index] = prompt.index in fitting
                self.largest_token = max([self.largest_token, *prompt.prompt_ids])
        what = "dropped" if self._spec.overlong_prompts == "Drop" else "cut"
        log.info(
            "%s: %d rows, longest prompt %d tokens, %d %s as overlong", self.name, count, longest, self.overlong, what
        )
        if count > checked:
            log.info("rows after the first %d are checked when they are reached", checked)
        return np.flatnonzero(kept).astype(np.int64)

    def _fit(self, prompts: list[Prompt]) -> Iterator[Prompt]:
        """Apply `overlongPrompts`."""
        limit = self._spec.max_prompt_length
        for prompt in prompts:
            length = len(prompt.prompt_ids)
            if length > limit:
                self._overlong[prompt.index] = True
                if self._spec.overlong_prompts == "Error":
                    raise UserInputError(
                        "BadData",
                        f"{self._rows.where(prompt.index)}: the prompt has {length} tokens, more than "
                        f"data.maxPromptLength ({limit}): raise it, or set data.overlongPrompts to "
                        "Drop, TruncateLeft or TruncateRight",
                    )
                if self._spec.overlong_prompts == "Drop":
                    continue
                left = self._spec.overlong_prompts == "TruncateLeft"
                prompt.prompt_ids = prompt.prompt_ids[-limit:] if left else prompt.prompt_ids[:limit]
            yield prompt


def open_datasets(spec: DataSpec, source: DataSource, tokenizer: Any, field: str) -> list[Dataset]:
    """The dataset of a source, or those that it mixes, each with columns of its own."""
    if source.mix is None:
        return [Dataset(spec, source, tokenizer, field)]
    found = []
    for index, one in enumerate(source.mix):
        keys = {"prompt_key": one.prompt_key, "ground_truth_key": one.ground_truth_key}
        own = spec.model_copy(update={name: key for name, key in keys.items() if key is not None})
        found.append(Dataset(own, one, tokenizer, f"{field}.mix[{index}]"))
    return found
