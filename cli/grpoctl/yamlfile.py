"""One object from a YAML or JSON file, by YAML 1.2."""

import sys
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from grpo_api.names import ExitCode
from grpoctl.errors import CliError

MAX_BYTES = 3 * 2**20
"""The API server's limit on a request."""
MAX_DEPTH = 100
MAX_VALUES = 1_000_000
"""Values after anchors are written out: a page of YAML can stand for more than any memory holds."""


class _Constructor(SafeConstructor):
    """As kubectl: a date is text."""


_Constructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)


def read_yaml(file: str) -> dict[str, Any]:
    """The one object of a YAML or JSON file (`-`: standard input), by YAML 1.2, where `1e-6` is a number.

    Raises CliError with the line where the text is no YAML, and where it holds anything but one object.
    """
    documents = _load(file, _read(file))
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise CliError(f"{file} holds {_describe(documents)}; it must hold one GRPOJob", ExitCode.BAD_SPEC)
    _check_extent(file, documents[0])
    return documents[0]


def _read(file: str) -> str:
    try:
        data = sys.stdin.buffer.read(MAX_BYTES + 1) if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise CliError(f"cannot read {file}: {error.strerror or error}") from None
    if len(data) > MAX_BYTES:
        size = "more" if file == "-" else f"{len(data)} bytes, more"
        raise CliError(
            f"{file} has {size} than the {MAX_BYTES} that the API server takes: move large sources into the image",
            ExitCode.BAD_SPEC,
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CliError(
            f"{file}: byte {error.start} (0x{data[error.start]:02x}) is not UTF-8: save the file as UTF-8",
            ExitCode.BAD_SPEC,
        ) from None


def _load(file: str, text: str) -> list[Any]:
    reader = YAML(typ="safe", pure=True)
    reader.Constructor = _Constructor
    try:
        return [item for item in reader.load_all(text) if item is not None]
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = error.problem or error.context or "is no YAML"
        if "'\\t'" in problem:
            problem += "; indent with spaces, not with tabs"
        raise CliError(f"{file}{where}: {problem}", ExitCode.BAD_SPEC) from None
    except YAMLError as error:
        raise CliError(f"{file}: {error}", ExitCode.BAD_SPEC) from None
    except RecursionError:
        raise CliError(f"{file}: is nested more than {MAX_DEPTH} levels deep", ExitCode.BAD_SPEC) from None


def _describe(documents: list[Any]) -> str:
    if not documents:
        return "nothing"
    if len(documents) > 1:
        return f"{len(documents)} documents"
    kind = {list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false"}
    return kind.get(type(documents[0]), f"a {type(documents[0]).__name__}")


def _check_extent(file: str, document: dict[str, Any]) -> None:
    """Refuse what no JSON can be made of: an anchor inside itself, or more levels or values than any job needs."""
    level: list[Any] = [document]
    depth = count = 0
    while level:
        depth += 1
        count += len(level)
        if depth > MAX_DEPTH:
            message = f"is nested more than {MAX_DEPTH} levels deep, or an anchor holds itself"
            raise CliError(f"{file}: {message}", ExitCode.BAD_SPEC)
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict | list):
                below.extend(item.values() if isinstance(item, dict) else item)
            if count + len(below) > MAX_VALUES:
                message = f"its anchors stand for more than {MAX_VALUES} values: write out what the job needs"
                raise CliError(f"{file}: {message}", ExitCode.BAD_SPEC)
        level = below
