"""Calls of one reward function in a process like those of the trainer's pool."""

import sys
import time
import tokenize
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Any

import grpo_api
from grpo_api.names import ExitCode
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
    """One function of one file, to be used as a context manager. Raises CliError where it cannot be loaded."""

    def __init__(self, file: str, function: str, python: str | None, timeout: float) -> None:
        self._config = {
            "memory_limit": None,
            "functions": [{"name": Path(file).stem, "source": _read(file), "function": function, "file": file}],
        }
        self._file, self._python, self._timeout = file, python, timeout
        self._process: RewardProcess | None = None
        loaded = self._running().loaded
        assert loaded is not None
        self.form: str = loaded[0]["form"]
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
            process = RewardProcess([python, "-c", _PROGRAM.format(root=root)], self._config, {})
        except OSError as error:
            raise CliError(f"--python {python}: {error.strerror or error}") from None
        heard = False
        try:
            heard = bool(wait([process.connection], LOAD_TIMEOUT))
            if not heard:
                raise CliError(f"{self._file}: importing it took more than {LOAD_TIMEOUT:g} s", ExitCode.BAD_SPEC)
            process.loaded = process.receive()["loaded"]
            _refuse(process.loaded[0], self._file)
        except (EOFError, OSError, ValueError):
            end = describe_end(process.kill())
            raise CliError(f"{self._file}: {end} while it imported the file", ExitCode.BAD_SPEC) from None
        except BaseException:
            process.kill()
            raise
        return process

    def _end(self) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        return process.kill()


def _read(file: str) -> str:
    try:
        with tokenize.open(file) as source:
            return source.read()
    except OSError as error:
        raise CliError(f"cannot read {file}: {error.strerror or error}") from None
    except (SyntaxError, UnicodeDecodeError) as error:
        raise CliError(f"{file} is no Python source: {error}", ExitCode.BAD_SPEC) from None


def _refuse(loaded: dict[str, Any], file: str) -> None:
    if loaded["error"] is None:
        return
    if loaded["missing_module"]:
        raise CliError(f"{loaded['error']}\n{module_advice(loaded['missing_module'])}")
    hint = "; name another with --function" if loaded["kind"] == "MissingFunctionError" else ""
    raise CliError(loaded["error"] + hint, ExitCode.BAD_SPEC)


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
