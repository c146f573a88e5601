"""Batches of prompts in an order that a checkpoint can resume exactly."""

from typing import Any

import numpy as np

from grpo_api.spec.model_data import DataSpec
from grpo_trainer.dataset import Dataset
from grpo_trainer.errors import UserInputError
from grpo_trainer.prompts import Prompt


class PromptLoader:
    """Batches of `trainBatchSize` prompts without end; a last batch that is not full is left out of each epoch.

    Making one reads and checks the rows (raises UserInputError, `BadData`), so make it before any model is loaded.
    """

    def __init__(self, spec: DataSpec, tokenizer: Any) -> None:
        self._spec = spec
        self._dataset = Dataset(spec, spec.train, tokenizer, "data.train")
        self._kept = self._dataset.kept
        self.largest_token = self._dataset.largest_token
        """The greatest token of the rows checked."""
        self.steps_per_epoch = len(self._kept) // spec.train_batch_size
        if not self.steps_per_epoch:
            raise UserInputError(
                "BadData",
                f"{self._dataset.name} has {len(self._kept)} usable rows, fewer than data.trainBatchSize "
                f"({spec.train_batch_size}): lower it or add rows",
            )
        self._epoch, self._position = 0, 0
        self._order = self._order_of(0)

    @property
    def overlong(self) -> int:
        """Rows met so far whose prompt is too long."""
        return self._dataset.overlong

    def samples(self) -> list[Prompt]:
        """The first usable row, for trial calls; moves nothing."""
        return [self._dataset.sample()]

    def next_batch(self) -> list[Prompt]:
        """The next `trainBatchSize` prompts, cut by the overlong policy."""
        batch: list[Prompt] = []
        epochs_begun = 0
        while len(batch) < self._spec.train_batch_size:
            wanted = self._spec.train_batch_size - len(batch)
            if len(self._order) - self._position < wanted:
                batch, wanted = [], self._spec.train_batch_size
                self._epoch, self._position = self._epoch + 1, 0
                self._order = self._order_of(self._epoch)
                epochs_begun += 1
            if epochs_begun > 1:
                raise UserInputError(
                    "BadData",
                    f"{self._dataset.name}: fewer than data.trainBatchSize ({self._spec.train_batch_size}) prompts fit "
                    f"data.maxPromptLength ({self._spec.max_prompt_length})",
                )
            indices = self._order[self._position : self._position + wanted]
            self._position += wanted
            batch += self._dataset.prompts(indices.tolist())
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Where the order stands; goes into a checkpoint."""
        return {"epoch": self._epoch, "position": self._position, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken. Raises UserInputError where the rows or their order changed."""
        refuse_other_order(self._dataset.name, state, self._identity())
        self._epoch, self._position = state["epoch"], state["position"]
        self._order = self._order_of(self._epoch)

    def _identity(self) -> dict[str, Any]:
        return {
            "rows": len(self._dataset),
            "kept": len(self._kept),
            "seed": self._spec.seed,
            "shuffle": self._spec.shuffle,
        }

    def _order_of(self, epoch: int) -> np.ndarray:
        if not self._spec.shuffle:
            return self._kept
        return np.random.default_rng([self._spec.seed, epoch]).permutation(self._kept)


def refuse_other_order(name: str, state: dict[str, Any], identity: dict[str, Any]) -> None:
    """Raises UserInputError where a checkpoint's state is that of other rows or another order."""
    changed = [
        f"{key} {state.get(key)!r} then, {value!r} now" for key, value in identity.items() if state.get(key) != value
    ]
    if changed:
        raise UserInputError(
            "DataChanged",
            f"the checkpoint's data order does not fit {name}: {'; '.join(changed)}. Restore the data section and the "
            "rows, or start anew with checkpoint.resume: Never",
        )
