"""Rows of prompts from files, a hub or a generator, behind one face."""

import difflib
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from grpo_api.spec.model_data import DataSource, HubSource, ReasoningGymSource
from grpo_trainer.errors import UserInputError


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


def load_rows(source: DataSource, field: str) -> Rows:
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
        raise UserInputError("BadData", f"{field}: set exactly one of files, hub and reasoningGym")
    if len(rows) == 0:
        raise UserInputError("BadData", f"{field}: {rows.name} holds no rows")
    return rows


class FileRows:
    """Parquet, CSV, JSON (a list of objects) and JSONL files, one after the other."""

    def __init__(self, files: Sequence[str], field: str) -> None:
        self._parts = [(file, _read(Path(file), field)) for file in files]
        self.columns = list(dict.fromkeys(column for _, part in self._parts for column in part.columns))
        self.name = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"

    def __len__(self) -> int:
        return sum(len(part) for _, part in self._parts)

    def take(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        wanted: dict[int, list[int]] = {}
        for index in indices:
            part, local = self._locate(index)
            wanted.setdefault(part, []).append(local)
        read = {(part, i): row for part, local in wanted.items() for i, row in self._parts[part][1].take(local)}
        return [read[self._locate(index)] for index in indices]

    def where(self, index: int) -> str:
        part, local = self._locate(index)
        return f"row {local} of {self._parts[part][0]}"

    def _locate(self, index: int) -> tuple[int, int]:
        for number, (_, part) in enumerate(self._parts):
            if index < len(part):
                return number, index
            index -= len(part)
        raise IndexError(index)


class _Table:
    """One Arrow table; rows become Python objects only when they are taken."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self.columns = list(table.column_names)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def take(self, indices: Sequence[int]) -> list[tuple[int, dict[str, Any]]]:
        return list(zip(indices, self._table.take(list(indices)).to_pylist(), strict=True))


class _Objects:
    """Rows of a JSON file, whose values may differ in type from row to row, which Arrow's own reader refuses."""

    def __init__(self, objects: list[dict[str, Any]]) -> None:
        self._objects = objects
        self.columns = list(dict.fromkeys(key for row in objects for key in row))

    def __len__(self) -> int:
        return len(self._objects)

    def take(self, indices: Sequence[int]) -> list[tuple[int, dict[str, Any]]]:
        return [(index, self._objects[index]) for index in indices]


def _read(file: Path, field: str) -> _Table | _Objects:
    if not file.is_file():
        raise UserInputError("BadData", f"{field}: {file} is not there; mount it with template.podOverlay")
    kind = file.suffix.lower()
    if kind in (".jsonl", ".ndjson", ".json"):
        return _Objects(_read_json(file, kind, field))
    import pyarrow
    from pyarrow import csv, parquet

    readers = {".parquet": parquet.read_table, ".csv": csv.read_csv}
    if kind not in readers:
        raise UserInputError("BadData", f"{field}: {file} must end in .parquet, .jsonl, .json or .csv")
    try:
        return _Table(readers[kind](file))
    except pyarrow.ArrowInvalid as error:
        raise UserInputError("BadData", f"{field}: {file} is not valid {kind[1:]}: {error}") from error


def _read_json(file: Path, kind: str, field: str) -> list[dict[str, Any]]:
    by_line = kind != ".json"
    rows = []
    with file.open(encoding="utf-8") as lines:
        for number, text in enumerate(lines if by_line else [lines.read()]):
            if not text.strip():
                continue
            try:
                rows.append(json.loads(text.rstrip()))
            except json.JSONDecodeError as error:
                line = number + error.lineno
                raise UserInputError("BadData", f"{field}: {file}, line {line}: {error.msg}") from error
    if not by_line:
        rows = rows[0] if rows else []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        shape = "one object a line" if by_line else "a list of objects"
        raise UserInputError("BadData", f"{field}: {file} must hold {shape}")
    return rows


class HubRows:
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

    def where(self, index: int) -> str:
        return f"row {index} of {self.name}"


class GymRows:
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

    def where(self, index: int) -> str:
        return f"row {index} of {self.name}"
