"""Calls of one reward function in a process like those of the trainer's pool."""

import importlib.util
import sys
import time
import tokenize
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Any

import grpo_api
from grpo_api.names import REWARD_WORKER, ExitCode
from grpo_api.rewards.process import LOAD_TIMEOUT, RewardProcess, describe_end
from grpo_api.rewards.rows import RewardRow
from grpoctl.errors import CliError

# Another interpreter finds grpo_api.rewards here and nothing else: neither the CLI's own packages nor what lies in the
# working directory, which a pod would not have.
_PROGRAM = """
import sys
sys.version_info >= (3, 11) or sys.exit("Python 3.11 or later is needed, and this is " + sys.version.split()[0])
sys.path[:] = [{root!r}, *filter(None, sys.path)]
from grpo_api.rewards.worker import serve
sys.path.remove({root!r})
serve(int(sys.argv[1]))
"""
# Rules, servers and classifiers are called by the trainer's own code, which comes with this package.
_TRAINER_PROGRAM = """
import sys
sys.path[:] = [{root!r}, *filter(None, sys.path), {trainer!r}]
from grpo_api.rewards.worker import serve
from {worker} import load_item
serve(int(sys.argv[1]), load_item)
"""


@dataclass
class Answer:
    """What a call came to: a score for each row, or why there is none."""

    scores: list[float | None] | None
    seconds: float
    cause: str = ""
    """exception, timeout or crash."""
    error: str = ""
    missing_module: str | None = None


class Trial:
    """One function, to be used as a context manager. Raises CliError where it cannot be loaded."""

    def __init__(self, item: dict[str, Any], what: str, python: str | None, timeout: float) -> None:
        """`item` is what the process loads (`grpo_api.reward_items`, `file_item`); `what` names it in messages."""
        self._item, self._what, self._python, self._timeout = item, what, python, timeout
        self._process: RewardProcess | None = None
        loaded = self._running().loaded
        assert loaded is not None
        self.form: str | None = loaded[0]["form"]
        """How a Python function is called; None for the other kinds."""
        self.whole_batch = loaded[0]["batch_size"] is None

    def __enter__(self) -> "Trial":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()

    def call(self, rows: list[RewardRow]) -> Answer:
        """Call the function on some rows, in a new process where the last one is gone."""
        process = self._running()
        begin = time.monotonic()
        try:
            process.connection.send((0, 0, rows))
            if not wait([process.connection], self._timeout):
                text = process.overdue(self._timeout)
                self._end()
                return Answer(None, time.monotonic() - begin, "timeout", text)
            message = process.receive()
        except (EOFError, OSError, ValueError):  # ValueError: the user's code wrote into the socket
            return Answer(None, time.monotonic() - begin, "crash", f"{describe_end(self._end())} during the call")
        if "error" in message:
            return Answer(None, message["seconds"], "exception", message["error"], message["missing_module"])
        return Answer(message["scores"], message["seconds"])

    def _running(self) -> RewardProcess:
        if self._process is None:
            self._process = self._start()
        return self._process

    def _start(self) -> RewardProcess:
        python = self._python or sys.executable
        root = str(Path(grpo_api.__file__).parents[1])
        try:
            config = {"memory_limit": None, "functions": [self._item]}
            process = RewardProcess([python, "-c", self._program(root)], config, {})
        except OSError as error:
            raise CliError(f"--python {python}: {error.strerror or error}") from None
        heard = False
        try:
            heard = bool(wait([process.connection], LOAD_TIMEOUT))
            if not heard:
                raise CliError(f"{self._what}: importing it took more than {LOAD_TIMEOUT:g} s", ExitCode.BAD_SPEC)
            process.loaded = process.receive()["loaded"]
            _refuse(process.loaded[0], self._what)
        except (EOFError, OSError, ValueError):
            end = describe_end(process.kill())
            thing = "file" if "file" in self._item else "function"
            raise CliError(f"{self._what}: {end} while it imported the {thing}", ExitCode.BAD_SPEC) from None
        except BaseException:
            process.kill()
            raise
        return process

    def _program(self, root: str) -> str:
        if {"source", "module"} & self._item.keys():
            return _PROGRAM.format(root=root)
        found = importlib.util.find_spec(REWARD_WORKER.partition(".")[0])
        if found is None or found.origin is None:
            raise CliError(
                f"{self._what}: needs the trainer's package beside this command: install grpo-operator whole"
            )
        return _TRAINER_PROGRAM.format(root=root, trainer=str(Path(found.origin).parents[1]), worker=REWARD_WORKER)

    def _end(self) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        return process.kill()


def file_item(file: str, function: str) -> dict[str, Any]:
    """What a process loads for a function of a file. Raises CliError where the file cannot be read."""
    return {"name": Path(file).stem, "source": _read(file), "function": function, "file": file}


def _read(file: str) -> str:
    try:
        with tokenize.open(file) as source:
            return source.read()
    except OSError as error:
        raise CliError(f"cannot read {file}: {error.strerror or error}") from None
    except (SyntaxError, UnicodeDecodeError) as error:
        raise CliError(f"{file} is no Python source: {error}", ExitCode.BAD_SPEC) from None


def _refuse(loaded: dict[str, Any], what: str) -> None:
    if loaded["error"] is None:
        return
    error = loaded["error"] if what in loaded["error"] else f"{what}: {loaded['error']}"
    if loaded["missing_module"]:
        raise CliError(f"{error}\n{module_advice(loaded['missing_module'])}")
    hint = "; name another with --function" if loaded["kind"] == "MissingFunctionError" else ""
    raise CliError(error + hint, ExitCode.BAD_SPEC)


def module_advice(module: str) -> str:
    """Where a function that imports a missing module can be run."""
    if module.split(".")[0] in _IN_TRAINER_IMAGE:
        return (
            f"{module.split('.')[0]} is in the trainer's image but not in the environment that ran this. Run it with "
            "one that has it: --python PATH of any Python 3.11 or later with the module, such as the trainer's own on "
            "CPUs, which `make setup-trainer` puts in ~/.cache/grpo-operator/venvs/trainer-cpu/bin/python"
        )
    return (
        f"{module} is not in the environment that ran this (--python PATH names another), and the trainer's image has "
        "it only if you add it there; a file beside this one is not found in the pod either: keep all in one file"
    )


_IN_TRAINER_IMAGE = frozenset(
    {
        "datasets",
        "jsonschema",
        "math_verify",
        "numpy",
        "pandas",
        "psutil",
        "pyarrow",
        "ray",
        "reasoning_gym",
        "regex",
        "requests",
        "safetensors",
    }
    | {"sympy", "tokenizers", "torch", "transformers", "vllm"}
)
"""What reward functions import most; the image's own list is uv.lock's."""
