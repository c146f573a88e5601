"""The program of a reward process: it loads functions and answers calls, on a socket that its parent holds.

Messages from the parent are pickled; its own are JSON, so that nothing which the user's code writes is ever unpickled
in the parent.
"""

import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from io import TextIOBase
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TextIO

from grpo_api.rewards.function import describe_error, describe_line, load, load_module, module_file
from grpo_api.rewards.no_gpu import use_cpu_for_cuda
from grpo_api.rewards.rows import RewardRow

OUTPUT_LIMIT = 2000
"""Characters that one call may print to the log; the rest is dropped."""


class Scorer(Protocol):
    """What the process calls: a user's function, or a rule with the same face."""

    @property
    def batch_size(self) -> int | None:
        """Rows that a call takes at most; None: all of a step."""

    @property
    def line(self) -> int | None:
        """Where the function begins in its file."""

    @property
    def file(self) -> str | None:
        """The user's file; None where there is none."""

    def __call__(self, rows: list[RewardRow], /) -> list[float | None]: ...


class _CappedOutput(TextIOBase):
    """Stands in for stdout and stderr, as a print loop over every sample must not flood the log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._left = OUTPUT_LIMIT

    def renew(self) -> None:
        self._left = OUTPUT_LIMIT

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._left > 0:
            cut = len(text) > self._left
            self._stream.write(text[: self._left] + (" [output cut]\n" if cut else ""))
            self._stream.flush()
        self._left -= len(text)
        return len(text)


def load_python(item: dict[str, Any]) -> Scorer:
    """The function of a `{name, source, function}` with an optional `file` to name in errors, or of a
    `{name, module, function, directory}`; either may have `params`."""
    params = item.get("params") or {}
    if "module" in item:
        return load_module(item["module"], item["function"], item["directory"], params)
    return load(item["name"], item["source"], item["function"], str(_file(item)), params)


def serve(fd: int, load_item: Callable[[dict[str, Any]], Scorer] = load_python) -> None:
    """Load the functions that the first message lists, then answer calls until the parent closes the socket.

    An item that `load_item` cannot load is reported, and calls to it are answered with the error.
    """
    connection = Connection(fd)
    threading.Thread(target=_follow_parent, args=(os.getppid(),), daemon=True).start()
    config = connection.recv()
    own = os.getpid()
    # What goes to the standard output past Python's own, such as that of a program it starts, has no limit: to nowhere.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if config["memory_limit"] is not None:
        _limit_memory(config["memory_limit"])
    output = _CappedOutput(sys.stderr)
    sys.stdout = sys.stderr = output
    use_cpu_for_cuda()

    scorers: list[Scorer | None] = []
    loaded: list[dict[str, Any]] = []
    for item in config["functions"]:
        try:
            scorer = load_item(item)
            scorers.append(scorer)
            form = getattr(getattr(scorer, "signature", None), "form", None)
            loaded.append({"batch_size": scorer.batch_size, "form": form, "error": None})
        except BaseException as error:  # the user's module may raise anything, SystemExit included
            scorers.append(None)
            loaded.append({"batch_size": 1, "form": None} | _failure(error, describe_error(error, _file(item))))
    files = {scorer.file for scorer in scorers if scorer and scorer.file}
    signal.signal(signal.SIGUSR1, lambda _, frame: _send(connection, {"where": _where(frame, files)}))
    _send(connection, {"loaded": loaded})

    while True:
        try:
            task, index, rows = connection.recv()
        except EOFError:
            return
        output.renew()
        scorer_now = scorers[index]
        answer = loaded[index] if scorer_now is None else _call(scorer_now, rows)
        if os.getpid() != own:
            os._exit(0)  # a child that the call forked, and that returned from it as well: its parent answers
        _send(connection, {"task": task} | answer)


def _file(item: dict[str, Any]) -> str | None:
    """The user's file of a function that may not have been loaded."""
    if "module" in item:
        return module_file(item["module"], item["directory"])
    return str(item.get("file") or f"{item['name']}.py") if "source" in item else None


def _call(scorer: Scorer, rows: list[RewardRow]) -> dict[str, Any]:
    begin = time.perf_counter()
    try:
        answer: dict[str, Any] = {"scores": scorer(rows)}
    except BaseException as error:  # the user's function may raise anything
        answer = _failure(error, describe_error(error, scorer.file, scorer.line))
    return answer | {"seconds": time.perf_counter() - begin}


def _where(frame: FrameType | None, files: set[str]) -> str:
    """The innermost line of the user's files that is running."""
    while frame is not None and frame.f_code.co_filename not in files:
        frame = frame.f_back
    return describe_line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) if frame else ""


def _failure(error: BaseException, text: str) -> dict[str, Any]:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    indivisible = getattr(error, "indivisible", False) is True  # a part of the rows would fail as well
    return {"error": text, "kind": type(error).__name__, "missing_module": missing, "indivisible": indivisible}


def _send(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


def _follow_parent(parent: int) -> None:
    """A process in an endless loop must not outlive a parent that was killed."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(0)


def _limit_memory(limit: int) -> None:
    # RLIMIT_DATA counts private writable memory. RLIMIT_AS would also count the address space that torch and its like
    # reserve without using it.
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    # Where the kernel must kill something, it shall be this process and not the trainer.
    Path("/proc/self/oom_score_adj").write_text("1000")
