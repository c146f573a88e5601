"""The trainer's entry point on one GPU, with SmolLM2-135M: what each feature's figures must look like in bfloat16."""

import json
import math
import re
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, LlamaConfig

from tests.integration.trainer.run_support import ON_A_GPU, Run, free_port, make_job

pytestmark = ON_A_GPU
DTYPE = "bfloat16"
PROMPTS, RESPONSES, STEPS = 16, 8, 10
MISMATCH = 0.1
"""Nats between engine and trainer, a token on average: bfloat16 alone made up to 0.049, a lost sync makes more."""
QUESTION = "Calculate {a} {sign} {b}. Reply with only the number."
SUMS = [(a, sign, b) for a in range(1, 10) for sign in "+-" for b in range(1, 10)]
VALIDATION = SUMS[::3]
ENGINE = {"n": RESPONSES, "enforceEager": True, "engineArgs": {"kv_cache_memory_bytes": 2**32}}
"""Told what to take, so that tests may run beside each other: vLLM measures what is free only where it is not told."""
CORRECT = {"name": "correct", "builtin": {"rule": "numeric"}}


def row(a: int, sign: str, b: int) -> dict[str, Any]:
    answer = a + b if sign == "+" else a - b
    return {"prompt": QUESTION.format(a=a, sign=sign, b=b), "reward_model": {"ground_truth": str(answer)}}


def job(directory: Path, smollm: Path, /, **sections: dict[str, Any]) -> dict[str, Any]:
    """One-digit sums and differences on one GPU, as in examples/arithmetic.yaml."""
    for name, sums in (("train", SUMS), ("val", VALIDATION)):
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row(*one)) + "\n" for one in sums))
    base: dict[str, dict[str, Any]] = {
        "model": {"path": str(smollm), "dtype": DTYPE},
        "data": {
            "train": {"files": [str(directory / "train.jsonl")]},
            "val": {"files": [str(directory / "val.jsonl")]},
            "applyChatTemplate": True,
            "trainBatchSize": PROMPTS,
            "maxPromptLength": 96,
            "maxResponseLength": 16,
        },
        "reward": {"functions": [CORRECT]},
        "rollout": ENGINE,
        "actor": {"ppoMiniBatchSize": PROMPTS, "useKlLoss": False, "optim": {"lr": 3e-5}},
        "trainer": {"totalSteps": STEPS, "nGpusPerNode": 1, "saveFreq": 5, "testFreq": 5},
    }
    merged = {name: base.get(name, {}) | sections.get(name, {}) for name in base | sections}
    return make_job(directory, port=free_port(), **merged)


def finished(directory: Path, spec: dict[str, Any], *, attempt: int = 0, seconds: float = 400) -> Run:
    """A run that has ended well, with finite figures and an engine that samples by the trainer's weights."""
    run = Run(directory, spec, attempt=attempt)
    try:
        code = run.end(seconds)
    finally:
        run.kill()
    assert code == 0, "\n".join(run.lines)
    steps = run.steps()
    assert steps
    assert all(math.isfinite(value) for step in steps for value in step.values())
    # Had a sync not arrived, this would grow from step to step.
    assert all(step.get("rollout_mismatch", 0) < MISMATCH for step in steps), run.lines
    assert any(step["grad_norm"] > 0 for step in steps)
    return run


def validated(run: Run) -> dict[int, float]:
    """Mean reward of each validation, by step."""
    found = (re.match(r"validation step=(\d+) .*/reward/mean@1=(\S+)", line) for line in run.lines)
    return {int(one[1]): float(one[2]) for one in found if one}


def assert_learned(run: Run) -> dict[int, float]:
    """Sampled answers get better fast (0.2 to 0.6 as seen); greedy ones, of 0.7 from the start, must not get worse."""
    rewards = [step["reward/mean"] for step in run.steps()]
    assert sum(rewards[-3:]) / 3 > rewards[0] + 0.2, rewards
    scores = validated(run)
    assert sorted(scores) == [0, 5, 10]
    assert scores[10] > scores[0] - 0.05, scores
    return scores


def metric(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://localhost:{port}/metrics") as answer:
        (line,) = [one for one in answer.read().decode().splitlines() if one.startswith(name + "{")]
    return float(line.rpartition(" ")[2])


def checkpoints(directory: Path) -> list[Path]:
    return sorted((directory / "checkpoints" / "test.tiny").iterdir())


def test_all_weights_learn_and_validate(smollm: Path, tmp_path: Path) -> None:
    run = finished(tmp_path, job(tmp_path, smollm, rollout=ENGINE | {"enforceEager": False}))
    assert_learned(run)
    lm = AutoModelForCausalLM.from_pretrained(checkpoints(tmp_path)[-1] / "hf")
    assert lm.dtype == getattr(torch, DTYPE)


def test_lora_learns_keeps_its_base_and_resumes(smollm: Path, tmp_path: Path) -> None:
    """With a KL against the base; the checkpoint is an adapter that PEFT reads, and a resume goes on with it."""
    sections: dict[str, Any] = {
        "model": {"path": str(smollm), "dtype": DTYPE, "lora": {"rank": 16, "alpha": 32}},
        "actor": {"ppoMiniBatchSize": PROMPTS, "useKlLoss": True, "optim": {"lr": 1e-3}},
    }
    run = finished(tmp_path, job(tmp_path, smollm, **sections))
    steps = run.steps()
    assert steps[0]["kl"] == 0  # B is zero: with and without the adapter are the same function
    assert steps[-1]["kl"] > 0
    scores = assert_learned(run)

    adapter = checkpoints(tmp_path)[-1] / "hf"
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {path.name for path in adapter.iterdir()}
    if find_spec("peft"):
        assert accuracy(smollm, adapter) == pytest.approx(scores[10], abs=0.1)

    more = sections | {"trainer": {"totalSteps": STEPS + 4, "nGpusPerNode": 1, "testFreq": 5}}
    resumed = finished(tmp_path, job(tmp_path, smollm, **more), attempt=1)
    assert [step["step"] for step in resumed.steps()] == [11, 12, 13, 14]
    assert resumed.steps()[0]["kl"] > 0
    assert validated(resumed)[10] == pytest.approx(scores[10], abs=0.05)


def accuracy(base: Path, adapter: Path) -> float:
    """Share of the validation rows that base and adapter, joined by PEFT, answer rightly, greedily."""
    from peft import PeftModel

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = AutoTokenizer.from_pretrained(base)
    lm = AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, DTYPE)).to(device)
    model = PeftModel.from_pretrained(lm, adapter)
    right = 0
    for one in VALIDATION:
        expected = row(*one)
        chat = [{"role": "user", "content": expected["prompt"]}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        ids = ids.to(device)
        said = model.generate(**ids, max_new_tokens=16, do_sample=False)[0, ids["input_ids"].shape[1] :]
        numbers = re.findall(r"-?\d+", tokenizer.decode(said, skip_special_tokens=True))
        right += bool(numbers) and numbers[-1] == expected["reward_model"]["ground_truth"]
    return right / len(VALIDATION)


def test_the_group_filter_samples_again(smollm: Path, tmp_path: Path) -> None:
    """Beside it, two updates a step, token budgets, a KL in the reward and masked long responses."""
    run = finished(
        tmp_path,
        job(
            tmp_path, smollm,
            algorithm={
                "filterGroups": {"enable": True, "maxNumGenBatches": 4},
                "useKlInReward": True,
                "klCtrl": {"type": "adaptive"},
                "maskTruncatedResponses": True,
            },
            rollout=ENGINE | {"logProbMaxTokenLenPerGpu": 1024},
            actor={"ppoMiniBatchSize": PROMPTS // 2, "ppoMaxTokenLenPerGpu": 512, "optim": {"lr": 1e-5}},
        ),
    )  # fmt: skip
    assert any(step.get("sampling_rounds", 1) > 1 for step in run.steps())
    assert all(step["old_log_prob_s"] > 0 and step["ref_s"] > 0 for step in run.steps())
    assert all(step["clip_fraction"] < 0.1 for step in run.steps())
    assert all(step["zero_std"] == 0 or step.get("sampling_rounds") == 4 for step in run.steps())


def test_remax_with_a_classifier_and_rejection(smollm: Path, tmp_path: Path) -> None:
    """The classifier is random: it must score, and its score must be in the reward."""
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    config = LlamaConfig(vocab_size=49152, num_labels=2, pad_token_id=0, **shape)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "classifier")
    AutoTokenizer.from_pretrained(smollm).save_pretrained(tmp_path / "classifier")
    classifier = {"path": str(tmp_path / "classifier"), "label": "LABEL_1", "output": "probability", "input": "pair"}
    spec = job(
        tmp_path, smollm,
        algorithm={
            "advEstimator": "remax",
            "rolloutCorrection": {"rolloutIs": "sequence", "rolloutRs": "seq_mean_k1", "rolloutRsThreshold": 1.5},
        },
        reward={"functions": [CORRECT, {"name": "judge", "weight": 0.1, "classifier": classifier}]},
        actor={"ppoMiniBatchSize": PROMPTS, "ppoMicroBatchSizePerGpu": 8, "optim": {"lr": 1e-5}},
        trainer={"totalSteps": 5, "nGpusPerNode": 1, "saveFreq": -1, "testFreq": -1},
    )  # fmt: skip
    run = Run(tmp_path, spec)
    try:
        run.wait_for(r"step=2/", 300)
        weight = metric(spec["spec"]["metrics"]["port"], "grpo_rollout_importance_weight_mean")
        share = metric(spec["spec"]["metrics"]["port"], "grpo_rollout_effective_sample_ratio")
        code = run.end(300)
    finally:
        run.kill()
    assert code == 0, "\n".join(run.lines)
    assert weight == pytest.approx(1, abs=0.1)
    assert 0.8 < share <= 1
    steps = run.steps()
    assert len(steps) == 5
    for step in steps:
        assert 0.2 < step["reward/judge"] < 0.8
        assert step["reward/mean"] == pytest.approx(step["reward/correct"] + 0.1 * step["reward/judge"], abs=2e-3)
        assert step["rollout_mismatch"] < MISMATCH
        assert math.isfinite(step["loss"])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_hf_engine_with_adapters(attention: str, smollm: Path, tmp_path: Path) -> None:
    run = finished(
        tmp_path,
        job(
            tmp_path, smollm,
            model={
                "path": str(smollm), "dtype": DTYPE, "lora": {"rank": 8, "alpha": 16}, "attnImplementation": attention
            },
            rollout={"engine": "hf", "engineArgs": {}, "n": RESPONSES, "valKwargs": {"n": 2, "temperature": 0.8}},
            actor={"ppoMiniBatchSize": PROMPTS, "optim": {"lr": 1e-3}},
            trainer={"totalSteps": 5, "nGpusPerNode": 1, "saveFreq": -1, "testFreq": -1},
        ),
    )  # fmt: skip
    assert len(run.steps()) == 5
    assert any(re.match(r"validation step=0 prompts=54 .*mean@2=", line) for line in run.lines)


def test_report_of_the_last_step(smollm: Path, tmp_path: Path) -> None:
    """With the `hf` engine and all weights; the report and /metrics name the GPU's memory."""
    spec = job(
        tmp_path,
        smollm,
        rollout={"engine": "hf", "engineArgs": {}, "n": RESPONSES},
        trainer={"totalSteps": 3, "nGpusPerNode": 1},
    )
    run = finished(tmp_path, spec)
    assert run.report()["progress"]["step"] == 3
    assert json.loads((checkpoints(tmp_path)[-1] / "manifest.json").read_text())["step"] == 3
