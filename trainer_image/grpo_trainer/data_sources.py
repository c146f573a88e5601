"""Rows of prompts from files, a hub or a generator, behind one face."""

import difflib
import logging
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from grpo_api.spec.model_data import DataSource, HubSource, MixedSource, ReasoningGymSource
from grpo_trainer.data_files import find_files, open_file
from grpo_trainer.errors import UserInputError

log = logging.getLogger(__name__)


class Rows(Protocol):
    """A table of rows, read by position."""

    columns: list[str]
    name: str
    """Given as `data_source` where the rows have no such column."""

    def __len__(self) -> int: ...

    def take(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """The rows at these positions, as dicts of plain Python values."""

    def where(self, index: int) -> str:
        """Where a row stands, for error messages; rows count from 0."""

    def edges(self) -> list[int]:
        """Positions of the first and last row of each file, or of the whole where there are none."""


def load_rows(source: DataSource | MixedSource, field: str) -> Rows:
    """Open a data source that the spec names at `field`.

    Raises UserInputError (`BadData`) where it cannot be read or is empty.
    """
    rows: Rows
    if source.files:
        rows = FileRows(source.files, f"{field}.files")
    elif source.hub:
        rows = HubRows(source.hub, f"{field}.hub")
    elif source.reasoning_gym:
        rows = GymRows(source.reasoning_gym, f"{field}.reasoningGym")
    else:
        raise UserInputError("BadData", f"{field}: set exactly one of files, hub and reasoningGym (or mix)")
    if len(rows) == 0:
        raise UserInputError("BadData", f"{field}: {rows.name} holds no rows")
    return rows


class FileRows:
    """Parquet, CSV, JSON (a list of objects) and JSONL files, one after the other."""

    def __init__(self, patterns: Sequence[str], field: str) -> None:
        self._files = find_files(patterns, field)
        opened = {file: open_file(file, field) for file in dict.fromkeys(self._files)}
        self._parts = [opened[file] for file in self._files]
        for file, times in Counter(self._files).items():
            if times > 1:
                log.warning("%s names %s %d times: its rows count so often", field, file, times)
        self._starts = np.cumsum([0, *map(len, self._parts)])
        self.columns = list(dict.fromkeys(column for part in self._parts for column in part.columns))
        self.name = patterns[0] if len(patterns) == 1 else f"{patterns[0]} and {len(patterns) - 1} more"

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        wanted = np.asarray(indices, dtype=np.int64)
        parts = np.searchsorted(self._starts, wanted, side="right") - 1
        rows: list[dict[str, Any]] = [{}] * len(wanted)
        for part in np.unique(parts).tolist():
            places = np.flatnonzero(parts == part)
            taken = self._parts[part].take((wanted[places] - self._starts[part]).tolist())
            for place, row in zip(places.tolist(), taken, strict=True):
                rows[place] = row
        return rows

    def where(self, index: int) -> str:
        part = int(np.searchsorted(self._starts, index, side="right")) - 1
        return f"row {index - self._starts[part]} of {self._files[part]}"

    def edges(self) -> list[int]:
        pairs = zip(self._starts[:-1].tolist(), self._starts[1:].tolist(), strict=True)
        return [edge for start, stop in pairs if start < stop for edge in sorted({start, stop - 1})]


class _OneTable(Rows):
    """Rows that are in no files."""

    def where(self, index: int) -> str:
        return f"row {index} of {self.name}"

    def edges(self) -> list[int]:
        return sorted({0, len(self) - 1})


class HubRows(_OneTable):
    """A dataset of a hub, through `datasets`."""

    def __init__(self, source: HubSource, field: str) -> None:
        import datasets

        self.name = source.path
        try:
            self._data = datasets.load_dataset(source.path, source.name, split=source.split, revision=source.revision)
        # A lost connection is left to end the process with a code that is retried.
        except (FileNotFoundError, ValueError) as error:
            raise UserInputError("BadData", f"{field}: {source.path}, split {source.split}: {error}") from error
        self.columns = list(self._data.column_names)

    def __len__(self) -> int:
        return len(self._data)

    def take(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._data.select(indices).to_list()
        return rows


class GymRows(_OneTable):
    """A task of reasoning-gym, in verl's row shape. Row i depends on the seed and i alone, so nothing is stored."""

    def __init__(self, source: ReasoningGymSource, field: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of one of its dependencies, at every start of a pod
            import reasoning_gym
            from reasoning_gym.factory import DATASETS

        self.columns = ["prompt", "reward_model", "data_source", "extra_info"]
        self.name = f"reasoning_gym/{source.task}"
        if source.task not in DATASETS:
            near = ", ".join(difflib.get_close_matches(source.task, DATASETS, n=3)) or "none close"
            raise UserInputError("BadData", f"{field}.task {source.task!r} is unknown; nearest: {near}")
        try:
            self._data = reasoning_gym.create_dataset(source.task, size=source.size, seed=source.seed, **source.params)
        except (TypeError, AssertionError, ValueError) as error:
            raise UserInputError("BadData", f"{field}.params of {source.task}: {error}") from error
        self._size = source.size

    def __len__(self) -> int:
        return self._size

    def take(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        rows = [self._data[int(index)] for index in indices]
        return [
            {
                "prompt": row["question"],
                "reward_model": {"ground_truth": row["answer"]},
                "data_source": self.name,
                "extra_info": row["metadata"],
            }
            for row in rows
        ]
