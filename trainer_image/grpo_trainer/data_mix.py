"""Batches of prompts from several datasets by weight, in an order that a checkpoint can resume exactly."""

from typing import Any

import numpy as np

from grpo_api.spec.model_data import DataSpec
from grpo_trainer.data import PromptLoader, refuse_other_order
from grpo_trainer.dataset import Dataset, open_datasets
from grpo_trainer.errors import UserInputError
from grpo_trainer.prompts import Prompt


class MixedLoader:
    """Batches of `trainBatchSize` prompts without end, of which each dataset has its weight's share.

    Whose turn it is depends on weights alone: the dataset that lags furthest behind its share is next, so that every
    batch has the mixture, to one prompt or so. Each dataset is gone through by itself, in an order of its own for each
    pass, and begins the next pass where one ends: no row is left out, and none comes again before all have come.
    Making one reads and checks the rows (raises UserInputError, `BadData`).
    """

    def __init__(self, spec: DataSpec, tokenizer: Any) -> None:
        self._spec = spec
        self._streams = [
            _Stream(spec, number, dataset)
            for number, dataset in enumerate(open_datasets(spec, spec.train, tokenizer, "data.train"))
        ]
        weights = np.array([1.0 if one.weight is None else one.weight for one in spec.train.mix or []])
        self._weights = weights
        self._shares = weights / weights.sum()
        self._given = np.zeros(len(weights), dtype=np.int64)
        """Prompts given so far, by dataset."""
        self.largest_token = max(stream.dataset.largest_token for stream in self._streams)
        """The greatest token of the rows checked."""
        rows = sum(len(stream.dataset.kept) for stream in self._streams)
        self.steps_per_epoch = rows // spec.train_batch_size
        """An epoch has as many prompts as the datasets have rows together."""
        if not self.steps_per_epoch:
            raise UserInputError(
                "BadData",
                f"data.train.mix has {rows} usable rows, fewer than data.trainBatchSize ({spec.train_batch_size}): "
                "lower it or add rows",
            )

    @property
    def overlong(self) -> int:
        """Rows met so far whose prompt is too long."""
        return sum(stream.dataset.overlong for stream in self._streams)

    def samples(self) -> list[Prompt]:
        """The first usable row of each dataset, for trial calls; moves nothing."""
        return [stream.dataset.sample() for stream in self._streams]

    def next_batch(self) -> list[Prompt]:
        """The next `trainBatchSize` prompts, cut by the overlong policy."""
        turns = []
        for _ in range(self._spec.train_batch_size):
            turn = int(np.argmax(self._shares * (self._given.sum() + 1) - self._given))
            self._given[turn] += 1
            turns.append(turn)
        drawn = {turn: iter(self._streams[turn].draw(turns.count(turn))) for turn in sorted(set(turns))}
        return [next(drawn[turn]) for turn in turns]

    def state_dict(self) -> dict[str, Any]:
        """Where the order stands; goes into a checkpoint."""
        return {
            "given": self._given.tolist(),
            "drawn": [stream.drawn for stream in self._streams],
            **self._identity(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken. Raises UserInputError where the rows or their order changed."""
        refuse_other_order("data.train.mix", state, self._identity())
        self._given = np.array(state["given"], dtype=np.int64)
        for stream, drawn in zip(self._streams, state["drawn"], strict=True):
            stream.drawn = drawn

    def _identity(self) -> dict[str, Any]:
        return {
            "rows": [len(stream.dataset) for stream in self._streams],
            "kept": [len(stream.dataset.kept) for stream in self._streams],
            "weights": self._weights.tolist(),
            "seed": self._spec.seed,
            "shuffle": self._spec.shuffle,
        }


class _Stream:
    """One dataset's prompts without end."""

    def __init__(self, spec: DataSpec, number: int, dataset: Dataset) -> None:
        self._spec, self._number, self.dataset = spec, number, dataset
        self.drawn = 0
        """Rows taken so far, with those that were dropped."""
        self._order: tuple[int, np.ndarray] | None = None
        """The last pass and its order."""

    def draw(self, count: int) -> list[Prompt]:
        """The next prompts that are usable. Raises UserInputError where a whole pass has fewer."""
        prompts: list[Prompt] = []
        until = self.drawn + max(count, 2 * len(self.dataset.kept))
        while len(prompts) < count:
            wanted = count - len(prompts)
            if self.drawn + wanted > until:
                raise UserInputError(
                    "BadData",
                    f"{self.dataset.name}: too few prompts fit data.maxPromptLength ({self._spec.max_prompt_length})",
                )
            prompts += self.dataset.prompts([self._row(self.drawn + place) for place in range(wanted)])
            self.drawn += wanted
        return prompts

    def _row(self, place: int) -> int:
        epoch, position = divmod(place, len(self.dataset.kept))
        if self._order is None or self._order[0] != epoch:
            kept = self.dataset.kept
            if self._spec.shuffle:
                kept = np.random.default_rng([self._spec.seed, epoch, self._number]).permutation(kept)
            self._order = epoch, kept
        return int(self._order[1][position])


def make_loader(spec: DataSpec, tokenizer: Any) -> PromptLoader | MixedLoader:
    """The loader of `data.train`. Reads and checks the rows: raises UserInputError (`BadData`)."""
    return MixedLoader(spec, tokenizer) if spec.train.mix else PromptLoader(spec, tokenizer)
