"""verl import: what each key becomes, and that no key is dropped in silence.

Expected values: verl 0.9, `verl/trainer/config/_generated_ppo_trainer.yaml` and `verl/workers/config/`.
"""

import re
from pathlib import Path

import pytest

from grpo_api.batch_plan import make_batch_plan
from grpo_api.job import GRPOJobSpec, parse_job
from grpo_api.verl_import import Source, dump_job, import_verl, key_table
from grpo_api.verl_import.keys import KEYS, canonical
from grpo_api.verl_import.not_carried import NOT_CARRIED
from tests.unit.api.verl_import_support import ACTOR, BASE, REF, ROLLOUT, faults, left, run

WORKED = """\
trainer: {n_gpus_per_node: 6, nnodes: 1, critic_warmup: 0}
data: {train_batch_size: 60}
model: {path: meta-llama/Llama-2-7b-hf}
algorithm: {adv_estimator: gae, gamma: 0.99, lam: 0.95, kl_penalty: 0.01}
actor_rollout_ref:
  actor: {ppo_mini_batch_size: 60, ppo_micro_batch_size_per_gpu: 8, use_kl_loss: true}
  rollout: {n: 12, tensor_model_parallel_size: 2, log_prob_micro_batch_size_per_gpu: 8, name: vllm}
  ref: {log_prob_micro_batch_size_per_gpu: 8}
use_critic: false
use_rm: false
use_reference_policy: true
"""


# The worked case


def test_worked_case_plans():
    job, _ = import_verl([Source.file("worked.yaml", WORKED)])
    plan = make_batch_plan(parse_job(job).spec)
    assert (plan.gpus, plan.responses_per_step) == (6, 720)
    assert (plan.rollout_workers, plan.responses_per_rollout_worker) == (3, 240)
    assert (plan.responses_per_gpu, plan.log_prob_rounds_per_gpu) == (120, 15)
    assert (plan.mini_batch_responses, plan.mini_batch_responses_per_gpu) == (720, 120)
    assert (plan.accumulation_steps, plan.updates_per_step) == (15, 1)


def test_worked_case_says_what_it_did():
    job, report = import_verl([Source.file("worked.yaml", WORKED)])
    spec = job["spec"]
    assert spec["model"]["path"] == "meta-llama/Llama-2-7b-hf"
    assert spec["actor"]["useKlLoss"] is True
    assert spec["trainer"]["totalEpochs"] == 30  # verl's default
    assert left(report, "algorithm.adv_estimator") == (
        "changed",
        "gae needs a critic, which this API does not have yet: trained with grpo instead, whose advantage is the score "
        "against its group",
    )
    assert left(report, "algorithm.kl_penalty") == (
        "not_applicable",
        f"verl has a type of KL here, such as kl or low_var_kl; for a coefficient, set {ACTOR}.kl_loss_coef",
    )
    assert [path for path, _ in report.placeholders] == ["spec.data.train.files"]
    assert spec["reward"]["functions"] == [{"name": "verl-default", "builtin": {"rule": "verl"}}]
    assert any("by each row's data_source" in note for note in report.notes)
    assert not report.unknown
    assert len(report.carried) + len(report.changed) + len(report.not_applicable) == 20


def test_placeholders_are_marked_in_the_file():
    job, report = import_verl([Source.file("worked.yaml", WORKED)])
    text = dump_job(job, report, "worked.yaml")
    assert text.startswith("# Made by `grpoctl import verl` from worked.yaml.\n# PLACEHOLDER spec.data.train.files: ")
    assert "- /REPLACE-ME/data/rlhf/gsm8k/train.parquet" in text
    assert "# Otherwise than in verl: algorithm.adv_estimator=gae: " in text


# Every key goes somewhere


def test_every_setting_is_in_one_part_of_the_report():
    text = (Path(__file__).parent / "data" / "verl_many_keys.yaml").read_text()
    source = Source.file("many.yaml", text)
    job, report = import_verl([source])
    parse_job(job)
    parts = [report.carried, report.changed, report.not_applicable, report.unknown]
    booked = [item.setting for part in parts for item in part if item.setting.place.source == "many.yaml"]
    lines = [number for number, line in enumerate(text.splitlines(), 1) if re.search(r"\S+: +\S", line)]
    assert sorted(setting.place.line for setting in booked) == lines
    assert [item.setting.key for item in report.unknown] == ["trainer.total_epoch"]


@pytest.mark.parametrize("key", [key.verl for key in KEYS if "*" not in key.verl])
def test_every_carried_key_reaches_the_job_when_set(key):
    """A value that is neither verl's default nor ours ends in the field that the table names."""
    row = next(row for row in KEYS if row.verl == key)
    value, more = VALUES[key] if key in VALUES else (SAMPLES[row.kind], [])
    spec, report = run(*more, f"{key}={value}")
    assert [item.setting.shown for item in report.carried if canonical(item.setting.key) == key], left(report, key)
    if row.path == "metadata.name":
        return
    found = spec
    for name in re.sub(r"\[0\]", "", row.path).split("."):
        found = found[0][name] if isinstance(found, list) else found[name]
    assert found not in (None, row.default) or key == f"{ACTOR}.clip_ratio_c"


SAMPLES = {"int": 2, "float": 0.25, "bool": "true", "text": "word", "floats": "[0.8,0.9]", "text or list": "/a"}
DYNAMIC = [
    f"{ACTOR}.use_dynamic_bsz=true",
    f"{ROLLOUT}.log_prob_use_dynamic_bsz=true",
    f"{REF}.log_prob_use_dynamic_bsz=true",
]
NO_MICRO = [f"~{ACTOR}.ppo_micro_batch_size_per_gpu", f"~{ROLLOUT}.log_prob_micro_batch_size_per_gpu"]
VAL_FILES = ["data.val_files=/data/test.parquet"]
VALUES = {
    "data.val_batch_size": (64, VAL_FILES),
    "data.val_max_samples": (64, VAL_FILES),
    f"{ROLLOUT}.val_kwargs.n": (4, [*VAL_FILES, f"{ROLLOUT}.val_kwargs.temperature=0.6"]),
    f"{ROLLOUT}.val_kwargs.temperature": (0.6, VAL_FILES),
    f"{ROLLOUT}.val_kwargs.top_p": (0.7, VAL_FILES),
    f"{ROLLOUT}.val_kwargs.top_k": (20, VAL_FILES),
    "trainer.test_freq": (5, VAL_FILES),
    "trainer.val_before_train": ("false", VAL_FILES),
    "actor_rollout_ref.model.override_config.attn_implementation": ("eager", []),
    f"{ACTOR}.fsdp_config.dtype": ("float32", []),
    f"{ROLLOUT}.dtype": ("float32", []),
    "data.truncation": ("left", []),
    "data.train_batch_size": (128, []),
    "data.shuffle": ("false", []),
    "algorithm.adv_estimator": ("rloo", []),
    "algorithm.norm_adv_by_std_in_grpo": ("false", []),
    "algorithm.kl_penalty": ("k3", []),
    "algorithm.rollout_correction.rollout_is": ("sequence", []),
    "algorithm.rollout_correction.rollout_is_threshold": ("0.5_5.0", []),
    "algorithm.kl_ctrl.type": ("adaptive", []),
    f"{ROLLOUT}.name": ("hf", []),
    f"{ROLLOUT}.tensor_model_parallel_size": (4, []),
    f"{ROLLOUT}.log_prob_micro_batch_size": (16, NO_MICRO),
    f"{ROLLOUT}.log_prob_use_dynamic_bsz": ("true", []),
    f"{ROLLOUT}.log_prob_max_token_len_per_gpu": (8192, DYNAMIC),
    f"{ACTOR}.ppo_mini_batch_size": (16, []),
    f"{ACTOR}.ppo_micro_batch_size": (16, NO_MICRO),
    f"{ACTOR}.ppo_max_token_len_per_gpu": (8192, DYNAMIC),
    f"{ACTOR}.clip_ratio_c": (5.0, []),
    f"{ACTOR}.policy_loss.loss_mode": ("cispo", []),
    f"{ACTOR}.policy_loss.clip_cov_ub": (7.0, []),
    f"{ACTOR}.loss_agg_mode": ("seq-mean-token-mean", []),
    f"{ACTOR}.kl_loss_type": ("mse", []),
    f"{ACTOR}.optim.lr_warmup_steps_ratio": (0.5, ["trainer.total_training_steps=10"]),
    f"{ACTOR}.optim.lr_scheduler_type": ("cosine", []),
    f"{ACTOR}.fsdp_config.reshard_after_forward": ("false", []),
    f"{REF}.log_prob_micro_batch_size": (16, []),
    f"{REF}.log_prob_use_dynamic_bsz": ("true", [f"{ACTOR}.use_kl_loss=true"]),
    f"{REF}.log_prob_max_token_len_per_gpu": (8192, DYNAMIC),
    "algorithm.rollout_correction.rollout_rs": ("seq_mean_k1", []),
    "algorithm.rollout_correction.rollout_rs_threshold": ("3.0", ["algorithm.rollout_correction.rollout_rs=token_k2"]),
    "actor_rollout_ref.model.lora_alpha": ("64", ["actor_rollout_ref.model.lora_rank=8"]),
    "actor_rollout_ref.model.target_modules": ("[q_proj]", ["actor_rollout_ref.model.lora_rank=8"]),
    "reward.custom_reward_function.path": ("nowhere.py", []),
    "reward.reward_model.model_path": ("org/rm", ["reward_model.enable=true"]),
    "reward.reward_model.rollout.max_model_len": (77, ["reward_model.enable=true"]),
    "reward.custom_reward_function.name": ("score", ["custom_reward_function.path=nowhere.py"]),
    "trainer.n_gpus_per_node": (4, []),
    "trainer.resume_mode": ("disable", []),
    "trainer.project_name": ("mine", []),
}


def test_the_table_names_fields_that_exist():
    def has(model, path):
        head, _, rest = path.partition(".")
        field = next((item for item in model.model_fields.values() if item.alias == head.removesuffix("[0]")), None)
        if field is None or not rest or head in ("engineArgs", "chatTemplateKwargs"):
            return field is not None
        inner = re.search(r"grpo_api\.[\w.]+", str(field.annotation))
        module, _, name = inner[0].rpartition(".")
        return has(getattr(__import__(module, fromlist=[name]), name), rest)

    for key in KEYS:
        assert key.path == "metadata.name" or has(GRPOJobSpec, key.path), key


def test_no_key_stands_in_both_tables():
    for key in KEYS:
        exact = [item for item in NOT_CARRIED if item.pattern in (key.verl, *key.aliases)]
        assert not exact, key
    patterns = [item.pattern for item in NOT_CARRIED]
    assert len(set(patterns)) == len(patterns)


def test_the_page_holds_the_table():
    page = (Path(__file__).parents[3] / "docs" / "verl.md").read_text()
    made = page.partition("<!-- keys -->\n")[2]
    assert made == key_table(), "docs/verl.md is stale: replace what follows its mark by `grpoctl import verl --keys`"


# Names, old and new


@pytest.mark.parametrize(
    ("old", "path", "value"),
    [
        ("model.path=m", ("model", "path"), "m"),
        ("actor.ppo_epochs=2", ("actor", "ppoEpochs"), 2),
        ("rollout.temperature=0.5", ("rollout", "temperature"), 0.5),
        (f"{ACTOR}.optim.warmup_style=cosine", ("actor", "optim", "lrSchedulerType"), "cosine"),
        (f"{ACTOR}.optim.clip_grad=0.5", ("actor", "gradClip"), 0.5),
        ("data.tokenizer=t", ("model", "tokenizerPath"), "t"),
        ("reward_model.num_workers=3", ("reward", "workers"), 3),
        (f"++{ACTOR}.ppo_epochs=2", ("actor", "ppoEpochs"), 2),
        (f"+{ROLLOUT}.engine_kwargs.vllm.swap_space=4", ("rollout", "engineArgs", "swap_space"), 4),
        (f"{ROLLOUT}.max_model_len=4096", ("rollout", "engineArgs", "max_model_len"), 4096),
    ],
)
def test_old_short_and_added_names(old, path, value):
    spec, report = run(old)
    for name in path:
        spec = spec[name]
    assert spec == value
    assert not report.unknown


def test_an_old_name_with_null_does_not_undo_the_new_one():
    spec, _ = run(f"{ACTOR}.optim.lr_scheduler_type=cosine", f"{ACTOR}.optim.warmup_style=null")
    assert spec["actor"]["optim"]["lrSchedulerType"] == "cosine"


def test_unknown_key_names_the_nearest():
    _, report = run("trainer.total_epoch=3", f"{ACTOR}.optim.learning_rate=1", f"+{ROLLOUT}.kl_loss_coef=1", "zzz=1")
    assert left(report, "trainer.total_epoch") == ("unknown", "not carried; did you mean trainer.total_epochs?")
    assert left(report, f"{ROLLOUT}.kl_loss_coef")[1].endswith(f"did you mean {ACTOR}.kl_loss_coef?")
    assert left(report, "zzz") == ("unknown", "not carried; verl 0.9 has no such key")
    assert left(report, f"{ACTOR}.optim.learning_rate")[0] == "unknown"


# What trains otherwise


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (
            "algorithm.adv_estimator=optimal_token_baseline",
            "optimal_token_baseline is no estimator of this API yet: trained with grpo instead",
        ),
        ('algorithm.rollout_correction.rollout_rs="token_k1,seq_sum_k3"', "takes one option"),
        ("actor_rollout_ref.model.exclude_modules=[q_proj]", "model.lora.targetModules names"),
        (f"{ACTOR}.policy_loss.loss_mode=dro", "actor.policyLoss.lossMode has no dro yet: vanilla is used"),
        ("algorithm.adv_estimator=gdpo", "several reward.functions"),
        (f"{ROLLOUT}.name=sglang", "vllm samples instead"),
        (f"{ROLLOUT}.multi_turn.enable=True", "one response"),
        (f"{ACTOR}.loss_agg_mode=token-median", "token-mean is used"),
        (f"{ACTOR}.kl_loss_type=full", "low_var_kl is used"),
        ("critic.enable=true", "no critic"),
        ("use_critic=true", "no critic"),
        ("reward_model.reward_manager=remote", "without the manager's own rules"),
        ("trainer.critic_warmup=10", "updated from the first step"),
        ("data.truncation=middle", "Error"),
        ("trainer.resume_mode=resume_path", "Auto is used"),
    ],
)
def test_what_changes_training_says_what_is_done(override, says):
    _, report = run(override)
    name, reason = left(report, override.partition("=")[0].lstrip("+"))
    assert name == "changed"
    assert says in reason


@pytest.mark.parametrize(
    "override",
    [
        "actor_rollout_ref.model.lora_rank=0",
        f"{ACTOR}.policy_loss.dro_beta=0.1",
        "critic.optim.lr=1e-5",
        "reward_model.reward_manager=naive",
        "trainer.logger=[console,wandb]",
        f"{ACTOR}.fsdp_config.param_offload=True",
        "actor@actor_rollout_ref.actor=megatron_actor",
        "hydra.run.dir=/tmp",
    ],
)
def test_what_changes_nothing_is_not_applicable(override):
    _, report = run(override)
    assert left(report, override.partition("=")[0])[0] == "not_applicable"
    assert not report.changed


def test_one_response_becomes_a_group():
    spec, report = run(f"{ROLLOUT}.n=1")
    assert spec["rollout"]["n"] == 8
    assert "one response has no group" in left(report, f"{ROLLOUT}.n")[1]


def test_defaults_that_change_training_are_reported_as_defaults():
    _, report = run(base=[*BASE[1:6], "trainer.n_gpus_per_node=4"])
    assert {(item.setting.shown, str(item.setting.place)) for item in report.changed} == {
        ("algorithm.adv_estimator=gae", "verl's default"),
        (f"{ROLLOUT}.n=1", "verl's default"),
    }


def test_clip_ranges_of_another_loss_stay_out():
    spec, report = run(f"{ACTOR}.policy_loss.loss_mode=dro", f"{ACTOR}.clip_ratio_low=3e-4", f"{ACTOR}.clip_ratio_c=10")
    assert "clipRatioLow" not in spec["actor"]
    assert "clipRatioC" not in spec["actor"]
    assert "keeps 3.0" in left(report, f"{ACTOR}.clip_ratio_c")[1]


def test_clip_ranges_go_with_their_loss():
    spec, _ = run(
        f"{ACTOR}.policy_loss.loss_mode=gspo", f"{ACTOR}.clip_ratio_low=3e-4", f"{ACTOR}.clip_ratio_high=4e-4"
    )
    assert spec["actor"]["policyLoss"] == {"lossMode": "gspo"}
    assert (spec["actor"]["clipRatioLow"], spec["actor"]["clipRatioHigh"]) == (3e-4, 4e-4)


def test_no_bound_below_as_verls_example_of_cispo_has_it():
    spec, _ = run(f"{ACTOR}.policy_loss.loss_mode=cispo", f"{ACTOR}.clip_ratio_low=10", f"{ACTOR}.clip_ratio_high=0.2")
    assert (spec["actor"]["clipRatioLow"], spec["actor"]["clipRatioHigh"]) == (10, 0.2)


def test_clip_ratio_alone_is_noted():
    spec, report = run(f"{ACTOR}.clip_ratio=0.3")
    assert spec["actor"]["clipRatio"] == 0.3
    assert any("verl 0.3 and later clip at 0.2" in note for note in report.notes)


def test_defaults_of_verl_that_differ_from_ours_are_written_and_listed():
    spec, report = run()
    assert [(item.key, item.value, item.path) for item in report.defaults] == [
        ("algorithm.rollout_correction.rollout_is", None, "spec.algorithm.rolloutCorrection.rolloutIs"),
        (f"{ROLLOUT}.tensor_model_parallel_size", 2, "spec.rollout.tensorModelParallelSize"),
        ("trainer.total_epochs", 30, "spec.trainer.totalEpochs"),
        ("trainer.save_freq", -1, "spec.trainer.saveFreq"),
        ("trainer.n_gpus_per_node", 8, "spec.trainer.nGpusPerNode"),
    ]
    assert (spec["rollout"]["tensorModelParallelSize"], spec["trainer"]["nGpusPerNode"]) == (2, 8)


def test_rollout_correction():
    key = "algorithm.rollout_correction"
    spec, report = run()
    assert spec["algorithm"]["rolloutCorrection"] == {"rolloutIs": "none"}  # verl's default, and not ours
    assert f"{key}.rollout_is" in {item.key for item in report.defaults}
    spec, _ = run(f"{key}.rollout_is=token", f"{key}.rollout_is_threshold=0.5_5.0")
    assert spec["algorithm"]["rolloutCorrection"] == {
        "rolloutIs": "token", "rolloutIsThreshold": 5.0, "rolloutIsThresholdLower": 0.5,
    }  # fmt: skip
    assert "rolloutIsThresholdLower" not in run(f"{key}.rollout_is_threshold=3")[0]["algorithm"]["rolloutCorrection"]
    assert "two, such as 0.5_5.0" in faults(f"{key}.rollout_is_threshold=wide")[0]


def test_no_bound_on_filtered_batches_leaves_ours():
    spec, report = run("algorithm.filter_groups.enable=true", "algorithm.filter_groups.max_num_gen_batches=0")
    assert spec["algorithm"]["filterGroups"] == {"enable": True}
    assert left(report, "algorithm.filter_groups.max_num_gen_batches")[0] == "not_applicable"
