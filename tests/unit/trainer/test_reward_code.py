"""The rule `code`: test cases in their forms, and a sandbox against programs that want out."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from grpo_api.rewards.rows import RewardRow
from grpo_api.spec.reward_rules import rule_params
from grpo_trainer.rewards.rules import make_rule
from grpo_trainer.rewards.rules.code import extract_program
from grpo_trainer.rewards.sandbox import Limits, run_program

LIMITS = Limits(60, 512 << 20, 1 << 20, True)


def score(program: str, truth: Any, **params: Any) -> float:
    row = RewardRow("", f"Here it is:\n```python\n{program}\n```\nDone.", truth, "", {})
    return make_rule("code", rule_params("code", {"time_seconds": 60.0} | params).model_dump())(row)


DOUBLE = "print(2 * int(input()))"
CASES = {"inputs": ["1\n", "2\n", "3\n", "4\n"], "outputs": ["2\n", "4", "6", "9"]}


def test_cases_of_input_and_output():
    assert score(DOUBLE, CASES) == 0.75
    assert score(DOUBLE, json.dumps(CASES)) == 0.75
    assert score(DOUBLE, CASES, all_tests=True) == 0
    assert score(DOUBLE, CASES, max_tests=3) == 1
    assert score(DOUBLE, CASES, max_tests=3, all_tests=True) == 1
    assert score(DOUBLE, [{"input": "5", "output": "10"}]) == 1
    assert score("def f(:", CASES) == 0


def test_assertions():
    program = "def double(x):\n    return 2 * x"
    assert score(program, ["assert double(1) == 2", "assert double(2) == 5"]) == 0.5  # MBPP's test_list
    assert score(program, "def check(f):\n    assert f(3) == 6\ncheck(double)") == 1  # HumanEval's test
    called = {"fn_name": "double", "inputs": [[1], "2\n"], "outputs": [2, ["4"]]}
    assert score(program, called) == 0.5
    assert score("class Solution:\n    def double(self, x): return 2 * x", called | {"outputs": [[2], "4"]}) == 1


@pytest.mark.parametrize("leave", ["import sys; sys.exit(0)", "import os; os._exit(0)", "raise SystemExit"])
def test_leaving_before_the_assertions_is_no_pass(leave):
    assert score(leave, ["assert False"]) == 0


def test_truth_without_cases_is_an_error():
    with pytest.raises(ValueError, match="holds no test case"):
        score(DOUBLE, {"answer": 7})


def test_extraction():
    assert extract_program("```\na\n```\nthen\n```py\nb\n```") == "b\n"
    assert extract_program("print(1)") == "print(1)"


def test_time_ends_a_response_whose_passed_cases_count():
    program = "x = int(input())\nwhile x > 1: pass\nprint(x)"
    begin = time.monotonic()
    truth = {"inputs": ["1", "2", "1", "1"], "outputs": ["1", "2", "1", "1"]}
    assert score(program, truth, time_seconds=3.0) == 0.25
    assert time.monotonic() - begin < 30


def run(program: str, directory: Path, **limits: Any) -> str | None:
    values = {"seconds": 60, "memory": 512 << 20, "file_size": 1 << 20, "need_landlock": True} | limits
    return run_program(program, "", Limits(**values), str(directory))


def test_an_honest_program_has_what_it_needs(tmp_path):
    program = (
        "import asyncio, collections, concurrent.futures, decimal, json, math, os, random, re, tempfile, threading\n"
        "open('mine.txt', 'w').write('x')\n"
        "async def one(): return 1\n"
        "with concurrent.futures.ThreadPoolExecutor(2) as pool: assert list(pool.map(abs, [-1])) == [1]\n"
        "print(asyncio.run(one()), open('mine.txt').read(), len(os.urandom(3)))\n"
    )
    assert run(program, tmp_path) == "1 x 3\n"


def test_numpy_can_be_imported(tmp_path):
    assert run("import numpy\nprint(numpy.ones(3).sum())", tmp_path, memory=2 << 30) == "3.0\n"


REFUSED = {
    "socket": "import socket; socket.socket()",
    "unix-socket": "import socket; socket.socket(socket.AF_UNIX)",
    "fork": "import os; os.fork()",
    "process": "import subprocess; subprocess.run(['/bin/true'])",
    "exec": "import os; os.execv('/bin/true', ['true'])",
    "shell": "import os; assert os.system('true') == 0",
    "signal-to-parent": "import os; os.kill(os.getppid(), 0)",
    "signal-to-all": "import os; os.kill(-1, 0)",
    "more-memory": "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40)); bytearray(540 << 20)",
    "memory": "bytearray(600 << 20)",
    "parents-environment": "import os; open(f'/proc/{os.getppid()}/environ').read()",
    "write-outside": "open('/tmp/outside', 'w')",
    "write-beside": "open('../beside', 'w')",
    "passwd": "open('/etc/passwd').read()",
    "list-root": "import os; os.listdir('/')",
    "large-file": "open('f', 'wb').write(bytes(2 << 20))",
    "much-output": "print('x' * (2 << 20))",
    "user-namespace": "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
}
FAILED = {"exception": "1 / 0", "exit-code": "raise SystemExit(3)", "end": "import os; os.abort()"}


@pytest.mark.parametrize("attempt", REFUSED)
def test_a_program_does_not_get_out(attempt, tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    program = REFUSED[attempt].replace("/tmp/outside", str(tmp_path / "outside")) + "\nprint('done')"
    assert run(program, inside) is None
    assert os.listdir(tmp_path) == ["inside"]
    # The same without the sandbox, so that the refusal was the sandbox's.
    free = subprocess.run([sys.executable, "-c", program], cwd=inside, capture_output=True, check=False)
    assert free.returncode == 0


@pytest.mark.parametrize("program", FAILED.values())
def test_a_program_that_fails(program, tmp_path):
    assert run(program, tmp_path) is None


def test_no_environment_and_no_file_of_the_trainer(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    (tmp_path / "token").write_text("secret")
    inside = tmp_path / "inside"
    inside.mkdir()
    assert run("import os; print('HF_TOKEN' in os.environ)", inside) == "False\n"
    assert run(f"print(open({str(tmp_path / 'token')!r}).read())", inside) is None
    assert (tmp_path / "token").read_text() == "secret"


def test_no_connection_to_a_listening_port(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        program = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5); print('connected')"
        assert run(program, tmp_path) is None


def test_inherited_descriptors_are_closed(tmp_path):
    """The pool's own socket among them."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    program = (
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'x')\n    except OSError: continue\nprint('ok')"
    )
    assert run(program, tmp_path) == "ok\n"
    os.close(write)
    assert os.read(read, 1) == b""
    os.close(read)


def test_works_in_a_thread_beside_others(tmp_path):
    found: list[str | None] = []
    threads = [threading.Thread(target=lambda: found.append(run("print(1)", tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["1\n"] * 4


def test_parameters_of_the_sandbox(tmp_path):
    hungry = "x = bytearray(200 << 20)\nprint(1)"
    assert score(hungry, [{"input": "", "output": "1"}], memory_mib=128) == 0
    assert score(hungry, [{"input": "", "output": "1"}], memory_mib=512) == 1
    writes = "open('f', 'wb').write(bytes(2 << 20))\nprint(1)"
    assert score(writes, [{"input": "", "output": "1"}], file_mib=1) == 0
    assert score(writes, [{"input": "", "output": "1"}], file_mib=4) == 1


def test_a_kernel_without_landlock(tmp_path, monkeypatch):
    """Stands in for it: a filter that has the kernel answer Landlock's calls as one without it does."""
    wrapper = tmp_path / "without_landlock.py"
    child = Path(run_program.__globals__["_CHILD"])
    wrapper.write_text(
        f"source = open({str(child)!r}).read().replace('_CREATE, _LANDLOCK_ADD', '_X, _LANDLOCK_ADD')\n"
        "source = source.replace('= 444, 445, 446', '= 444, 445, 446\\n_LANDLOCK_CREATE = 999')\n"
        "exec(compile(source, 'child', 'exec'), {'__name__': '__main__'})\n"
    )
    monkeypatch.setitem(run_program.__globals__, "_CHILD", wrapper)
    case = [{"input": "", "output": "1"}]
    with pytest.raises(RuntimeError, match=r"no Landlock.*if_available"):
        score("print(1)", case)
    assert score("print(1)", case, landlock="if_available") == 1
    assert score("import socket; socket.socket(); print(1)", case, landlock="if_available") == 0
