"""verl import: batch sizes, schedule, checkpoints, name, reward, and the file that is written."""

import pytest
from ruamel.yaml import YAML

from grpo_api.verl_import import Source, dump_job, import_verl
from tests.unit.api.verl_import_support import ACTOR, BASE, ROLLOUT, faults, left, run

# Batch sizes


def test_dynamic_batches_take_the_budget():
    spec, report = run(f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=24576")
    assert spec["actor"]["ppoMaxTokenLenPerGpu"] == 24576
    assert spec["rollout"]["logProbMaxTokenLenPerGpu"] == 24576  # verl: ${actor.ppo_max_token_len_per_gpu}
    assert "ppoMicroBatchSizePerGpu" not in spec["actor"]
    assert "use_dynamic_bsz is true" in left(report, f"{ACTOR}.ppo_micro_batch_size_per_gpu")[1]


def test_budget_defaults_to_verls():
    spec, _ = run(f"{ACTOR}.use_dynamic_bsz=True")
    assert spec["actor"]["ppoMaxTokenLenPerGpu"] == 16384


def test_budget_holds_a_whole_sequence():
    spec, report = run(
        f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=2048", "data.max_response_length=4096"
    )
    assert spec["actor"]["ppoMaxTokenLenPerGpu"] == 4608
    assert any("whole sequence" in item.note for item in report.carried)


def test_micro_size_that_does_not_divide_is_lowered():
    spec, report = run(f"{ACTOR}.ppo_micro_batch_size_per_gpu=12")  # 32 x 8 / 8 GPUs = 32
    assert spec["actor"]["ppoMicroBatchSizePerGpu"] == 8
    assert any(item.note.startswith("8, because it must divide the 32 responses") for item in report.carried)


def test_old_global_micro_size_is_divided_by_the_gpus():
    spec, _ = run(f"~{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.ppo_micro_batch_size=64")
    assert spec["actor"]["ppoMicroBatchSizePerGpu"] == 8


def test_tensor_parallel_stays_in_a_node():
    assert (
        run("trainer.n_gpus_per_node=1", f"{ACTOR}.ppo_micro_batch_size_per_gpu=1")[0]["rollout"].get(
            "tensorModelParallelSize", 1
        )
        == 1
    )  # verl's default 2 does not divide
    spec, report = run(f"{ROLLOUT}.tensor_model_parallel_size=16", "trainer.nnodes=2")
    assert spec["rollout"]["tensorModelParallelSize"] == 8
    assert any("stays within a node" in item.note for item in report.carried)
    assert run(f"{ROLLOUT}.name=hf")[0]["rollout"].get("tensorModelParallelSize", 1) == 1


def test_sizes_that_do_not_fit_are_faults_in_verls_terms():
    found = faults(f"{ACTOR}.ppo_mini_batch_size=24")
    assert len(found) == 1
    assert found[0].startswith(
        f"command line: {ACTOR}.ppo_mini_batch_size=24: spec.actor.ppoMiniBatchSize must divide "
    )
    assert f"add {ACTOR}.ppo_mini_batch_size=" in found[0]
    assert "(verl's default)" in faults(base=[*BASE[:4], f"{ROLLOUT}.n=8"])[0]  # train 64, mini 256


# Reward models

RM = ("reward_model.enable=True", "reward_model.model.path=/models/rm")


def test_a_reward_model_becomes_a_classifier():
    """As verl 0.9 scores with one: the conversation by the model's chat template, raw output."""
    spec, report = run(*RM, "data.max_prompt_length=1000", "data.max_response_length=3000")
    classifier = {"path": "/models/rm", "maxLength": 4000, "input": "chat", "output": "logit"}
    assert spec["reward"]["functions"] == [{"name": "reward-model", "classifier": classifier}]
    fields = {item.setting.key: item.path for item in report.carried}
    assert fields["reward_model.enable"] == "spec.reward.functions[0].classifier"
    assert fields["reward_model.model.path"] == "spec.reward.functions[0].classifier.path"
    assert any("on the head pod's CPU" in note and "reward.functions[0].http" in note for note in report.notes)
    assert not report.unknown


def test_new_names_and_the_length_of_a_reward_model():
    spec, _ = run(
        "reward.reward_model.enable=True", "reward.reward_model.model_path=org/rm", "reward_model.max_length=77"
    )
    assert spec["reward"]["functions"][0]["classifier"]["path"] == "org/rm"
    assert spec["reward"]["functions"][0]["classifier"]["maxLength"] == 77


def test_a_reward_model_without_a_path_is_a_placeholder():
    spec, report = run("reward_model.enable=True")
    assert spec["reward"]["functions"][0]["classifier"]["path"] == "/REPLACE-ME/reward-model"
    assert ("spec.reward.functions[0].classifier.path", "the input names none; verl needs one, too") in (
        report.placeholders
    )


def test_a_reward_model_beside_a_function_is_refused():
    """verl gives the function the address of the model's server."""
    (fault,) = faults(*RM, "custom_reward_function.path=/a.py")
    assert "serve the model" in fault
    assert "add reward_model.enable=False" in fault
    spec, report = run(*RM, "custom_reward_function.path=/a.py", "reward_model.enable=False")
    assert "module" in spec["reward"]["functions"][0]
    assert left(report, "reward_model.model.path") == ("not_applicable", "no reward model: enable is false")


def test_what_a_reward_model_does_not_carry():
    _, report = run(*RM, "reward_model.model.trust_remote_code=True", "reward_model.micro_batch_size_per_gpu=4")
    assert left(report, "reward_model.model.trust_remote_code")[0] == "changed"
    assert left(report, "reward_model.micro_batch_size_per_gpu")[0] == "not_applicable"


# Data


def test_several_files_are_read_one_after_the_other():
    """verl concatenates its list of files; so does `data.train.files`, in the list's order, repeats too."""
    files = ["/data/a.parquet", "/data/b.parquet", "/data/a.parquet"]
    spec, report = run(f"data.train_files={files}")
    assert spec["data"]["train"] == {"files": files}
    (carried,) = (item for item in report.carried if item.setting.key == "data.train_files")
    assert (carried.path, carried.note) == (
        "spec.data.train.files",
        "3 files, one after the other, as in verl; data.train.mix would mix them by weight",
    )
    assert run("data.train_files=/data/a.parquet")[1].carried[0].note == ""


def test_arguments_of_the_chat_template():
    key = "data.apply_chat_template_kwargs."
    spec, report = run(f"+{key}enable_thinking=False", f"+{key}style.tone=short")
    assert spec["data"]["chatTemplateKwargs"] == {"enable_thinking": False, "style": {"tone": "short"}}
    assert {item.path for item in report.carried} >= {"spec.data.chatTemplateKwargs.enable_thinking"}
    assert any("set by the trainer" in fault for fault in faults(f"+{key}tokenize=True"))


# Schedule and checkpoints


def test_warmup_steps_become_updates():
    spec, _ = run(f"{ACTOR}.optim.lr_warmup_steps=10", f"{ACTOR}.ppo_epochs=2")  # 64 / 32 x 2 updates a step
    assert spec["actor"]["optim"]["lrWarmupSteps"] == 40


def test_warmup_ratio_needs_the_number_of_steps():
    spec, report = run(f"{ACTOR}.optim.lr_warmup_steps_ratio=0.1", "trainer.total_training_steps=105")
    assert spec["actor"]["optim"]["lrWarmupSteps"] == 20  # int(10.5) steps x 2 updates
    _, report = run(f"{ACTOR}.optim.lr_warmup_steps_ratio=0.1")
    assert left(report, f"{ACTOR}.optim.lr_warmup_steps_ratio")[0] == "changed"


def test_total_steps_win_over_epochs():
    spec, report = run("trainer.total_training_steps=500", "trainer.total_epochs=15")
    assert (spec["trainer"]["totalSteps"], "totalEpochs" in spec["trainer"]) == (500, False)
    assert left(report, "trainer.total_epochs")[0] == "not_applicable"


def test_validation_needs_its_rows():
    given = ["trainer.test_freq=5", "trainer.val_before_train=false", f"{ROLLOUT}.val_kwargs.temperature=1.0"]
    spec, report = run(*given)
    assert "val" not in spec["data"]
    assert "testFreq" not in spec["trainer"]
    assert "valKwargs" not in spec["rollout"]
    for key in ("trainer.test_freq", "trainer.val_before_train", f"{ROLLOUT}.val_kwargs.temperature"):
        assert left(report, key) == ("not_applicable", "no data.val_files given, so nothing is validated")
    spec, _ = run(*given, "data.val_files=['/data/a.parquet','/data/b.parquet']")
    assert spec["data"]["val"] == {"files": ["/data/a.parquet", "/data/b.parquet"]}
    assert (spec["trainer"]["testFreq"], spec["trainer"]["valBeforeTrain"]) == (5, False)
    assert spec["rollout"]["valKwargs"] == {"temperature": 1.0}


def test_verls_validation_frequency_is_written_out():
    """Only before training, which is not our default."""
    spec, _ = run("data.val_files=/data/a.parquet")
    assert spec["trainer"]["testFreq"] == -1
    assert "valBeforeTrain" not in spec["trainer"]


def test_greedy_responses_are_one():
    spec, report = run("data.val_files=/data/a.parquet", f"{ROLLOUT}.val_kwargs.n=4")
    assert "n" not in spec["rollout"].get("valKwargs", {}) or spec["rollout"]["valKwargs"]["n"] == 1
    assert any("responses are the same" in item.note for item in report.carried)


def test_saving_asks_for_a_claim():
    spec, report = run("trainer.save_freq=20", "trainer.max_actor_ckpt_to_keep=1")
    assert spec["checkpoint"] == {"claimTemplate": {"size": "50Gi"}, "keep": 1}
    assert any("claim of 50Gi" in note for note in report.notes)
    assert "checkpoint" not in run()[0]


@pytest.mark.parametrize(
    ("given", "made"),
    [("Qwen3_8B GRPO!", "qwen3-8b-grpo"), ("8b_run", "b-run"), ("x" * 60, "x" * 52), ("---", "verl-import")],
)
def test_job_name_from_the_experiment(given, made):
    job, _ = import_verl([Source.override(text) for text in (*BASE, f"trainer.experiment_name={given}")])
    assert job["metadata"]["name"] == made


def test_given_name_must_be_valid():
    assert run(name="mine")
    assert "--name Mine_1" in faults(name="Mine_1")[0]


# Reward


def test_custom_reward_is_inlined():
    source = "def score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n"
    read = {"/code/r.py": source.replace("\n", "\r\n")}.get
    for prefix in ("custom_reward_function", "reward.custom_reward_function"):
        spec, report = run(f"{prefix}.path=/code/r.py", f"{prefix}.name=score", read=read)
        assert spec["reward"]["functions"] == [{"name": "custom", "python": {"function": "score", "source": source}}]
        assert not report.placeholders


def test_reward_at_an_absolute_path_that_cannot_be_read_is_a_module_of_the_pods():
    spec, report = run("custom_reward_function.path=/code/r.py", "custom_reward_function.name=score")
    assert spec["reward"]["functions"] == [{"name": "custom", "module": {"path": "r:score", "directory": "/code"}}]
    assert not report.placeholders
    assert "custom_reward_function.path=/code/r.py cannot be read here, so it is read in the pods: mount it there" in (
        report.notes
    )


@pytest.mark.parametrize("path", ["code/r.py", "/code/my-reward.py", "/code/r"])
def test_reward_that_is_nowhere_is_a_placeholder(path):
    spec, report = run(f"custom_reward_function.path={path}", "custom_reward_function.name=score")
    assert "def score(" in spec["reward"]["functions"][0]["python"]["source"]
    assert report.placeholders == [
        (
            "spec.reward.functions[0].python.source",
            f"custom_reward_function.path={path} (command line): cannot be read here; put the file's text there",
        )
    ]


def test_reward_kwargs_are_params():
    source = "def compute_score(solution_str, scale=1.0, mode='a'):\n    return scale\n"
    prefix = "custom_reward_function.reward_kwargs"
    kwargs = (f"+{prefix}.scale=2.5", f"+reward.{prefix}.mode=strict")
    for path, kind in (("/code/r.py", "module"), ("r.py", "python")):
        spec, report = run(f"custom_reward_function.path={path}", *kwargs, read={"r.py": source}.get)
        assert spec["reward"]["functions"][0][kind]["params"] == {"scale": 2.5, "mode": "strict"}
        carried = {item.path for item in report.carried}
        assert {f"spec.reward.functions[0].{kind}.params.{name}" for name in ("scale", "mode")} <= carried


def test_reward_with_a_wrong_name_is_a_fault():
    found = faults("custom_reward_function.path=r.py", read={"r.py": "def other(prompts, completions):\n    ...\n"}.get)
    assert "compute_score" in found[0]
    assert "is not defined in the source, which defines other" in found[0]


def test_default_reward_goes_by_data_source():
    spec, report = run("custom_reward_function.reward_kwargs.scale=2")
    assert spec["reward"]["functions"] == [{"name": "verl-default", "builtin": {"rule": "verl"}}]
    assert [item.reason for item in report.not_applicable if "kwargs" in item.setting.key] == [
        "without a file there is no function to give it to"
    ]


# The file


def test_file_reads_alike_by_yaml_1_1_and_1_2():
    source = 'def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0  # "yes"\n'
    for text in (source, source + "\n", source.rstrip(), source.replace("    ", "\t"), source + "# \u00e9\x07 \n\n"):
        job, report = import_verl(
            [Source.override(item) for item in (*BASE, "trainer.experiment_name=on", "custom_reward_function.path=r")],
            read=lambda _, text=text: text,
        )
        job["spec"]["template"] = {"nodeSelector": {"a": "yes", "b": "0123", "c": "1e3", "d": "12:30:00", "e": "null"}}
        made = dump_job(job, report)
        for version in ("1.1", "1.2"):
            yaml = YAML(typ="safe", pure=True)
            yaml.version = version
            assert yaml.load(made) == job, version
        assert '"n": 8' in made


# LoRA


def test_adapters_where_there_is_a_rank():
    model = "actor_rollout_ref.model"
    spec, report = run(f"{model}.lora_rank=32", f"{model}.lora_alpha=64", f"{model}.target_modules=[q_proj,v_proj]")
    assert spec["model"]["lora"] == {"rank": 32, "alpha": 64, "targetModules": ["q_proj", "v_proj"]}
    assert not report.changed
    spec, _ = run(f"{model}.lora.rank=8")
    assert spec["model"]["lora"]["rank"] == 8
    spec, report = run(f"{model}.lora_rank=0", f"{model}.lora_alpha=64")
    assert "lora" not in spec["model"]
    assert not report.changed
