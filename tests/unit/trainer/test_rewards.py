"""The calling forms of user functions, and a pool that survives whatever they do."""

import os
import signal
import time
from pathlib import Path

import pytest

from benchmarks.reward_soak import soak
from grpo_api.rewards.process import RewardProcess
from grpo_api.rewards.rows import RewardRow
from grpo_api.spec.reward import BuiltinReward, PythonReward, RewardFunction, RewardSpec
from grpo_trainer.errors import UserInputError
from grpo_trainer.rewards.pool import RewardPool
from grpo_trainer.rewards.result import standard_deviations


def row(completion: str, ground_truth: object = "7", **columns: object) -> RewardRow:
    return RewardRow("What is 3 + 4?", completion, ground_truth, "sums", {"level": 1}, columns)


def workers(pool: RewardPool) -> list[RewardProcess]:
    return [worker for lane in pool._crew.lanes for worker in lane.workers]


VERL = "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"


@pytest.fixture
def pool_of(tmp_path):
    """Makes pools of inline sources, by function name."""
    pools = []

    def make(sources: dict[str, str], weights: dict[str, float] | None = None, **spec: object) -> RewardPool:
        functions = [
            RewardFunction(name=name, weight=(weights or {}).get(name, 1.0), python=PythonReward(source=source))
            for name, source in sources.items()
        ]
        pools.append(RewardPool(RewardSpec(functions=functions, **({"timeout_seconds": 20} | spec)), str(tmp_path)))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


MISBEHAVING = f"""
import os, signal, subprocess, sys
{VERL}
    match solution_str:
        case "hang":
            while True: pass
        case "raise": return 1 / 0
        case "exit": sys.exit(3)
        case "leave": os._exit(0)
        case "killed": os.kill(os.getpid(), signal.SIGKILL)
        case "none": return None
        case "nan": return float("nan")
        case "inf": return {{"score": float("inf")}}
        case "text": return "1.0"
        case "memory": bytearray(1 << 45)
        case "print":
            for _ in range(1000): print("x" * 1000)
        case "closes": os.closerange(3, 100)
    return 1.0
"""
FATES = {
    "hang": "timeout",
    "raise": "exception",
    "exit": "exception",
    "leave": "crash",
    "killed": "crash",
    "none": "none",
    "nan": "nan",
    "inf": "nan",
    "text": "exception",
    "memory": "exception",
    "closes": "crash",
}


@pytest.mark.parametrize("on_error", ["Mask", "Zero"])
def test_a_bad_sample_costs_itself_alone(pool_of, on_error):
    pool = pool_of({"fn": MISBEHAVING}, timeout_seconds=1, on_error=on_error)
    pool.check(row("good"))
    completions = [text for bad in FATES for text in (bad, "good", "print")]
    result = pool.score([row(text) for text in completions])
    failed = 0.0 if on_error == "Zero" else None
    assert result.rewards == [failed if text in FATES else 1.0 for text in completions]
    assert result.function_means == {"fn": 1.0}
    causes = list(FATES.values())
    assert result.errors == {("fn", cause): causes.count(cause) for cause in causes}
    assert pool.score([row("good")] * 20).rewards == [1.0] * 20


def test_only_the_stuck_worker_is_replaced(pool_of):
    pool = pool_of({"fn": MISBEHAVING}, timeout_seconds=1, workers=2)
    pool.score([row("good")] * 50)
    before = {worker.process.pid for worker in workers(pool)}
    begin = time.monotonic()
    assert pool.score([row("hang"), *[row("good")] * 20]).rewards == [None, *[1.0] * 20]
    assert time.monotonic() - begin < 5
    pool.score([row("good")] * 50)
    assert len(before & {worker.process.pid for worker in workers(pool)}) == 1


def test_an_idle_workers_death_costs_nothing(pool_of):
    pool = pool_of({"fn": MISBEHAVING}, workers=2)
    pool.score([row("good")] * 20)
    for worker in workers(pool):
        os.kill(worker.process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, worker.process.pid, os.WEXITED | os.WNOWAIT)
    result = pool.score([row("good")] * 20)
    assert result.rewards == [1.0] * 20
    assert not result.errors


def test_children_of_a_stuck_call_are_killed_with_it(pool_of, tmp_path):
    pid_file = tmp_path / "pid"
    source = (
        f"import subprocess\n{VERL}    child = subprocess.Popen(['sleep', '600'])\n"
        f"    open({str(pid_file)!r}, 'w').write(str(child.pid))\n    child.wait()\n"
    )
    assert pool_of({"fn": source}, timeout_seconds=1).score([row("x")]).errors == {("fn", "timeout"): 1}
    child = int(pid_file.read_text())
    deadline = time.monotonic() + 5
    while os.path.exists(f"/proc/{child}") and "Z" not in Path(f"/proc/{child}/stat").read_text().split():
        assert time.monotonic() < deadline, "the call's child still runs"
        time.sleep(0.05)


def test_output_of_a_call_is_capped(pool_of, capfd):
    pool_of({"fn": MISBEHAVING}).score([row("print")] * 3)
    printed = capfd.readouterr().err
    assert printed.count("[output cut]") == 3
    assert 3 * 2000 <= len(printed) < 3 * 2100


def test_closing_ends_every_worker(pool_of):
    pool = pool_of({"fn": MISBEHAVING})
    pool.score([row("good")])
    processes = [worker.process for worker in workers(pool)]
    pool.close()
    assert processes
    assert all(process.poll() is not None for process in processes)


def test_workers_see_no_gpu_and_import_no_torch(pool_of):
    source = (
        f"import os, sys\nclean = not {{'torch', 'ray', 'transformers'}} & set(sys.modules)\n{VERL}"
        "    return float(clean and os.environ['CUDA_VISIBLE_DEVICES'] == '')\n"
    )
    assert pool_of({"fn": source}).score([row("x")]).rewards == [1.0]


def test_verl_arguments_and_dict_result(pool_of):
    source = (
        f"{VERL}    assert (data_source, extra_info) == ('sums', {{'level': 1}})\n"
        "    return {'score': float(solution_str == ground_truth), 'other': 1}\n"
    )
    assert pool_of({"fn": source}).score([row("7"), row("8")]).rewards == [1.0, 0.0]


def test_verl_subset_and_async(pool_of):
    source = (
        "import asyncio\nasync def compute_score(solution_str, ground_truth=None, **more):\n"
        "    await asyncio.sleep(0)\n    return len(more)\n"
    )
    assert pool_of({"fn": source}).score([row("7")]).rewards == [2.0]


TRL = """
calls = 0
def compute_score(prompts, completions, answer, **columns):
    global calls
    calls += 1
    assert columns["ground_truth"] == ["7"] * len(prompts)
    for text in completions:
        if text == "bad": raise KeyError("broken")
        while text == "hang": pass
    return [None if text == "skip" else len(completions) + 10.0 * (text == a) for text, a in zip(completions, answer)]
"""


def test_trl_gets_the_whole_batch(pool_of):
    pool = pool_of({"fn": TRL})
    pool.check(row("7", answer="7"))
    result = pool.score([row("7", answer="7"), row("8", answer="7"), row("skip", answer="7")])
    assert result.rewards == [13.0, 3.0, None]
    assert result.errors == {("fn", "none"): 1}


def test_trl_batch_that_fails_is_scored_by_the_sample(pool_of):
    pool = pool_of({"fn": TRL}, timeout_seconds=1)
    result = pool.score([row(text, answer="7") for text in ("7", "bad", "8", "hang")])
    assert result.rewards == [11.0, None, 1.0, None]
    assert result.errors == {("fn", "exception"): 1, ("fn", "timeout"): 1}


def test_trl_wrong_length(pool_of):
    with pytest.raises(UserInputError, match="2 scores for 1 completions"):
        pool_of({"fn": "def compute_score(completions, **_): return [1, 2]"}).check(row("7"))


def test_weighted_sum_and_means(pool_of):
    sources = {
        "right": f"{VERL}    return solution_str == ground_truth\n",
        "length": f"{VERL}    return len(solution_str)\n",
    }
    result = pool_of(sources, weights={"right": 2.0, "length": -0.5}).score([row("7"), row("seven")])
    assert result.rewards == [1.5, -2.5]
    assert result.function_means == {"right": 0.5, "length": 3.0}


def test_what_calls_and_scores_are_reported(pool_of):
    sources = {
        "slow": f"import time\n{VERL}    time.sleep(0.05)\n    return len(solution_str)\n",
        "quick": f"{VERL}    return 1 / len(solution_str)\n",
    }
    result = pool_of(sources).score([row("7"), row("777"), row("")])
    assert result.function_scores == [[1.0, 3.0, 0.0], [1.0, pytest.approx(1 / 3), None]]
    assert standard_deviations(["slow", "quick"], result.function_scores) == {
        "slow": pytest.approx(1.2472, abs=1e-4),
        "quick": pytest.approx(1 / 3),
    }
    assert result.function_seconds["slow"] >= 0.15
    assert result.function_seconds["quick"] > 0


SCORES = f"{VERL}    return extra_info.get(solution_str)\n"


def test_scores_are_clipped_before_their_weight(pool_of):
    def score(**clip: float) -> list[float | None]:
        function = RewardFunction(name="fn", weight=2.0, clip=clip or None, python=PythonReward(source=SCORES))
        pool = RewardPool(RewardSpec(functions=[function]))
        rows = [RewardRow("", "value", None, "", {"value": value}) for value in (-3.0, 0.5, 3.0, float("inf"))]
        result = pool.score(rows)
        pool.close()
        assert result.rewards == [None if one is None else 2 * one for one in result.function_scores[0]]
        return result.rewards

    assert score() == [-6, 1, 6, None]
    assert score(min=-1.0) == [-2, 1, 6, None]
    assert score(max=1.0) == [-6, 1, 2, None]
    assert score(min=-1.0, max=1.0) == [-2, 1, 2, None]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, [12.0, 2.0, None, None]),
        ({"on_error": "Zero"}, [12.0, 2.0, 0.0, 0.0]),
        ({"on_none": "Error"}, [12.0, None, None, None]),
        ({"on_none": "Error", "on_error": "Zero"}, [12.0, 0.0, 0.0, 0.0]),
    ],
)
def test_none_leaves_a_function_out_as_in_trl(pool_of, spec, expected):
    """TRL sums the functions that are not None, and so do we; a sample without any has no reward."""
    sources = {
        "one": f"{VERL}    return extra_info['one']\n",
        "two": f"{VERL}    return extra_info['two']\n",
    }
    rows = [
        RewardRow("", "", None, "", {"one": one, "two": two})
        for one, two in [(10.0, 2.0), (None, 2.0), (None, None), (None, float("nan"))]
    ]
    result = pool_of(sources, **spec).score(rows)
    assert result.rewards == expected
    assert result.errors == {("one", "none"): 3, ("two", "none"): 1, ("two", "nan"): 1}


def test_worker_memory(pool_of):
    source = f"{VERL}    return len(bytearray(300 << 20)) >> 20\n"
    assert pool_of({"fn": source}, worker_memory="200Mi").score([row("")]).errors == {("fn", "exception"): 1}
    assert pool_of({"fn": source}, worker_memory="1Gi").score([row("")]).rewards == [300.0]


def test_a_call_that_forks_answers_once(pool_of):
    """The child returns from the call as well, and a child that stays holds the process's socket open."""
    source = (
        f"import os, time\n{VERL}    if os.fork() == 0 and solution_str == 'stays': time.sleep(3600)\n"
        "    if solution_str == 'ends': os._exit(1)\n    return float(ground_truth)\n"
    )
    pool = pool_of({"fn": source}, timeout_seconds=60, workers=1)
    begin = time.monotonic()
    completions = ["forks", "stays", "forks", "ends", "forks", "stays"]
    result = pool.score([row(text, index) for index, text in enumerate(completions)])
    assert result.rewards == [0.0, 1.0, 2.0, None, 4.0, 5.0]
    assert result.errors == {("fn", "crash"): 1}
    assert time.monotonic() - begin < 50


def test_a_death_is_noticed_though_a_child_holds_the_socket(pool_of):
    source = f"import os, time\n{VERL}    if os.fork(): os._exit(4)\n    time.sleep(3600)\n"
    begin = time.monotonic()
    result = pool_of({"fn": source}, timeout_seconds=100, workers=1).score([row("")])
    assert result.errors == {("fn", "crash"): 1}
    assert time.monotonic() - begin < 90


def test_output_past_python_goes_nowhere(pool_of, capfd):
    source = f"import os\n{VERL}    os.write(1, b'x' * 1000000)\n    return 1\n"
    assert pool_of({"fn": source}).score([row("")]).rewards == [1.0]
    assert "xxx" not in "".join(capfd.readouterr())


def test_nothing_is_lost_under_functions_that_do_everything_wrong():
    """A short cut of benchmarks/reward_soak.py, whose long run also holds the time against the ideal."""
    found = soak(calls=300, workers=3, work=0.002, timeout=5.0)
    assert found.errors == found.expected
    assert (found.lost, found.left_over) == (0, 0)


def test_a_sample_needs_every_function(pool_of):
    sources = {"fn": MISBEHAVING, "length": f"{VERL}    return len(solution_str)\n"}
    result = pool_of(sources).score([row("good"), row("raise")])
    assert result.rewards == [5.0, None]
    assert result.function_means == {"fn": 1.0, "length": 4.5}


def test_builtin_rules_run_in_the_pool():
    # The pattern backtracks without end on this text: a builtin can hang too.
    functions = [RewardFunction(name="r", builtin=BuiltinReward(rule="regex", params={"pattern": "(a+)+$"}))]
    pool = RewardPool(RewardSpec(functions=functions, timeout_seconds=1))
    assert pool.score([row("aaa"), row("a" * 60 + "b")]).rewards == [1.0, None]
    pool.close()


@pytest.mark.parametrize(
    ("source", "reason", "message"),
    [
        (f"{VERL}    return (1\n", "RewardSyntaxError", "my-fn.py, line 2: SyntaxError"),
        (
            f"import nothing_like_this\n{VERL}    return 1\n",
            "RewardImportError",
            "my-fn.py, line 1: ModuleNotFoundError",
        ),
        (f"x = 1 / 0\n{VERL}    return 1\n", "RewardImportError", "line 1: ZeroDivisionError: division by zero"),
        ("def score(): pass", "RewardImportError", "compute_score is not defined in the source, which defines score"),
        ("def compute_score(text): pass", "RewardSignatureError", r"prompts, completions, \*\*columns"),
        (
            f"{VERL}    x = 1\n    return x / 0\n",
            "RewardError",
            "my-fn.py, line 3, in compute_score: ZeroDivisionError",
        ),
        (f"{VERL}    return 'high'\n", "RewardError", "returned str 'high'; a score must be a number"),
        (f"{VERL}    return {{'acc': 1}}\n", "RewardError", "must hold `score`"),
        (f"{VERL}    while True: pass\n", "RewardTimeout", r"line 2, in compute_score: .*timeoutSeconds \(1 s\)"),
        (f"import os\n{VERL}    os._exit(7)\n", "RewardError", "its process ended .code 7. during the call"),
        ("import os\nos.abort()", "RewardImportError", "signal 6.* 3 times in a row"),
    ],
)
def test_check_refuses(pool_of, source, reason, message):
    with pytest.raises(UserInputError, match=message) as caught:
        pool_of({"my-fn": source}, timeout_seconds=1).check(row("7"))
    assert caught.value.reason == reason
    assert caught.value.exit_code == 65


def test_a_mounted_source_wins_over_the_spec(pool_of, tmp_path):
    (tmp_path / "fn.py").write_text(f"{VERL}    return 3\n")
    assert pool_of({"fn": f"{VERL}    return 1\n"}).score([row("7")]).rewards == [3.0]
