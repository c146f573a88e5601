"""Test cases of a program in the response, each run in `grpo_trainer.rewards.sandbox`."""

import json
import re
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from grpo_api.rewards.rows import RewardRow
from grpo_trainer.rewards.sandbox import Limits, run_program

_FENCED = re.compile(r"```(?:python3?|py)?[^\S\n]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class Case:
    """One test: input and wanted output, or (`check` set) Python that runs after the program and must not raise."""

    stdin: str = ""
    stdout: str = ""
    check: str | None = None


def code(
    row: RewardRow,
    *,
    time_seconds: float,
    memory_mib: int,
    file_mib: int,
    max_tests: int,
    all_tests: bool,
    landlock: str,
) -> float:
    """Share of the cases that pass. Raises ValueError on a ground truth without cases, RuntimeError without sandbox."""
    cases = list(read_cases(row.ground_truth))[:max_tests]
    if not cases:
        raise ValueError(f"the ground truth {str(row.ground_truth)[:100]!r} holds no test case (docs/rewards.md: Code)")
    program = extract_program(row.completion)
    end = time.monotonic() + time_seconds
    passed = 0
    with tempfile.TemporaryDirectory(prefix="reward-code-") as directory:
        for case in cases:
            left = end - time.monotonic()
            if left <= 0:
                break
            limits = Limits(left, memory_mib << 20, file_mib << 20, landlock == "required")
            good = passes(program, case, limits, directory)
            passed += good
            if all_tests and not good:
                return 0.0
    return float(passed == len(cases)) if all_tests else passed / len(cases)


def passes(program: str, case: Case, limits: Limits, directory: str) -> bool:
    """Whether one case does."""
    if case.check is None:
        output = run_program(program, case.stdin, limits, directory)
        return output is not None and _lines(output) == _lines(case.stdout)
    # Printed after the check, and unknown to the program: one that ends the process before has not passed, whatever its
    # exit code.
    mark = secrets.token_hex(16)
    output = run_program(program, "", limits, directory, check=case.check, mark=mark)
    return output is not None and output.endswith(mark)


def extract_program(response: str) -> str:
    """The last fenced block, else the whole response."""
    blocks = _FENCED.findall(response)
    return blocks[-1] if blocks else response


def read_cases(truth: Any) -> Iterator[Case]:
    """Test cases of a ground truth: `{"inputs", "outputs"}` with an optional `fn_name` (APPS, verl's prime_code), a
    list of assertions or of `{"input", "output"}`, Python text that asserts, or any of these as JSON."""
    if isinstance(truth, str):
        with suppress(ValueError):
            truth = json.loads(truth)
    if isinstance(truth, str) and truth.strip():
        yield Case(check=truth)
    elif isinstance(truth, dict) and "inputs" in truth:
        name = truth.get("fn_name")
        for given, wanted in zip(truth["inputs"], truth["outputs"], strict=True):
            yield Case(check=_call(name, given, wanted)) if name else Case(_text(given), _text(wanted))
    elif isinstance(truth, list):
        for case in truth:
            if isinstance(case, str):
                yield Case(check=case)
            else:
                yield Case(_text(case["input"]), _text(case["output"]))


def _call(name: str, given: Any, wanted: Any) -> str:
    """An assertion on a function or a method of `Solution`. Arguments as a list, or as text with one JSON value a line.
    APPS wraps some results in a list."""
    arguments = [json.loads(line) for line in given.splitlines() if line.strip()] if isinstance(given, str) else given
    wanted = json.loads(wanted) if isinstance(wanted, str) else wanted
    return (
        f"_call = globals().get({name!r}) or getattr(Solution(), {name!r})\n"
        f"_result = _call(*{arguments!r})\n"
        "_result = list(_result) if isinstance(_result, tuple) else _result\n"
        f"_wanted = {wanted!r}\n"
        "assert _result == _wanted or (isinstance(_wanted, list) and len(_wanted) == 1 and _result == _wanted[0])\n"
    )


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
