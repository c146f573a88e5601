"""`grpoctl reward try`: reward functions on sample rows, here, called as the trainer's pool calls them."""

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from grpo_api.names import ExitCode
from grpo_api.reward_items import reward_item
from grpo_api.rewards.rows import RewardRow
from grpo_api.spec.reward import KINDS, PythonReward, RewardFunction, RewardSpec
from grpoctl.errors import CliError
from grpoctl.jobfile import read_job
from grpoctl.reward_rows import RowKeys, from_file, from_text, reward_rows
from grpoctl.reward_trial import Answer, Trial, file_item, module_advice
from grpoctl.terminal import make_console

reward_app = typer.Typer(help="Try reward functions.", no_args_is_help=True)
console = make_console()

DEFAULT_FUNCTION: str = PythonReward.model_fields["function"].default
_FORMS = {
    "verl": "verl's: one response a call",
    "trl": "TRL's: all responses in one call",
    "batch": "(batch): all responses in one call",
}


@dataclass
class RowResult:
    """What became of a row."""

    score: float | None
    cause: str = ""
    """exception, timeout, crash, none or nan, as in the trainer's metric."""
    error: str = ""
    seconds: float | None = None
    """Of its own call; None where one call scored all rows."""

    @property
    def failed(self) -> bool:
        """None is a function's right: it leaves the row to others, or out."""
        return self.cause not in ("", "none")


@dataclass
class Results:
    rows: list[RowResult]
    calls: list[float]
    """Seconds of each call."""
    batch_error: str = ""
    """Why one call for all rows failed, after which each row was tried alone, as in training."""
    missing_module: str | None = None


@reward_app.callback()
def _group() -> None:
    """Try reward functions before a job runs them."""


@reward_app.command("try")
def try_command(
    file: Annotated[
        str | None,
        typer.Argument(help="Python file that defines the function; else those of --job.", show_default=False),
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", help="Sample rows: .jsonl, .json or .parquet.")] = None,
    row: Annotated[list[str] | None, typer.Option("--row", help="A row as JSON; may be repeated.")] = None,
    function: Annotated[
        str | None,
        typer.Option("--function", help=f"Name of the function (default: {DEFAULT_FUNCTION}, or all of the job's)."),
    ] = None,
    job: Annotated[
        str | None,
        typer.Option(
            "--job", help="Job file: its functions where no FILE is given, its columns and timeout in any case."
        ),
    ] = None,
    count: Annotated[int, typer.Option("-n", min=1, help="Rows of --data at most.")] = 20,
    response_key: Annotated[
        str | None, typer.Option("--response-key", help="Column of the response (default: response, completion, ...).")
    ] = None,
    ground_truth_key: Annotated[
        str | None, typer.Option("--ground-truth-key", help="Column of the answer (default: as data.groundTruthKey).")
    ] = None,
    python: Annotated[
        str | None, typer.Option("--python", help="Interpreter to run it with, such as of an environment with torch.")
    ] = None,
) -> None:
    """Score sample rows with a reward function, or all of a job's, here, without a cluster or a GPU, called as in
    training.

    Rows hold prompt, response, ground truth and more columns. A ground truth stands in for a response that is missing.
    Exit code 0: every row has a score or None; 1: a row failed; 64: a function cannot be loaded.
    """
    if file is None and job is None:
        raise CliError("give a Python file, or --job JOB.yaml to try the job's own functions", 2)
    spec = read_job(job)[1].spec if job else None
    keys = RowKeys(spec.data.prompt_key, spec.data.ground_truth_key, spec.data.data_source_key) if spec else RowKeys()
    timeout = spec.reward.timeout_seconds if spec else float(RewardSpec.model_fields["timeout_seconds"].default)
    keys.response = response_key
    keys.ground_truth = ground_truth_key or keys.ground_truth
    if (data is None) == (not row):
        raise CliError("give sample rows: either --data FILE or --row JSON", 2)
    items = from_file(data, count) if data else [from_text(text, number) for number, text in enumerate(row or [])]
    if not items:
        raise CliError(f"--data {data} holds no rows")
    sample = reward_rows(items, keys, str(data) if data else "--row")
    for note in sample.notes:
        console.print(Text(f"note: {note}", style="yellow"), soft_wrap=True)
    failed = False
    for candidate in _candidates(file, function, spec.reward if spec else None, job):
        with Trial(candidate.item, candidate.where, python, timeout) as trial:
            print_head(candidate, trial.form, len(sample.rows))
            results = run(trial, sample.rows)
        print_results(results, sample.rows, timeout)
        failed |= any(result.failed for result in results.rows)
    if failed:
        raise typer.Exit(1)


@dataclass
class Candidate:
    """A function to try."""

    item: dict[str, Any]
    title: str
    where: str
    """The file, or the function's name in the job."""


def _candidates(file: str | None, name: str | None, reward: RewardSpec | None, job: str | None) -> list[Candidate]:
    """Raises CliError where there is none by that name, or none that can be called here."""
    if file is not None:
        name = name or DEFAULT_FUNCTION
        return [Candidate(file_item(file, name), f"{name} of {file}", file)]
    assert reward is not None
    wanted = [one for one in reward.functions if name in (None, one.name)]
    if not wanted:
        names = ", ".join(one.name for one in reward.functions)
        raise CliError(f"--function {name}: {job} has no such reward function; it has {names}", 2)
    found = []
    for one in wanted:
        if one.http and one.http.token_secret:
            text = f"{one.name} is not tried: its server wants a token from a Secret, which is read in the pods only"
            console.print(Text(text, style="yellow"), soft_wrap=True)
            continue
        title = f"{one.name} ({_kind(one)}, weight {one.weight:g})"
        found.append(Candidate(reward_item(one, reward.timeout_seconds), title, f"reward function {one.name}"))
    if not found:
        raise CliError(f"no reward function of {job} can be tried here", ExitCode.BAD_SPEC)
    return found


def _kind(function: RewardFunction) -> str:
    if function.builtin:
        return f"builtin {function.builtin.rule}"
    return next(kind for kind in KINDS if getattr(function, kind) is not None)


def run(trial: Trial, rows: list[RewardRow]) -> Results:
    """Call the function as the trainer's pool does: all rows at once where it takes them so, else a row at a time."""
    results = Results([], [])
    if trial.whole_batch:
        answer = trial.call(rows)
        results.calls.append(answer.seconds)
        if answer.scores is not None:
            results.rows = [_row_result(answer, score, None) for score in answer.scores]
            return results
        results.missing_module = answer.missing_module
        if len(rows) == 1:
            results.rows = [_row_result(answer, None, answer.seconds)]
            return results
        results.batch_error = f"{answer.cause}: {answer.error}"
    for row in rows:
        answer = trial.call([row])
        results.calls.append(answer.seconds)
        results.missing_module = results.missing_module or answer.missing_module
        results.rows.append(_row_result(answer, answer.scores[0] if answer.scores else None, answer.seconds))
    return results


def _row_result(answer: Answer, score: float | None, seconds: float | None) -> RowResult:
    if answer.scores is None:
        return RowResult(None, answer.cause, answer.error, seconds)
    if score is None:
        return RowResult(None, "none", "", seconds)
    if not math.isfinite(score):
        return RowResult(None, "nan", f"returned {score}", seconds)
    return RowResult(score, seconds=seconds)


def print_head(candidate: Candidate, form: str | None, rows: int) -> None:
    signature = f"; its signature is {_FORMS[form]}" if form else ""
    text = f"{candidate.title} on {rows} row{'s' if rows > 1 else ''}{signature}"
    console.print(Text(text), soft_wrap=True)


def print_results(results: Results, rows: list[RewardRow], timeout: float) -> None:
    if results.batch_error:
        text = f"one call for all rows failed ({results.batch_error}); each row was tried alone, as in training"
        console.print(Text(text, style="red"), soft_wrap=True)
    alone = any(result.seconds is not None for result in results.rows)
    table = Table(box=None, pad_edge=False)
    for title in ("row", "score", *(["time"] if alone else [])):
        table.add_column(title, justify="right")
    table.add_column("response", no_wrap=True, overflow="ellipsis")
    for number, (result, row) in enumerate(zip(results.rows, rows, strict=True)):
        score = f"{result.score:.6g}" if result.score is not None else result.cause
        cells = [Text(str(number)), Text(score, style="red" if result.failed else "")]
        cells += [Text("" if result.seconds is None else _time(result.seconds))] if alone else []
        table.add_row(*cells, Text(" ".join(row.completion.split())[:200]))
    console.print(table)
    for number, result in enumerate(results.rows):
        if result.error:
            console.print(Text(f"row {number}: {result.error}", style="red"), soft_wrap=True)
    if results.missing_module:
        console.print(Text(module_advice(results.missing_module), style="yellow"), soft_wrap=True)
    _print_summary(results, timeout)


def _print_summary(results: Results, timeout: float) -> None:
    scores = [result.score for result in results.rows if result.score is not None]
    parts = [f"{len(scores)} of {len(results.rows)} rows scored"]
    if scores:
        parts.append(f"mean {fmean(scores):.6g}, least {min(scores):.6g}, greatest {max(scores):.6g}")
    if nones := sum(result.cause == "none" for result in results.rows):
        parts.append(f"{nones} None (left out of training, or 0 under onError: Zero)")
    if failed := sum(result.failed for result in results.rows):
        parts.append(f"{failed} failed")
    console.print(Text("; ".join(parts)), soft_wrap=True)
    calls = results.calls
    text = f"{len(calls)} calls: median {_time(median(calls))}, slowest {_time(max(calls))}"
    if len(calls) == 1:
        text = f"1 call: {_time(calls[0])}"
    console.print(Text(f"{text}; a call may take {timeout:g} s (reward.timeoutSeconds)"), soft_wrap=True)


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.0f} us"
