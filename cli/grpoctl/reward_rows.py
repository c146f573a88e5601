"""Sample rows for `grpoctl reward try`, from a data file or the command line."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from grpo_api.rewards.rows import MISSING, RewardRow, look_up
from grpo_api.spec.model_data import DataSpec
from grpoctl.errors import CliError

RESPONSE_KEYS = ("response", "completion", "solution_str")


@dataclass
class RowKeys:
    """Columns of a row."""

    prompt: str = DataSpec.model_fields["prompt_key"].default
    ground_truth: str = DataSpec.model_fields["ground_truth_key"].default
    data_source: str = DataSpec.model_fields["data_source_key"].default
    response: str | None = None
    """None: the first of RESPONSE_KEYS that the row has."""


@dataclass
class SampleRows:
    rows: list[RewardRow]
    notes: list[str]
    """What the rows lacked, and what stands in for it."""


def from_file(file: Path, count: int) -> list[dict[str, Any]]:
    """The first rows of a JSONL, JSON or Parquet file. Raises CliError with the line of what is no object."""
    if not file.is_file():
        raise CliError(f"--data {file}: no such file")
    kind = file.suffix.lower()
    if kind == ".parquet":
        return _parquet(file, count)
    if kind not in (".jsonl", ".ndjson", ".json"):
        raise CliError(f"--data {file}: must end in .jsonl, .json or .parquet", 2)
    try:
        with file.open(encoding="utf-8-sig") as lines:
            items = _lines(file, lines) if kind != ".json" else iter(_list(file, lines.read()))
            return [_object(item, f"--data {file}, row {number}") for number, item in enumerate(islice(items, count))]
    except UnicodeDecodeError as error:
        raise CliError(f"--data {file}: {error}") from None


def from_text(text: str, number: int) -> dict[str, Any]:
    """The row of a `--row`."""
    try:
        return _object(json.loads(text), f"--row {number}")
    except json.JSONDecodeError as error:
        raise CliError(
            f"--row {number} is no JSON: {error.msg}, column {error.colno}: {text[:80]}; such as "
            '\'{"response": "It is 7", "ground_truth": "7"}\'',
            2,
        ) from None


def _lines(file: Path, lines: Iterator[str]) -> Iterator[Any]:
    for number, text in enumerate(lines, 1):
        if text.strip():
            yield _json(file, text, number)


def _list(file: Path, text: str) -> list[Any]:
    items = _json(file, text, 1)
    if not isinstance(items, list):
        raise CliError(f"--data {file} holds a {type(items).__name__}; it must hold a list of objects")
    return items


def _json(file: Path, text: str, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise CliError(f"--data {file}, line {line + error.lineno - 1}, column {error.colno}: {error.msg}") from None


def _object(item: Any, where: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise CliError(f"{where} is a {type(item).__name__}; it must be an object")
    return item


def _parquet(file: Path, count: int) -> list[dict[str, Any]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise CliError(f"--data {file}: reading Parquet needs pyarrow: pip install pyarrow, or give JSONL") from None
    try:
        batches = parquet.ParquetFile(file).iter_batches(batch_size=min(count, 1000))
        return list(islice((row for batch in batches for row in batch.to_pylist()), count))
    except pyarrow.ArrowException as error:
        raise CliError(f"--data {file}: {error}") from None


def reward_rows(items: Sequence[dict[str, Any]], keys: RowKeys, name: str) -> SampleRows:
    """What the function is given for each item; `name` is the data source of items that name none.

    Raises CliError where an item has neither a response nor a ground truth to stand in for it.
    """
    notes: dict[str, None] = {}  # ordered, each once
    rows = [_row(item, number, keys, name, notes) for number, item in enumerate(items)]
    return SampleRows(rows, list(notes))


def _row(item: dict[str, Any], number: int, keys: RowKeys, name: str, notes: dict[str, None]) -> RewardRow:
    prompt = look_up(item, keys.prompt)
    if prompt is MISSING:
        notes[f"no column {keys.prompt}: the prompt is empty (data.promptKey of a --job names another)"] = None
        prompt = ""
    messages = prompt if isinstance(prompt, list) and all(isinstance(one, dict) for one in prompt) else None
    truth = look_up(item, keys.ground_truth)
    if truth is MISSING and keys.ground_truth == RowKeys.ground_truth:
        truth = item.get("ground_truth", MISSING)  # the short way on a command line
    if truth is MISSING:
        notes[
            f"no column {keys.ground_truth}: the ground truth is None (--ground-truth-key names another; the columns "
            f"are {', '.join(item)})"
        ] = None
        truth = None
    source = look_up(item, keys.data_source)
    used, response = _response(item, number, keys, truth, notes)
    extra = item.get("extra_info")
    return RewardRow(
        prompt="\n".join(str(one.get("content", "")) for one in messages) if messages else str(prompt),
        completion=response,
        ground_truth=truth,
        data_source=name if source is MISSING or source is None else str(source),
        extra_info=extra if isinstance(extra, dict) else {},
        columns={key: value for key, value in item.items() if key not in (keys.prompt, used)},
        messages=messages,
    )


def _response(
    item: dict[str, Any], number: int, keys: RowKeys, truth: Any, notes: dict[str, None]
) -> tuple[str | None, str]:
    """The response and the column that held it."""
    for key in [keys.response] if keys.response else RESPONSE_KEYS:
        response = look_up(item, key)
        if isinstance(response, list) and response and isinstance(response[-1], dict):
            response = response[-1].get("content")  # TRL's messages
        if isinstance(response, str):
            return key, response
    wanted = keys.response or ", ".join(RESPONSE_KEYS)
    if keys.response or truth is None:
        stand_in = "" if keys.response else ", and no ground truth to stand in for one"
        raise CliError(
            f"row {number} has no response (a text in column {wanted}){stand_in}; its columns are "
            f"{', '.join(item) or 'none'}: --response-key names another"
        )
    notes[f"no response in the rows ({wanted}): each row's own ground truth stands in for it"] = None
    return None, str(truth)
