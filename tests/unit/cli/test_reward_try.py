"""`grpoctl reward try`: a function file on sample rows, through the command line and real processes."""

import importlib.util
import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from grpoctl.errors import CliError
from grpoctl.main import app

VERL = "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
JOB = """\
apiVersion: grpo.dev/v1alpha1
kind: GRPOJob
metadata: {name: sums}
spec:
  model: {path: /models/m}
  data: {train: {files: [/rows.jsonl]}, trainBatchSize: 4, promptKey: question, groundTruthKey: final.answer}
  reward: {functions: [{name: correct, builtin: {rule: numeric}}], timeoutSeconds: 1}
  rollout: {n: 2}
  actor: {ppoMiniBatchSize: 4, ppoMicroBatchSizePerGpu: 4}
  trainer: {totalSteps: 2, nnodes: 1, nGpusPerNode: 1}
"""


@pytest.fixture
def attempt(tmp_path, monkeypatch):
    """Runs the command on a source; returns exit code and text (the error's where it raised one)."""
    monkeypatch.chdir(tmp_path)

    def run(source: str, *arguments: str, rows: list[dict] | None = None) -> tuple[int, str]:
        (tmp_path / "mine.py").write_text(source)
        if rows is not None:
            (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            arguments = ("--data", "rows.jsonl", *arguments)
        result = CliRunner().invoke(app, ["reward", "try", "mine.py", *arguments], env={"COLUMNS": "200"})
        if isinstance(result.exception, CliError):
            return int(result.exception.exit_code), str(result.exception)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.output

    return run


@pytest.fixture
def attempt_job(tmp_path, monkeypatch):
    """Runs the command on the functions of a job; returns exit code and text."""
    monkeypatch.chdir(tmp_path)

    def run(functions: list[dict], *arguments: str) -> tuple[int, str]:
        (tmp_path / "job.yaml").write_text(
            JOB.replace("[{name: correct, builtin: {rule: numeric}}]", json.dumps(functions))
        )
        row = json.dumps({"question": "3 + 4", "final": {"answer": "7"}, "response": "It is 7"})
        arguments = ("reward", "try", "--job", "job.yaml", "--row", row, *arguments)
        result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
        if isinstance(result.exception, CliError):
            return int(result.exception.exit_code), str(result.exception)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.output

    return run


BUILTIN = {"name": "right", "builtin": {"rule": "numeric"}, "weight": 2}
INLINE = {
    "name": "short",
    "python": {"source": "def compute_score(batch):\n    return [0.25] * len(batch['response'])\n"},
}
NUMBERS = "def has(solution_str, digit):\n    return float(digit in solution_str) / 2\n"


def module(tmp_path, path: str = "rules.numbers:has") -> dict:
    (tmp_path / "volume" / "rules").mkdir(parents=True, exist_ok=True)
    (tmp_path / "volume" / "rules" / "numbers.py").write_text(NUMBERS)
    module = {"path": path, "directory": str(tmp_path / "volume"), "params": {"digit": "7"}}
    return {"name": "digit", "module": module}


def test_all_functions_of_a_job(attempt_job, tmp_path):
    """A builtin rule, an inline function of all rows and one of a module, each by its own head and scores."""
    secret = {
        "name": "server",
        "http": {"url": "http://a/b", "timeoutSeconds": 0.5, "tokenSecret": {"name": "s", "key": "k"}},
    }
    code, text = attempt_job([BUILTIN, INLINE, module(tmp_path), secret])
    assert code == 0, text
    heads = [line for line in text.splitlines() if " on 1 row" in line]
    assert heads[0] == "right (builtin numeric, weight 2) on 1 row"
    assert heads[1].startswith("short (python, weight 1) on 1 row; its signature is (batch)")
    assert heads[2].startswith("digit (module, weight 1) on 1 row; its signature is verl's")
    means = [line.split("mean ")[1].split(",")[0] for line in text.splitlines() if "1 of 1 rows scored" in line]
    assert means == ["1", "0.25", "0.5"]
    assert "server is not tried: its server wants a token from a Secret" in text


def test_one_function_of_a_job(attempt_job):
    code, text = attempt_job([BUILTIN, INLINE], "--function", "short")
    assert (code, "right (" in text, "short (" in text) == (0, False, True)
    assert attempt_job([BUILTIN, INLINE], "--function", "long") == (
        2,
        "--function long: job.yaml has no such reward function; it has right, short",
    )


def test_functions_of_a_job_that_cannot_be_loaded(attempt_job, tmp_path):
    code, text = attempt_job([module(tmp_path, "rules.letters:has")])
    assert code == 1
    assert "reward function digit: " in text
    assert "letters" in text
    code, text = attempt_job([module(tmp_path, "rules.numbers:had")])
    assert code == 64
    assert "had" in text


def test_a_row_that_fails_in_one_of_a_jobs_functions_fails_the_command(attempt_job):
    code, text = attempt_job([{"name": "bad", "python": {"source": f"{VERL}    return 1 / 0\n"}}, BUILTIN])
    assert code == 1
    assert "ZeroDivisionError" in text
    assert "right (builtin numeric, weight 2)" in text


def test_verl_on_rows_of_its_own_shape(attempt):
    source = f"{VERL}    assert (extra_info, data_source) == ({{'split': 'train'}}, 'gsm8k')\n"
    source += "    return solution_str == ground_truth\n"
    row = {
        "data_source": "gsm8k",
        "prompt": [{"role": "user", "content": "What is 3 + 4?"}],
        "reward_model": {"ground_truth": "7"},
        "extra_info": {"split": "train"},
    }
    code, text = attempt(source, rows=[row | {"response": answer} for answer in ("7", "8")])
    assert code == 0
    assert "compute_score of mine.py on 2 rows; its signature is verl's: one response a call" in text
    assert "2 of 2 rows scored; mean 0.5, least 0, greatest 1" in text
    assert "2 calls: median " in text
    assert "a call may take 30 s" in text
    assert "note" not in text


def test_the_ground_truth_stands_in_for_a_response(attempt):
    rows = [{"prompt": "p", "reward_model": {"ground_truth": "7"}}]
    code, text = attempt(f"{VERL}    return solution_str == '7'\n", rows=rows)
    assert code == 0
    assert "note: no response in the rows (response, completion, solution_str): each row's own ground truth" in text
    assert "mean 1," in text


def test_trl_and_batch_take_all_rows_in_one_call(attempt):
    rows = [{"prompt": "p", "completion": text, "answer": "7"} for text in ("7", "8", "skip")]
    source = """
def compute_score(prompts, completions, answer, **columns):
    assert "completion" not in columns
    return [None if text == "skip" else float(text == a) for text, a in zip(completions, answer)]

def reward_fn(batch):
    assert batch["answer"] == ["7"] * len(batch["response"])
    return [len(batch["response"])] * len(batch["prompt"])
"""
    code, text = attempt(source, rows=rows)
    assert code == 0
    assert "TRL's: all responses in one call" in text
    assert "2 of 3 rows scored; mean 0.5, least 0, greatest 1; 1 None (left out of training" in text
    assert "1 call: " in text
    code, text = attempt(source, "--function", "reward_fn", "-n", "2", rows=rows)
    assert code == 0
    assert "(batch): all responses in one call" in text
    assert "mean 2," in text


def test_trl_on_messages(attempt):
    source = "def compute_score(completions, **_): return [float(c[0]['content'] == '7') for c in completions]\n"
    messages = [{"role": "user", "content": "p"}]
    rows = [{"prompt": messages, "completion": [{"role": "assistant", "content": text}]} for text in "78"]
    assert "mean 0.5" in attempt(source, rows=rows)[1]


MISBEHAVING = f"""
import os
{VERL}
    if solution_str == "raise":
        return 1 / 0
    if solution_str == "hang":
        while True: pass
    if solution_str == "die": os._exit(3)
    if solution_str == "nan": return float("nan")
    if solution_str == "text": return "1.0"
    return 1.0
"""


def test_a_row_that_fails_costs_itself_alone(attempt, tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    rows = [
        {"question": "p", "final": {"answer": "7"}, "response": text}
        for text in ("good", "raise", "hang", "die", "nan", "text", "[red]good")
    ]
    code, text = attempt(MISBEHAVING, "--job", "job.yaml", rows=rows)
    assert code == 1
    assert "note" not in text
    assert "row 1: mine.py, line 6, in compute_score: ZeroDivisionError: division by zero" in text
    assert (
        "row 2: mine.py, line 8, in compute_score: the call took more than reward.timeoutSeconds (1 s) and was killed"
        in text
    )
    assert "row 3: its process ended (code 3) during the call" in text
    assert "row 4: returned nan" in text
    assert "row 5: mine.py, line 3: TypeError: returned str '1.0'" in text
    assert "2 of 7 rows scored; mean 1, least 1, greatest 1; 5 failed" in text
    assert "[red]good" in text


def test_a_batch_that_fails_is_tried_by_the_row(attempt):
    source = "def compute_score(batch): return [1 / len(text) for text in batch['response']]\n"
    rows = [{"prompt": "p", "response": text, "ground_truth": 1} for text in ("ab", "")]
    code, text = attempt(source, rows=rows)
    assert code == 1
    assert "one call for all rows failed (exception: mine.py, line 1, in <listcomp>: ZeroDivisionError" in text
    assert "1 of 2 rows scored; mean 0.5, least 0.5, greatest 0.5; 1 failed" in text


@pytest.mark.parametrize(
    ("source", "code", "message"),
    [
        (f"{VERL}    return (1\n", 64, "mine.py, line 2: SyntaxError: '(' was never closed"),
        ("x = 1 / 0\n", 64, "mine.py, line 1: ZeroDivisionError"),
        ("def compute_score(text): pass", 64, "its parameters are text. The names of the parameters decide"),
        ("import re\ndef reward_fn(batch): pass", 64, "which defines reward_fn; name another with --function"),
        ("import os\nos._exit(7)", 64, "mine.py: its process ended (code 7) while it imported the file"),
        ("import no_such_module", 1, "keep all in one file"),
        ("import helper", 1, "keep all in one file"),
    ],
)
def test_what_is_no_usable_function(attempt, tmp_path, source, code, message):
    (tmp_path / "helper.py").write_text("")  # a pod would not have it
    got, text = attempt(source, "--row", '{"response": "7"}')
    assert message in text
    assert got == code


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed here")
@pytest.mark.parametrize("late", [False, True])
def test_a_missing_torch_is_explained(attempt, late):
    inside, outside = ("    import torch\n", "") if late else ("", "import torch\n")
    code, text = attempt(f"{outside}{VERL}{inside}    return 1\n", "--row", '{"response": "7"}')
    assert code == 1
    assert f"line {2 if late else 1}" in text
    assert "No module named 'torch'" in text
    assert "--python PATH" in text
    assert "make setup-trainer" in text


def test_another_interpreter_sees_its_own_packages_only(attempt, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "bare"], cwd=tmp_path, check=True)
    python = str(tmp_path / "bare" / "bin" / "python")
    source = "import sys\nfrom importlib.util import find_spec\n"
    source += f"{VERL}    return float('bare' in sys.prefix and not find_spec('typer'))\n"
    code, text = attempt(source, "--python", python, "--row", '{"response": "7"}')
    assert code == 0, text
    assert "mean 1," in text
    code, text = attempt(source, "--python", "/no/such/python", "--row", '{"response": "7"}')
    assert (code, text) == (1, "--python /no/such/python: No such file or directory")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "either --data FILE or --row JSON"),
        (("--row", "{}"), 1, "row 0 has no response (a text in column response, completion, solution_str)"),
        (("--row", "{7"), 2, "--row 0 is no JSON"),
        (("--row", "[1]"), 1, "--row 0 is a list; it must be an object"),
        (("--data", "absent.jsonl"), 1, "--data absent.jsonl: no such file"),
        (("--data", "mine.py"), 2, "must end in .jsonl, .json or .parquet"),
        (("--data", "bad.jsonl"), 1, "--data bad.jsonl, line 2, column 7: Expecting value"),
        (("--data", "empty.jsonl"), 1, "holds no rows"),
        (("--data", "bad.parquet"), 1, "--data bad.parquet: "),
        (("--row", '{"a": 1, "response": "x"}', "--response-key", "b"), 1, "its columns are a, response"),
        (("--job", "empty.jsonl", "--row", '{"response": "7"}'), 64, "it must hold one GRPOJob"),
    ],
)
def test_bad_arguments(attempt, tmp_path, arguments, code, message):
    (tmp_path / "bad.jsonl").write_text('{"response": "7"}\n{"a": }\n')
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "bad.parquet").write_text("no parquet")
    got, text = attempt(f"{VERL}    return 1\n", *arguments)
    assert message in text
    assert got == code


def test_json_and_parquet_files(attempt, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [{"prompt": "p", "response": str(number), "answer": number} for number in range(30)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    source = f"{VERL}    return int(solution_str) == ground_truth\n"
    for file in ("rows.parquet", "rows.json"):
        code, text = attempt(source, "--data", file, "--ground-truth-key", "answer", "-n", "25")
        assert code == 0
        assert "25 of 25 rows scored; mean 1," in text


def test_what_the_function_prints_goes_to_stderr(tmp_path):
    (tmp_path / "mine.py").write_text(f"{VERL}    print('seen', solution_str)\n    return 1\n")
    command = [sys.executable, "-m", "grpoctl.main", "reward", "try", "mine.py", "--row", '{"response": "7"}']
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "seen 7" in done.stderr
    assert "seen" not in done.stdout
