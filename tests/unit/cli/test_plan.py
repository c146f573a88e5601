"""`grpoctl plan` and the reading of job files, through the command line."""

import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from grpo_api.batch_plan import make_batch_plan
from grpo_api.job import parse_job
from grpoctl.batch_view import plan_rows
from grpoctl.errors import CliError
from grpoctl.jobfile import read_job
from grpoctl.main import app

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))

JOB = """\
apiVersion: grpo.dev/v1alpha1
kind: GRPOJob
metadata: {name: sums}
spec:
  model: {path: /models/m}
  data:
    train: {reasoningGym: {task: chain_sum, size: 6000}}
    trainBatchSize: 60
    maxPromptLength: 500
    maxResponseLength: 500
  reward: {functions: [{name: correct, builtin: {rule: numeric}}]}
  rollout: {n: 12, tensorModelParallelSize: 2, logProbMicroBatchSizePerGpu: 8}
  actor: {ppoMiniBatchSize: 60, ppoMicroBatchSizePerGpu: 8, optim: {lr: 1e-6}}
  trainer: {totalEpochs: 2, nnodes: 1, nGpusPerNode: 6}
"""


@pytest.fixture
def file(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "job.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_worked_case_explains_every_number(file):
    _, job = read_job(file(JOB))
    rows = {row.name: (row.value, row.origin) for row in plan_rows(job.spec, make_batch_plan(job.spec))}
    assert rows["responses a step"] == ("720", "60 prompts x rollout.n 12")
    assert rows["rollout workers"] == ("3", "6 GPUs / rollout.tensorModelParallelSize 2")
    assert rows["responses a rollout worker"] == ("240", "720 / 3 rollout workers")
    assert rows["responses a GPU"][0] == "120"
    assert rows["log-prob rounds a GPU"] == (
        "15",
        "120 / rollout.logProbMicroBatchSizePerGpu 8, 16 at once on the 2 GPUs of a rollout worker",
    )
    assert rows["mini-batch, responses"][0] == "720"
    assert rows["mini-batch a GPU, responses"] == ("120", "720 / 6 GPUs")
    assert rows["accumulations an update"] == ("15", "120 / actor.ppoMicroBatchSizePerGpu 8")
    assert rows["updates a step"] == ("1", "60 / ppoMiniBatchSize 60 x ppoEpochs 1")
    assert rows["tokens a pass, at most"][0] == "8000"
    assert rows["steps an epoch"] == ("100", "reasoningGym.size 6000 / trainBatchSize")
    assert rows["steps in all"] == ("200", "trainer.totalEpochs 2")


def test_rows_that_fill_no_batch_are_named(file):
    _, job = read_job(file(JOB.replace("size: 6000", "size: 6017")))
    rows = {row.name: (row.value, row.origin) for row in plan_rows(job.spec, make_batch_plan(job.spec))}
    left = "reasoningGym.size 6017 / trainBatchSize; 17 rows of each epoch are left out"
    assert rows["steps an epoch"] == ("100", left)


def test_verl_case_as_json(file):
    text = JOB.replace("trainBatchSize: 60", "trainBatchSize: 1024").replace(
        "n: 12, tensorModelParallelSize: 2", "n: 5"
    )
    text = text.replace(
        "ppoMiniBatchSize: 60, ppoMicroBatchSizePerGpu: 8", "ppoMiniBatchSize: 256, ppoMicroBatchSizePerGpu: 4"
    )
    result = CliRunner().invoke(app, ["plan", file(text.replace("nGpusPerNode: 6", "nGpusPerNode: 8")), "-o", "json"])
    plan = json.loads(result.stdout)
    assert (plan["responsesPerStep"], plan["updatesPerStep"], plan["miniBatchResponses"]) == (5120, 4, 1280)
    assert (plan["miniBatchResponsesPerGpu"], plan["accumulationSteps"]) == (160, 40)


def test_table_reaches_the_terminal(file):
    result = CliRunner().invoke(app, ["plan", file(JOB)], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    line = next(line for line in result.stdout.splitlines() if line.startswith("accumulations"))
    assert line.split() == ["accumulations", "an", "update", "15", "120", "/", "actor.ppoMicroBatchSizePerGpu", "8"]


def test_scientific_notation_is_a_number(file):
    raw, job = read_job(file(JOB))
    assert raw["spec"]["actor"]["optim"]["lr"] == 1e-6
    assert job.spec.actor.optim.lr == 1e-6


def test_every_fault_is_listed_with_value_and_repair(file):
    text = JOB.replace("ppoMiniBatchSize: 60", "ppoMiniBatchSize: 7").replace("name: sums", "name: 2sums")
    with pytest.raises(CliError) as error:
        read_job(file(text.replace("tensorModelParallelSize: 2", "tensorModelParallelSize: 4")))
    assert error.value.exit_code == 64
    lines = str(error.value).splitlines()
    assert lines[0].endswith("job.yaml: 4 faults")
    assert "metadata.name: must start with a letter" in lines[1]
    assert any("spec.actor.ppoMiniBatchSize" in line and "try 6 or 10 (got 7)" in line for line in lines)
    assert any("spec.rollout.tensorModelParallelSize" in line and "try 3 or 6" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (JOB.replace("ppoMiniBatchSize", "ppoMinibatchSize"), "spec.actor.ppoMinibatchSize: unknown field"),
        (JOB.replace("{name: sums}", "{}"), "metadata.name: is missing"),
        (JOB + "---\n" + JOB, "holds 2 documents; it must hold one GRPOJob"),
        ("", "holds nothing"),
        ("- a\n", "holds a list"),
        ("a: [1\nb: 2\n", "line 2"),
        ("a: 1\na: 2\n", 'found duplicate key "a"'),
    ],
)
def test_files_that_hold_no_job_are_explained(file, text, words):
    with pytest.raises(CliError) as error:
        read_job(file(text))
    assert words in str(error.value)
    assert error.value.exit_code == 64


def test_missing_file():
    with pytest.raises(CliError, match=r"cannot read no/such.yaml: No such file"):
        read_job("no/such.yaml")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_parses_and_plans(example):
    _, job = read_job(str(example))
    plan = make_batch_plan(job.spec)
    assert plan.responses_per_step == job.spec.data.train_batch_size * job.spec.rollout.n
    result = CliRunner().invoke(app, ["plan", str(example)])
    assert result.exit_code == 0, result.output


def test_there_are_examples():
    assert {"arithmetic", "inline-reward", "gpu-qwen"} <= {path.stem for path in EXAMPLES}


def test_inline_reward_example_scores_as_its_text_says():
    raw = YAML(typ="safe", pure=True).load((ROOT / "examples" / "inline-reward.yaml").read_text())
    scores = {}
    for function in parse_job(raw).spec.reward.functions:
        space: dict = {}
        exec(function.python.source, space)
        scores[function.name] = space["compute_score"]
    assert scores["close"]("", "it is -2", "-2", {}) == 1.0
    assert scores["close"]("", "-1", "-2", {}) == 0.5
    assert scores["close"]("", "nothing", "-2", {}) == 0.0
    assert scores["short"]("", " -2 ", "-2", {}) == 1.0
    assert scores["short"]("", "minus two", "-2", {}) == 0.0


LLAMA = JOB.replace("/models/m", "meta-llama/Llama-2-7b-hf")


def plan_of(file: str, *options: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["plan", file, *options], env={"COLUMNS": "200"})
    said = f"{result.stderr}{result.exception or ''}"
    return result.exit_code, result.stdout, said


def test_memory_against_a_gpu(file):
    code, table, said = plan_of(file(LLAMA), "--gpu", "H100-80GB")
    rows = {line[:23].strip(): line[23:].split()[0] for line in table.split("MEMORY A GPU")[1].splitlines()[1:]}
    # 6.738e9 parameters x 4 bytes / 6 GPUs, twice for Adam; half of 79.6 GiB for vLLM.
    assert (code, rows["weights"], rows["optimizer"], rows["rollout engine"]) == (0, "4.2", "8.4", "39.8")
    assert "reference" not in rows
    assert said == ""


def test_memory_as_json_with_warnings(file):
    code, text, said = plan_of(file(LLAMA), "--gpu", "24Gi", "-o", "json")
    plan = json.loads(text)
    assert (code, plan["responsesPerStep"], plan["memory"]["parameters"]) == (0, 720, 6738415616)
    (warning,) = [text for text in plan["memory"]["warnings"] if "gpuMemoryUtilization" in text]
    assert warning in said


def test_without_a_shape_the_plan_says_how_to_give_one(file, tmp_path):
    code, table, said = plan_of(file(JOB), "--gpu", "80Gi")
    assert (code, "MEMORY" in table) == (0, False)
    assert "the shape of /models/m is not known here: pass --model-config with its config.json" in said
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"intermediate_size": 96, "vocab_size": 256}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for job, options in ((JOB, ("--model-config", str(tmp_path))), (JOB.replace("/models/m", str(tmp_path)), ())):
        code, table, said = plan_of(file(job), "--gpu", "80Gi", *options)
        assert (code, "while updating" in table, said) == (0, True, "")


@pytest.mark.parametrize(
    ("options", "exit_code", "words"),
    [
        (("--gpu", "K80"), 2, "--gpu K80 is no known type: use A10G-24GB"),
        (("--model-config", "no/such.json"), 64, "--model-config no/such.json: "),
        (("--model-config", "README.md"), 64, "--model-config README.md: "),
    ],
)
def test_options_that_cannot_be_used(file, monkeypatch, options, exit_code, words):
    monkeypatch.chdir(ROOT)
    with pytest.raises(CliError) as error:
        CliRunner().invoke(app, ["plan", file(LLAMA), *options], catch_exceptions=False)
    assert error.value.exit_code == exit_code
    assert str(error.value).startswith(words)


def test_heads_that_tensor_parallelism_does_not_divide_are_refused(file):
    text = JOB.replace("/models/m", "Qwen/Qwen2.5-0.5B-Instruct").replace("nGpusPerNode: 6", "nGpusPerNode: 4")
    text = text.replace("logProbMicroBatchSizePerGpu: 8", "").replace("ppoMicroBatchSizePerGpu: 8, ", "")
    with pytest.raises(CliError, match=r"14 attention heads.*try 1 or 2 \(got 4\)") as error:
        CliRunner().invoke(
            app,
            ["plan", file(text.replace("tensorModelParallelSize: 2", "tensorModelParallelSize: 4"))],
            catch_exceptions=False,
        )
    assert error.value.exit_code == 64
