"""The user's reward functions: load a source text, call its function, check the result, and say where it failed."""

import importlib
import inspect
import linecache
import math
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from importlib.machinery import PathFinder
from numbers import Real
from types import ModuleType
from typing import Any

from grpo_api.rewards.rows import RewardRow
from grpo_api.rewards.signature import Signature, SignatureError, recognise


class MissingFunctionError(Exception):
    """A source that does not define the function."""


class Batch(dict[str, Any]):
    """What a `fn(batch)` function is given: lists of equal length, by key."""

    def __missing__(self, key: object) -> Any:
        raise KeyError(f"{key}; the batch has {', '.join(map(str, self))}")


@dataclass
class PythonFunction:
    """A loaded function."""

    function: Callable[..., Any]
    signature: Signature
    file: str
    """The user's file, by the name that tracebacks give it."""

    @property
    def line(self) -> int | None:
        """Where its definition begins, for errors about its result."""
        function = self.function.func if isinstance(self.function, partial) else self.function
        code = getattr(inspect.unwrap(function), "__code__", None)
        return code.co_firstlineno if code else None

    @property
    def batch_size(self) -> int | None:
        """Rows that a call takes at most; None: all of a step."""
        return 1 if self.signature.form == "verl" else None

    def __call__(self, rows: Sequence[RewardRow]) -> list[float | None]:
        """Scores of the rows. Raises TypeError on a wrong result, and what the function raises."""
        if self.signature.form == "verl":
            return [_one_score(self._by_name(_verl_arguments(rows[0])))]
        if self.signature.form == "trl":
            return as_scores(self._by_name(_columns(rows) | _conversations(rows)), len(rows))
        texts = {"prompt": [row.prompt for row in rows], "response": [row.completion for row in rows]}
        batch = Batch(texts | _columns(rows) | texts)  # first for messages, last so that no column replaces them
        if "batch" in self.signature.parameters:
            return as_scores(_finished(self.function(batch=batch)), len(rows))
        return as_scores(_finished(self.function(batch)), len(rows))

    def _by_name(self, arguments: dict[str, Any]) -> Any:
        signature = self.signature
        if absent := signature.required - arguments.keys() - _TRL_LOGGERS:
            raise TypeError(f"needs {', '.join(sorted(absent))}, and the rows have {', '.join(arguments)}")
        if not signature.takes_any:
            arguments = {key: value for key, value in arguments.items() if key in signature.parameters}
        if signature.form == "trl":
            loggers = (signature.parameters & _TRL_LOGGERS) - arguments.keys()
            arguments |= dict.fromkeys(loggers, _ignore)
        return _finished(self.function(**arguments))


_TRL_LOGGERS = frozenset({"log_extra", "log_metric"})
"""Callbacks that TRL gives to functions which name them; what they log is dropped here."""


def _ignore(*_: Any, **__: Any) -> None:
    pass


def _verl_arguments(row: RewardRow) -> dict[str, Any]:
    return {
        "data_source": row.data_source,
        "solution_str": row.completion,
        "ground_truth": row.ground_truth,
        "extra_info": row.extra_info,
    }


def _columns(rows: Sequence[RewardRow]) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "ground_truth": [row.ground_truth for row in rows],
        "data_source": [row.data_source for row in rows],
        "extra_info": [row.extra_info for row in rows],
    }
    keys = dict.fromkeys(key for row in rows for key in row.columns)
    return columns | {key: [row.columns.get(key) for row in rows] for key in keys}


def _conversations(rows: Sequence[RewardRow]) -> dict[str, Any]:
    """Prompts and completions as TRL gives them: both texts, or both messages where the data's prompts are messages."""
    return {
        "prompts": [row.messages or row.prompt for row in rows],
        "completions": [
            [{"role": "assistant", "content": row.completion}] if row.messages else row.completion for row in rows
        ],
    }


def _finished(result: Any) -> Any:
    if not inspect.isawaitable(result):
        return result
    import asyncio  # a third of a process's start, for the few that need it

    return asyncio.run(_wait(result))


async def _wait(awaitable: Any) -> Any:
    return await awaitable


def _one_score(result: Any) -> float | None:
    if isinstance(result, dict):
        if "score" not in result:
            raise TypeError(f"returned a dict with keys {sorted(map(str, result))}; it must hold `score`")
        result = result["score"]
    return as_score(result)


def as_scores(results: Any, count: int) -> list[float | None]:
    """A score for each row, of a list, or of a tensor or array of shape (count,). Raises TypeError on anything else."""
    shape = getattr(results, "shape", None)
    if shape is not None and len(shape) != 1:
        raise TypeError(f"returned a {type(results).__name__} of shape {tuple(shape)}; it must be ({count},)")
    if isinstance(results, str | bytes | Mapping | Set) or not hasattr(results, "__len__"):
        raise TypeError(
            f"returned {_short(results)}; it must return a list with a float or None for each of the {count} "
            f"completions, or a tensor or array of shape ({count},)"
        )
    if len(results) != count:
        raise TypeError(f"returned {len(results)} scores for {count} completions")
    # Reading a tensor an element at a time takes microseconds for each.
    return [as_score(result) for result in (results if shape is None else results.tolist())]


def as_score(value: Any) -> float | None:
    """A score as float (NaN and infinities pass through), None as None; else raises TypeError."""
    if value is None:
        return None
    # numpy and torch scalars are no Real but convert; so would strings, which are a mistake.
    if isinstance(value, Real) or (hasattr(value, "__float__") and not isinstance(value, str)):
        return float(value)
    raise TypeError(f"returned {_short(value)}; a score must be a number or None")


def is_valid(score: float | None) -> bool:
    """It counts: neither None nor NaN nor infinite."""
    return score is not None and math.isfinite(score)


def load(name: str, source: str, function: str, file: str, params: Mapping[str, Any]) -> PythonFunction:
    """Run a source text as a module, under `file` in tracebacks, and take its function, called with `params` besides.

    Raises what the source raises (SyntaxError included), MissingFunctionError, SignatureError.
    """
    code = compile(source, file, "exec", dont_inherit=True)
    # Tracebacks and inspect.getsource find the text here, as no such file need exist.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    module = ModuleType(f"grpo_reward_{name.replace('-', '_')}")
    module.__file__ = file
    sys.modules[module.__name__] = module  # dataclasses and pickle look the module up by name
    exec(code, module.__dict__)
    return _take(module, function, file, params)


def load_module(name: str, function: str, directory: str | None, params: Mapping[str, Any]) -> PythonFunction:
    """Import a module, with `directory` searched first, and take its function, called with `params` besides.

    Raises ModuleNotFoundError, what the module raises, MissingFunctionError, SignatureError.
    """
    if directory is not None and directory not in sys.path:
        sys.path.insert(0, directory)
    module = importlib.import_module(name)
    return _take(module, function, module.__file__ or name, params)


def module_file(name: str, directory: str | None) -> str | None:
    """Where a module's text is, found without running it; None where it cannot be found so."""
    found = PathFinder.find_spec(name.split(".")[0], [*filter(None, [directory]), *sys.path])
    for part in name.split(".")[1:]:
        if found is None or found.submodule_search_locations is None:
            return None
        found = PathFinder.find_spec(f"{found.name}.{part}", found.submodule_search_locations)
    return found.origin if found is not None else None


def _take(module: ModuleType, function: str, file: str, params: Mapping[str, Any]) -> PythonFunction:
    if not hasattr(module, function):
        defined = [
            key
            for key, value in vars(module).items()
            if callable(value) and not key.startswith("_") and getattr(value, "__module__", None) == module.__name__
        ]
        raise MissingFunctionError(
            f"{function} is not defined in the source, which defines {', '.join(defined) or 'nothing'}"
        )
    found = getattr(module, function)
    if params and callable(found):
        found = partial(found, **params)
    return PythonFunction(found, recognise(function, found), file)


def describe_error(error: BaseException, file: str | None, line: int | None = None) -> str:
    """`mine.py, line 3, in compute_score: ZeroDivisionError: ...`, by the innermost line of the user's file.

    `line` stands in where none of the file's lines was running. Without a file the error alone.
    """
    if file is None:
        return "".join(traceback.format_exception_only(error)).strip()[:1000]
    if isinstance(error, SyntaxError) and error.filename == file:
        return f"{file}, line {error.lineno}: {type(error).__name__}: {error.msg}: {(error.text or '').strip()[:200]}"
    if isinstance(error, SignatureError | MissingFunctionError):
        return f"{file}: {error}"
    text = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1][:1000]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if not frames:
        return f"{file}, line {line}: {text}" if line else f"{file}: {text}"
    return f"{describe_line(file, frames[-1].lineno, frames[-1].name)}: {text}"


def describe_line(file: str, line: int | None, function: str) -> str:
    """`mine.py, line 3, in compute_score`."""
    return f"{file}, line {line}" + ("" if function == "<module>" else f", in {function}")


def _short(value: Any) -> str:
    shown = repr(value)
    return f"{type(value).__name__} {shown if len(shown) <= 80 else shown[:77] + '...'}"
