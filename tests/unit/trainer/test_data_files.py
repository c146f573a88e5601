"""Files of every kind, compressed or not, by glob and directory; faults by file and line; memory that stays small."""

import bz2
import gzip
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import csv, parquet

from grpo_api.spec.model_data import DataSource
from grpo_trainer.data_sources import load_rows
from grpo_trainer.errors import UserInputError

ROWS = [{"prompt": f"line one\nline two, {i}", "truth": i, "nested": {"a": [{"b": str(i)}]}} for i in range(2500)]
FLAT = [{"prompt": row["prompt"], "truth": row["truth"]} for row in ROWS]


def load(*files: object):
    return load_rows(DataSource(files=[str(file) for file in files]), "data.train")


def compress(file: Path, suffix: str) -> Path:
    target = file.with_name(file.name + suffix)
    match suffix:
        case ".gz":
            target.write_bytes(gzip.compress(file.read_bytes()))
        case ".bz2":
            target.write_bytes(bz2.compress(file.read_bytes()))
        case ".zst":
            target.write_bytes(pyarrow.compress(file.read_bytes(), "zstd", asbytes=True))
    return target


def write(file: Path, rows: list[dict]) -> Path:
    match file.suffix:
        case ".parquet":
            parquet.write_table(pyarrow.Table.from_pylist(rows), file, row_group_size=700)
        case ".csv":
            csv.write_csv(pyarrow.Table.from_pylist(rows), file)
        case ".json":
            file.write_text(json.dumps(rows))
        case ".jsonl":
            file.write_text("\n".join(json.dumps(row) for row in rows))
    return file


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".zst"])
@pytest.mark.parametrize("kind", ["parquet", "csv", "json", "jsonl"])
def test_rows_by_position(tmp_path, kind, suffix):
    if kind == "parquet" and suffix:
        pytest.skip("Parquet compresses itself")
    wanted = FLAT if kind == "csv" else ROWS
    file = write(tmp_path / f"rows.{kind}", wanted)
    rows = load(compress(file, suffix) if suffix else file)
    assert len(rows) == 2500
    assert set(rows.columns) == set(wanted[0])
    order = np.random.default_rng(0).permutation(2500)[:300].tolist()
    assert rows.take(order) == [wanted[i] for i in order]
    assert rows.take(range(1000, 1100)) == wanted[1000:1100]
    assert rows.take([2499, 0, 1, 2, 1023, 1024, 1025, 699, 700]) == [
        wanted[i] for i in (2499, 0, 1, 2, 1023, 1024, 1025, 699, 700)
    ]
    assert rows.take([]) == []


def test_several_files_with_rows_of_each(tmp_path):
    files = [
        write(tmp_path / f"{i}.{kind}", ROWS[i * 5 : i * 5 + 5]) for i, kind in enumerate(("jsonl", "parquet", "json"))
    ]
    rows = load(*files)
    order = [14, 0, 5, 4, 9, 10, 3]
    assert rows.take(order) == [ROWS[i] for i in order]
    assert rows.where(7) == f"row 2 of {files[1]}"


def test_directories_and_globs(tmp_path):
    for name, rows in (("b.jsonl", ROWS[1:2]), ("a.parquet", ROWS[:1]), ("sub/c.json", ROWS[2:3])):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, rows)
    (tmp_path / "README.md").write_text("not data")
    assert load(tmp_path).take(range(3)) == ROWS[:3]
    assert load(tmp_path / "*.jsonl", tmp_path / "**" / "c.*").take(range(2)) == ROWS[1:3]
    assert load(tmp_path / "[ab].*").name == str(tmp_path / "[ab].*")


def test_a_file_that_is_named_twice_counts_twice(tmp_path, caplog):
    """As in verl, which concatenates its list; also where a directory holds a file that is named, too."""
    write(tmp_path / "a.jsonl", ROWS[:2])
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub" / "a.jsonl", ROWS[2:3])
    assert load(tmp_path).take(range(3)) == ROWS[:3]
    assert not caplog.records
    rows = load(tmp_path / "a.jsonl", tmp_path / "sub", tmp_path / "a.jsonl")
    assert rows.take(range(5)) == [*ROWS[:3], *ROWS[:2]]
    assert rows.where(4) == f"row 1 of {tmp_path / 'a.jsonl'}"
    (record,) = caplog.records
    assert record.getMessage() == f"data.train.files names {tmp_path / 'a.jsonl'} 2 times: its rows count so often"


def test_an_empty_file_among_others_is_told(tmp_path, caplog):
    write(tmp_path / "a.jsonl", [])
    rows = load(tmp_path / "a.jsonl", write(tmp_path / "b.jsonl", ROWS[:2]))
    assert (len(rows), rows.take([1]), rows.edges()) == (2, ROWS[1:2], [0, 1])
    assert f"{tmp_path / 'a.jsonl'} holds no rows" in caplog.text


def test_edges_are_the_first_and_last_rows_of_each_file(tmp_path):
    parts = (ROWS[:3], ROWS[3:4], ROWS[4:9])
    files = [write(tmp_path / f"{i}.jsonl", part) for i, part in enumerate(parts)]
    assert load(*files).edges() == [0, 2, 3, 4, 8]


def test_categories_and_lines_of_every_form(tmp_path):
    table = pyarrow.table({"prompt": ["a", "b", "a"], "kind": pyarrow.array(["x", "y", "x"]).dictionary_encode()})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=1)
    assert load(tmp_path / "a.parquet").take([1, 2]) == [{"prompt": "b", "kind": "y"}, {"prompt": "a", "kind": "x"}]
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n  \n{"prompt": "b", "n": {"m": 1}}\n\n')
    rows = load(tmp_path / "a.jsonl")
    assert rows.take([0, 1]) == [{"prompt": "a"}, {"prompt": "b", "n": {"m": 1}}]
    assert rows.columns == ["prompt", "n"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"prompt": "a"}\n\n{"prompt": \n', r"a.jsonl, line 3: Expecting value at column"),
        ("a.jsonl", b'{"prompt": "a"}\n[1]\n', r"a.jsonl, line 2: .*a.jsonl must hold one object a line"),
        ("a.jsonl", b'{"prompt": "\xff"}\n', r"a.jsonl, line 1: is not UTF-8"),
        ("a.jsonl", b"", r"holds no rows"),
        ("a.jsonl", b'{"prompt": "a"}\n{"prompt": "b", "tru', r"a.jsonl, line 2: Unterminated string"),
        ("a.json", b'[{"prompt": "a"}, {"pro', r"a.json, line 1: Unterminated string"),
        ("a.csv", b'prompt,truth\na,1\n"b,', r"a.csv is not valid csv: .*"),
        ("a.json", b'{"prompt": "a"}', r"a.json must hold a list of objects .JSON lines end in .jsonl."),
        ("a.json", b'[{"prompt": "a"},\n x]', r"a.json, line 2: Expecting value"),
        ("a.json", b"\xff", r"a.json is not UTF-8"),
        ("a.csv", b"", r"a.csv is not valid csv: Empty CSV"),
        ("a.csv", b"prompt,truth\na,1\nb\n", r"a.csv is not valid csv: .*Expected 2 columns, got 1: b"),
        ("a.parquet", b"", r"a.parquet is not valid parquet: Parquet file size is 0 bytes"),
        ("a.parquet", b"no parquet", r"a.parquet is not valid parquet"),
        ("a.jsonl.gz", b"no gzip", r"a.jsonl.gz cannot be decompressed: Not a gzipped file"),
        ("a.jsonl.gz", gzip.compress(b'{"prompt": "a"}\n' * 99)[:-9], r"a.jsonl.gz cannot be decompressed: .*ended"),
        ("a.jsonl.bz2", bz2.compress(b'{"prompt": "a"}\n' * 99)[:-9], r"a.jsonl.bz2 cannot be decompressed"),
        (
            "a.jsonl.zst",
            pyarrow.compress(b'{"a": 1}\n' * 99, "zstd", asbytes=True)[:-9],
            r"a.jsonl.zst cannot be decomp",
        ),
        ("a.txt", b"a", r"a.txt must end in .parquet, .jsonl, .json or .csv"),
        ("a.parquet.gz", b"a", r"must end in .parquet"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserInputError, match=rf"data\.train(\.files)?: .*{message}") as caught:
        load(tmp_path / name)
    assert caught.value.exit_code == 65


def test_a_type_that_changes_late_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("grpo_trainer.data_files._CHUNK_BYTES", 2**16)
    rows = "".join(f"{'x' * 100},{i}\n" for i in range(2000))
    (tmp_path / "a.csv").write_text(f"prompt,truth\n{rows}late,no number\n")
    with pytest.raises(UserInputError, match=r"a.csv is not valid csv: In CSV column #1.*'no number'.*or use JSONL"):
        load(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("pattern", "message"), [("*.jsonl", "no file matches"), ("", "holds no .parquet"), ("a.jsonl", "is not there")]
)
def test_no_files(tmp_path, pattern, message):
    with pytest.raises(UserInputError, match=message):
        load(tmp_path / pattern)


def test_a_full_scratch_directory_is_named(tmp_path, monkeypatch):
    """/dev/full refuses every write."""
    full = partial(open, "/dev/full", "w+b", buffering=0)
    monkeypatch.setattr("grpo_trainer.data_files.tempfile.TemporaryFile", full)
    for kind in ("parquet", "csv"):
        with pytest.raises(UserInputError, match=rf"rows.{kind} does not fit into .*template.podOverlay"):
            load(write(tmp_path / f"rows.{kind}", FLAT))
    with pytest.raises(UserInputError, match=r"does not fit into"):
        load(compress(write(tmp_path / "rows.jsonl", FLAT), ".gz"))


MEASURE = """
import sys
from grpo_api.spec.model_data import DataSource
from grpo_trainer.data_sources import load_rows
def held():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) // 1024
load_rows(DataSource(files=[sys.argv[1]]), "data.train")  # imports
before = held()
rows = load_rows(DataSource(files=[sys.argv[2]]), "data.train")
rows.take(range(0, len(rows), 97))
print(held() - before)
"""


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_large_file_is_not_held_in_memory(tmp_path, kind):
    """64 MB of text, which stood for 70 MB (Parquet) and 170 MB (JSONL) when files were held."""
    texts = [f"{i} " + "abcdefgh" * 64 for i in range(1000)]
    small, large = tmp_path / f"small.{kind}", tmp_path / f"large.{kind}"
    if kind == "parquet":
        with parquet.ParquetWriter(large, pyarrow.schema({"prompt": pyarrow.string()}), use_dictionary=False) as sink:
            for _ in range(125):
                sink.write_table(pyarrow.table({"prompt": texts}))
    else:
        with large.open("w") as sink:
            for _ in range(125):
                sink.write("".join(f'{{"prompt": "{text}"}}\n' for text in texts))
    write(small, ROWS[:1])
    path = ":".join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(small), str(large)],
        env={"PYTHONPATH": path, "ARROW_DEFAULT_MEMORY_POOL": "system"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(done.stdout) < 30
