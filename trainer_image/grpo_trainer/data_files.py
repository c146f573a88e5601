"""Files of rows, read by position without holding them in memory.

Parquet and CSV are copied once, batch by batch, to an Arrow file in the pod's scratch directory, of which only the rows
taken are read; of JSONL the places of the lines are kept. A JSON file alone is held whole.
"""

import bz2
import codecs
import errno
import gzip
import json
import logging
import tempfile
from collections.abc import Iterator, Sequence
from glob import glob, has_magic
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import pyarrow
from pyarrow import csv, ipc, parquet

from grpo_trainer.errors import UserInputError

log = logging.getLogger(__name__)

KINDS = (".parquet", ".jsonl", ".ndjson", ".json", ".csv")
COMPRESSED = (".gz", ".bz2", ".zst")
"""Suffixes after those of JSONL, JSON and CSV; Parquet has its own compression."""
_BATCH_ROWS = 1024
_CHUNK_BYTES = 2**24
_SAMPLE_ROWS = 1000
"""Rows that tell a JSONL file's columns."""


class RowFile(Protocol):
    """One file's rows."""

    columns: list[str]

    def __len__(self) -> int: ...

    def take(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """The rows at these positions, in their order."""


def find_files(patterns: Sequence[str], field: str) -> list[Path]:
    """The files that paths, directories (all below them) and globs stand for; those of one pattern by name.

    Raises UserInputError where one stands for none.
    """
    found: list[Path] = []
    for pattern in patterns:
        path = Path(pattern)
        if path.is_dir():
            below = sorted(file for file in path.rglob("*") if _kind(file) and file.is_file())
            if not below:
                raise UserInputError("BadData", f"{field}: {pattern} holds no {', '.join(KINDS)} file")
        elif has_magic(pattern) and not path.exists():
            below = [Path(file) for file in sorted(glob(pattern, recursive=True)) if Path(file).is_file()]
            if not below:
                raise UserInputError("BadData", f"{field}: no file matches {pattern}; is its volume mounted?")
        else:
            below = [path]
        found += below
    return found


def open_file(file: Path, field: str) -> RowFile:
    """Raises UserInputError that names the file and, where there is one, the line."""
    if not file.is_file():
        raise UserInputError("BadData", f"{field}: {file} is not there; mount it with template.podOverlay")
    kind = _kind(file)
    if not kind:
        raise UserInputError(
            "BadData",
            f"{field}: {file} must end in .parquet, .jsonl, .json or .csv (the last three also with .gz, .bz2 or .zst)",
        )
    try:
        if kind == ".parquet":
            with parquet.ParquetFile(file, pre_buffer=False) as source:  # else it reads whole files ahead
                rows: RowFile = _ArrowFile(source.schema_arrow, source.iter_batches(_BATCH_ROWS))
        elif kind == ".csv":
            # Prompts have line breaks. A column's type is that of its first block.
            with (
                _plain(file) as plain,
                csv.open_csv(
                    plain,
                    read_options=csv.ReadOptions(block_size=_CHUNK_BYTES),
                    parse_options=csv.ParseOptions(newlines_in_values=True),
                ) as reader,
            ):
                rows = _ArrowFile(reader.schema, reader)
        elif kind == ".json":
            with _plain(file) as plain:
                rows = _ObjectFile(plain.read(), f"{field}: {file}")
        else:
            rows = _LineFile(_plain(file), f"{field}: {file}")
    except pyarrow.ArrowInvalid as error:
        text = f"{field}: {file} is not valid {kind[1:]}: {error}"
        if "conversion error" in text:
            text += f". The first {_CHUNK_BYTES >> 20} MB decide a column's type: make its values alike, or use JSONL"
        raise UserInputError("BadData", text) from error
    except EOFError as error:
        raise UserInputError("BadData", f"{field}: {file} cannot be decompressed: {error}") from error
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise UserInputError(
            "BadData",
            f"{field}: {file} does not fit into {tempfile.gettempdir()}, where its rows are unpacked: give the pods a "
            "larger volume there with template.podOverlay",
        ) from error
    if not len(rows):
        log.warning("%s: %s holds no rows", field, file)
    return rows


def _kind(file: Path) -> str:
    """The suffix that tells how to read a file, without that of its compression; empty for others."""
    suffixes = [suffix.lower() for suffix in file.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
        return suffixes[-1] if suffixes and suffixes[-1] in KINDS[1:] else ""
    return suffixes[-1] if suffixes and suffixes[-1] in KINDS else ""


def _plain(file: Path) -> BinaryIO:
    """The file, decompressed into the scratch directory where it is compressed. Raises EOFError where it is cut."""
    suffix = file.suffix.lower()
    if suffix not in COMPRESSED:
        return file.open("rb")
    copy = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    opened = {".gz": gzip.open, ".bz2": bz2.open, ".zst": pyarrow.input_stream}[suffix](file)
    with opened as source:
        while piece := _piece(source):
            copy.write(piece)
    copy.seek(0)
    return copy


def _piece(source: Any) -> bytes:
    try:
        return bytes(source.read(_CHUNK_BYTES))
    except OSError as error:
        if error.errno is not None:
            raise
        raise EOFError(str(error)) from error  # of a decompressor, such as pyarrow's or a gzip header's


class _ArrowFile:
    """Record batches on disk, mapped into memory: the kernel holds what is used."""

    def __init__(self, schema: pyarrow.Schema, batches: Iterator[pyarrow.RecordBatch]) -> None:
        # Dictionaries that differ from batch to batch do not go into an Arrow file.
        fields = [field.with_type(_plain_type(field.type)) for field in schema]
        plain = pyarrow.schema(fields)
        starts = [0]
        with tempfile.TemporaryFile() as scratch:
            with ipc.new_file(pyarrow.PythonFile(scratch, "w"), plain) as sink:
                for batch in batches:
                    columns = [
                        column.cast(field.type) if column.type != field.type else column
                        for column, field in zip(batch.columns, fields, strict=True)
                    ]
                    sink.write_batch(pyarrow.record_batch(columns, schema=plain))
                    starts.append(starts[-1] + len(batch))
            scratch.flush()
            self._batches = ipc.open_file(pyarrow.memory_map(f"/proc/self/fd/{scratch.fileno()}"))
        self._starts = np.array(starts)
        self.columns = list(schema.names)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for start, stop in _runs(indices):
            while start < stop:
                batch = int(np.searchsorted(self._starts, start, side="right")) - 1
                end = min(stop, int(self._starts[batch + 1]))
                table = self._batches.get_batch(batch)
                rows += table.slice(start - int(self._starts[batch]), end - start).to_pylist()
                start = end
        return rows


def _plain_type(kind: pyarrow.DataType) -> pyarrow.DataType:
    return kind.value_type if pyarrow.types.is_dictionary(kind) else kind


def _runs(indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """[start, stop) of neighbouring positions, in their order."""
    array = np.asarray(indices, dtype=np.int64)
    cuts = [0, *(np.flatnonzero(np.diff(array) != 1) + 1).tolist(), len(array)]
    for start, stop in pairwise(cuts):
        if start < stop:
            yield int(array[start]), int(array[stop - 1]) + 1


class _LineFile:
    """JSON objects, one a line; empty lines do not count."""

    def __init__(self, file: BinaryIO, what: str) -> None:
        self._file, self._what = file, what
        starts, stops = _lines(file)
        short = np.flatnonzero(stops - starts < 16)
        blank = [place for place in short if not self._bytes(starts[place], stops[place]).strip()]
        self._line = np.delete(np.arange(len(starts)), blank)
        self._starts, self._stops = np.delete(starts, blank), np.delete(stops, blank)
        sample = self.take(range(min(len(self), _SAMPLE_ROWS)))
        self.columns = list(dict.fromkeys(key for row in sample for key in row))

    def __len__(self) -> int:
        return len(self._starts)

    def take(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        return [self._row(index) for index in indices]

    def _row(self, index: int) -> dict[str, Any]:
        where = f"{self._what}, line {self._line[index] + 1}"
        try:
            row = json.loads(self._bytes(self._starts[index], self._stops[index]).removeprefix(codecs.BOM_UTF8))
        except json.JSONDecodeError as error:
            raise UserInputError("BadData", f"{where}: {error.msg} at column {error.colno}") from error
        except UnicodeDecodeError as error:
            raise UserInputError("BadData", f"{where}: is not UTF-8: {error.reason}") from error
        if not isinstance(row, dict):
            raise UserInputError("BadData", f"{where}: {self._what.rpartition(' ')[2]} must hold one object a line")
        return row

    def _bytes(self, start: int, stop: int) -> bytes:
        self._file.seek(start)
        return self._file.read(stop - start)


def _lines(file: BinaryIO) -> tuple[np.ndarray, np.ndarray]:
    """Where each line starts and stops, in bytes; int64."""
    ends, size = [], 0
    while piece := file.read(_CHUNK_BYTES):
        ends.append(np.flatnonzero(np.frombuffer(piece, np.uint8) == ord("\n")) + size)
        size += len(piece)
    stops = np.concatenate([*ends, [size]]).astype(np.int64)
    starts = np.concatenate([[0], stops[:-1] + 1]).astype(np.int64)
    return starts, stops


class _ObjectFile:
    """A JSON list of objects, in memory."""

    def __init__(self, content: bytes, what: str) -> None:
        try:
            objects = json.loads(content.decode("utf-8-sig")) if content.strip() else []
        except json.JSONDecodeError as error:
            raise UserInputError("BadData", f"{what}, line {error.lineno}: {error.msg}") from error
        except UnicodeDecodeError as error:
            raise UserInputError("BadData", f"{what} is not UTF-8: {error.reason}") from error
        if not isinstance(objects, list) or not all(isinstance(row, dict) for row in objects):
            raise UserInputError("BadData", f"{what} must hold a list of objects (JSON lines end in .jsonl)")
        self._objects = objects
        self.columns = list(dict.fromkeys(key for row in objects for key in row))

    def __len__(self) -> int:
        return len(self._objects)

    def take(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        return [self._objects[index] for index in indices]
