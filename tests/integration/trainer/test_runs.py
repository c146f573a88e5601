"""The trainer's entry point with real Ray, FSDP2 and vLLM: one pod of two ranks on CPU, a model of 70,000 weights."""

import json
import os
import re
import signal
import time
import urllib.request
from pathlib import Path

import pytest

from tests.integration.trainer.run_support import Run, free_port, make_job

pytestmark = pytest.mark.trainer

BROKEN = "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return 1 / 0\n"


def validations(run: Run) -> dict[int, str]:
    """The first line of each validation, by step."""
    found = (re.match(r"validation step=(\d+) prompts=5 ", line) for line in run.lines)
    return {int(one[1]): one.string for one in found if one}


def numbers_of(line: str) -> str:
    return line.partition(" response_len=")[2]


def test_bad_reward_ends_before_ray(directory: Path) -> None:
    reward = {"functions": [{"name": "broken", "python": {"source": BROKEN}}]}
    run = Run(directory, make_job(directory, port=free_port(), reward=reward))
    assert run.end(60) == 65
    assert run.report()["reason"] == "RewardError"
    assert "ZeroDivisionError" in run.report()["message"]
    assert "line 2" in run.report()["message"] or ":2" in run.report()["message"]


def test_bfloat16_needs_a_gpu(directory: Path) -> None:
    model = {"path": str(directory / "model"), "dtype": "bfloat16"}
    run = Run(directory, make_job(directory, port=free_port(), model=model))
    assert run.end(60) == 64
    assert "model.dtype is bfloat16" in run.report()["message"]


@pytest.mark.timeout(600)
def test_killed_worker_then_resume_then_done(directory: Path) -> None:
    """A lost rank ends the pod with 75; the next attempt goes on from the newest checkpoint, data order included; one
    more has nothing left to do. Validations between the steps leave the engine's weights as they are, and are the same
    after the resume."""
    port = free_port()
    val = directory / "val.jsonl"
    val.write_text(
        "".join(json.dumps({"prompt": f"{i} or", "reward_model": {"ground_truth": ""}}) + "\n" for i in range(5))
    )
    sections = {
        "data": {"val": {"files": [str(val)]}, "valBatchSize": 3},
        "rollout": {"n": 4, "valKwargs": {"n": 3, "temperature": 0.8}},
    }
    trainer = {"nGpusPerNode": 2, "saveFreq": 2, "testFreq": 2}
    run = Run(directory, make_job(directory, port=port, trainer={"totalSteps": 500, **trainer}, **sections))
    try:
        run.wait_for(r"step=1/500 ", 150)
        run.wait_for(r"checkpoint step-00000002 saved", 60)
        run.wait_for(r"step=4/500 ", 60)
        with urllib.request.urlopen(f"http://localhost:{port}/progress") as answer:
            head = json.load(answer)
        with urllib.request.urlopen(f"http://localhost:{port}/metrics") as answer:
            metrics = answer.read().decode()
        pids = run.worker_pids()
        assert len(pids) == 2
        os.kill(pids[1], signal.SIGKILL)
        killed = time.monotonic()
        assert run.end(30) == 75
        assert time.monotonic() - killed < 20
    finally:
        run.kill()
    assert head["phase"] == "training"
    assert head["progress"]["step"] >= 3
    assert head["checkpoint"]["step"] >= 2
    assert 'grpo_reward_mean{job_name="tiny",job_namespace="test"}' in metrics
    assert run.report()["reason"] == "WorkerDied"
    assert "rank 1 (pod of node rank 0) died: it was killed" in run.report()["message"]
    assert not any(noise in run.report()["message"] for noise in ("actor_id", "\x1b", "\n"))
    steps = run.steps()
    assert all(step["grad_norm"] > 0 for step in steps)
    # The engine samples by the weights that the update before has left: else this grows with the first update.
    assert all(step["rollout_mismatch"] < 1e-4 for step in steps), steps

    saved = [path.name for path in (directory / "checkpoints" / "test.tiny").iterdir() if not path.suffix]
    from_step = int(max(saved).removeprefix("step-"))  # a save may have ended after the last report
    assert from_step >= run.report()["checkpoint"]["step"]
    total = from_step + 3
    job = make_job(directory, port=free_port(), trainer={"totalSteps": total, **trainer}, **sections)
    second = Run(directory, job, attempt=1)
    try:
        assert second.end(180) == 0
    finally:
        second.kill()
    steps = second.steps()
    assert [step["step"] for step in steps] == [from_step + 1, from_step + 2, total]
    assert all(step["rollout_mismatch"] < 1e-4 for step in steps), steps
    # The last step, and the one resumed from, as its validation may have been interrupted.
    validated = {one: numbers_of(log) for one, log in validations(second).items()}
    assert list(validated) == [from_step, from_step + 2, total]
    if from_step in validations(run):
        assert numbers_of(validations(run)[from_step]) == validated[from_step]
    assert list(validations(run))[:2] == [0, 2]
    assert second.report()["progress"]["valStep"] == total
    assert second.report()["checkpoint"]["step"] == total
    assert second.report()["progress"]["percent"] == "100%"
    kept = sorted(path.name for path in (directory / "checkpoints" / "test.tiny").iterdir())
    assert kept[-1] == f"step-{total:08d}"
    assert len(kept) == 2

    job = make_job(directory, port=free_port(), trainer={"totalSteps": total, **trainer, "testFreq": -1}, **sections)
    third = Run(directory, job, attempt=2)
    try:
        assert third.end(120) == 0
    finally:
        third.kill()
    assert not third.steps()
    assert any("nothing left to do" in line for line in third.lines)


def test_sigterm_ends_quickly(directory: Path) -> None:
    run = Run(directory, make_job(directory, port=free_port()))
    try:
        run.wait_for("preflight ok", 60)
        time.sleep(3)
        # To the trainer itself: unshare passes no signals on.
        children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGTERM)
        assert run.end(10) == 143
        assert run.report()["reason"] == "Stopped"
    finally:
        run.kill()
