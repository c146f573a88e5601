"""`grpoctl import verl`: a GRPOJob from verl's configuration; the report of what became of every key goes to stderr."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from grpo_api.names import ExitCode
from grpo_api.verl_import import Source, VerlImportError, dump_job, import_verl, key_table
from grpoctl.errors import CliError

import_app = typer.Typer(help="Make a GRPOJob from another tool's configuration.", no_args_is_help=True)


@import_app.callback()
def _group() -> None:
    """Make a GRPOJob from another tool's configuration."""


@import_app.command("verl", no_args_is_help=True)
def verl(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE|SCRIPT|KEY=VALUE]...",
            help="verl's YAML files, shell scripts that start it, and overrides; - reads standard input.",
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the job here, not to stdout.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the job (default: the experiment's).")] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Print the table of keys and what becomes of them.")] = False,
) -> None:
    """Make a GRPOJob from verl's configuration, and say on stderr what became of every key."""
    if keys:
        print(key_table(), end="")
        return
    if not inputs:
        raise CliError("nothing to import; name a file, a script or key=value", 2)
    sources = [_source(text) for text in inputs]
    folders = [Path(), *(Path(source.name).parent for source in sources if source.kind != "override")]
    try:
        job, report = import_verl(sources, name=name, env=os.environ, read=_reader(folders))
    except VerlImportError as error:
        count = "1 fault" if len(error.faults) == 1 else f"{len(error.faults)} faults"
        raise CliError("\n  ".join([f"no job was made: {count}", *map(str, error.faults)]), ExitCode.BAD_SPEC) from None
    files = ", ".join(Path(source.name).name for source in sources if source.kind != "override")
    text = dump_job(job, report, files or "the command line")
    if output is None:
        print(text, end="")
    else:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise CliError(f"cannot write {output}: {error.strerror}") from None
    where = output if output is not None else "stdout"
    print(
        "\n".join([*report.lines(), f"GRPOJob {job['metadata']['name']} -> {where}: {report.summary()}"]),
        file=sys.stderr,
    )


def _source(text: str) -> Source:
    """A file where there is one of that name, else an override."""
    if text == "-":
        return Source.file("standard input", sys.stdin.read())
    path = Path(text)
    try:
        if path.is_file():
            return Source.file(text, path.read_bytes().decode("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"cannot read {text}: {getattr(error, 'strerror', None) or error}") from None
    if "=" not in text and not text.startswith("~"):
        raise CliError(f"{text} is neither a file nor key=value", 2)
    return Source.override(text)


def _reader(folders: Sequence[Path]) -> Callable[[str], str | None]:
    """Reads the files that the input names: from the working directory, else beside the input's files."""

    def read(path: str) -> str | None:
        for folder in folders:
            found = folder / Path(path).expanduser()
            try:
                return found.read_bytes().decode("utf-8")
            except (OSError, UnicodeDecodeError, ValueError):
                continue
        return None

    return read
