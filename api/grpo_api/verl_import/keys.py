"""verl's keys: which field of a GRPOJob each becomes. `not_carried.py` holds those that have none.

Names and defaults: verl 0.9, `verl/trainer/config/_generated_ppo_trainer.yaml`; aliases: names of verl 0.2 to 0.8, and
the short forms that users write. The one home of the mapping: docs/verl.md is made from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from grpo_api.spec.training import LossAggMode, LossMode

MODEL = "actor_rollout_ref.model."
ACTOR = "actor_rollout_ref.actor."
ROLLOUT = "actor_rollout_ref.rollout."
REF = "actor_rollout_ref.ref."
ROLLOUT_CORRECTION = "algorithm.rollout_correction."

Kind = Literal["int", "float", "bool", "text", "floats", "text or list", "any"]


@dataclass(frozen=True)
class Key:
    """One verl key that a GRPOJob has a field for."""

    verl: str
    path: str
    """Field below `spec`; for a combined key, what it decides."""
    kind: Kind
    default: Any = None
    """verl's; an interpolation where verl's is one."""
    aliases: tuple[str, ...] = ()
    choices: Mapping[str, str] | None = None
    """verl's words and ours."""
    instead: str | None = None
    """The choice that is taken for a word of verl's that we have none for; without it such a word is an error."""
    combined: bool = False
    """Read by code of its own, together with other keys."""
    write_default: bool = True
    """Write verl's default where it differs from ours."""
    doc: str = ""


KL_TYPES = {
    "kl": "kl",
    "k1": "kl",
    "abs": "abs",
    "mse": "mse",
    "k2": "mse",
    "low_var_kl": "low_var_kl",
    "k3": "low_var_kl",
}
KL_TYPES |= {f"{name}+": ours if ours == "mse" else f"{ours}+" for name, ours in KL_TYPES.items()}
_SAME_CONTROL = {"fixed": "fixed", "adaptive": "adaptive"}
LOSS_MODES = {name: name for name in get_args(LossMode)}
_DTYPES = {"bfloat16": "bfloat16", "bf16": "bfloat16", "float32": "float32", "fp32": "float32"}
_DYNAMIC = f"${{oc.select:{ACTOR}use_dynamic_bsz,false}}"
_MAX_TOKENS = f"${{oc.select:{ACTOR}ppo_max_token_len_per_gpu,16384}}"


def _engine(name: str, kind: Kind) -> Key:
    return Key(ROLLOUT + name, f"rollout.engineArgs.{name}", kind, write_default=False)


def _overlong(name: str, ours: str, kind: Kind) -> Key:
    old = (f"reward_model.overlong_buffer.{name}", f"reward_model.reward_kwargs.overlong_buffer_cfg.{name}")
    new = f"reward.reward_kwargs.overlong_buffer_cfg.{name}"
    return Key(new, f"reward.overlongBuffer.{ours}", kind, aliases=old, write_default=False)


KEYS: tuple[Key, ...] = (
    # model
    Key(
        MODEL + "path",
        "model.path",
        "text",
        "~/models/deepseek-llm-7b-chat",
        combined=True,
        doc="hub id, or path in the pods",
    ),
    Key(MODEL + "trust_remote_code", "model.trustRemoteCode", "bool", False),
    Key(MODEL + "tokenizer_path", "model.tokenizerPath", "text", aliases=("data.tokenizer",)),
    Key(MODEL + "custom_chat_template", "model.chatTemplate", "text"),
    Key(
        MODEL + "override_config.attn_implementation",
        "model.attnImplementation",
        "text",
        choices={name: name for name in ("sdpa", "flash_attention_2", "eager")},
        instead="sdpa",
    ),
    Key(MODEL + "lora_rank", "model.lora.rank", "int", 0, (MODEL + "lora.rank",), combined=True, doc="0: no adapters"),
    Key(MODEL + "lora_alpha", "model.lora.alpha", "float", 16, (MODEL + "lora.alpha",), combined=True),
    Key(
        MODEL + "target_modules",
        "model.lora.targetModules",
        "text or list",
        "all-linear",
        (MODEL + "lora.target_modules",),
        combined=True,
    ),
    Key(
        ACTOR + "fsdp_config.dtype",
        "model.dtype",
        "text",
        "bfloat16",
        choices=_DTYPES,
        instead="bfloat16",
        combined=True,
    ),
    Key(
        ROLLOUT + "dtype",
        "model.dtype",
        "text",
        "bfloat16",
        choices=_DTYPES,
        instead="bfloat16",
        combined=True,
        doc="where the actor's is not given",
    ),
    # data
    Key(
        "data.train_files",
        "data.train.files",
        "text or list",
        "~/data/rlhf/gsm8k/train.parquet",
        combined=True,
        doc="paths in the pods; a placeholder where not given",
    ),
    Key("data.val_files", "data.val.files", "text or list", combined=True, doc="where given; paths in the pods"),
    Key("data.val_batch_size", "data.valBatchSize", "int", doc="null: ours, 1024; no number depends on it"),
    Key(
        "data.val_max_samples",
        "data.valMaxSamples",
        "int",
        -1,
        combined=True,
        doc="spread evenly over the rows; verl takes random ones, or the first",
    ),
    Key("data.prompt_key", "data.promptKey", "text", "prompt"),
    Key("data.reward_fn_key", "data.dataSourceKey", "text", "data_source"),
    Key("data.train_batch_size", "data.trainBatchSize", "int", 1024),
    Key("data.max_prompt_length", "data.maxPromptLength", "int", 512),
    Key("data.max_response_length", "data.maxResponseLength", "int", 512),
    Key("data.filter_overlong_prompts", "data.overlongPrompts", "bool", False, combined=True, doc="true: `Drop`"),
    Key(
        "data.truncation",
        "data.overlongPrompts",
        "text",
        "error",
        combined=True,
        doc="`Error`, `TruncateLeft`, `TruncateRight`, where prompts are not filtered",
    ),
    Key(
        "data.apply_chat_template_kwargs.*",
        "data.chatTemplateKwargs.*",
        "any",
        combined=True,
        doc="as they stand",
    ),
    Key("data.shuffle", "data.shuffle", "bool", True),
    Key("data.seed", "data.seed", "int"),
    # algorithm
    Key(
        "algorithm.adv_estimator",
        "algorithm.advEstimator",
        "text",
        "gae",
        combined=True,
        doc="gae (needs a critic), gdpo (several functions) and unknown ones train with grpo, as the report says",
    ),
    Key("algorithm.norm_adv_by_std_in_grpo", "algorithm.normAdvByStdInGrpo", "bool", True),
    Key("algorithm.gamma", "algorithm.gamma", "float", 1.0),
    Key("algorithm.lam", "algorithm.lam", "float", 1.0),
    Key("algorithm.use_kl_in_reward", "algorithm.useKlInReward", "bool", False),
    Key(
        "algorithm.kl_penalty",
        "algorithm.klPenalty",
        "text",
        "kl",
        combined=True,
        doc="a number, which verl would refuse, is left out",
    ),
    Key("algorithm.filter_groups.enable", "algorithm.filterGroups.enable", "bool", False),
    Key(
        "algorithm.filter_groups.max_num_gen_batches",
        "algorithm.filterGroups.maxNumGenBatches",
        "int",
        combined=True,
        doc="0, no bound in verl, is left out: ours is 10",
    ),
    Key(
        ROLLOUT_CORRECTION + "rollout_is",
        "algorithm.rolloutCorrection.rolloutIs",
        "text",
        combined=True,
        doc="null is `none`: ours is `token`",
    ),
    Key(
        ROLLOUT_CORRECTION + "rollout_is_threshold",
        "algorithm.rolloutCorrection.rolloutIsThreshold",
        "text",
        2.0,
        combined=True,
        doc="of `0.5_5.0` the first is `rolloutIsThresholdLower`",
    ),
    Key(
        ROLLOUT_CORRECTION + "rollout_rs",
        "algorithm.rolloutCorrection.rolloutRs",
        "text",
        combined=True,
        doc="one option; several, with a comma, are left out",
    ),
    Key(
        ROLLOUT_CORRECTION + "rollout_rs_threshold",
        "algorithm.rolloutCorrection.rolloutRsThreshold",
        "text",
        combined=True,
        doc="of `0.5_2.0` the first is `rolloutRsThresholdLower`",
    ),
    Key("algorithm.kl_ctrl.type", "algorithm.klCtrl.type", "text", "fixed", choices=_SAME_CONTROL),
    Key("algorithm.kl_ctrl.kl_coef", "algorithm.klCtrl.klCoef", "float", 0.001),
    Key("algorithm.kl_ctrl.target_kl", "algorithm.klCtrl.targetKl", "float", 0.1),
    Key("algorithm.kl_ctrl.horizon", "algorithm.klCtrl.horizon", "int", 10000),
    # rollout
    Key(
        ROLLOUT + "name", "rollout.engine", "text", "vllm", combined=True, doc="vllm or hf; any other is run with vllm"
    ),
    Key(
        ROLLOUT + "n", "rollout.n", "int", 1, combined=True, doc="at least 2: one response has no group to compare with"
    ),
    Key(
        ROLLOUT + "tensor_model_parallel_size",
        "rollout.tensorModelParallelSize",
        "int",
        2,
        combined=True,
        doc="at most a node's GPUs",
    ),
    Key(ROLLOUT + "temperature", "rollout.temperature", "float", 1.0),
    Key(ROLLOUT + "top_p", "rollout.topP", "float", 1),
    Key(ROLLOUT + "top_k", "rollout.topK", "int", -1),
    Key(ROLLOUT + "gpu_memory_utilization", "rollout.gpuMemoryUtilization", "float", 0.5),
    Key(ROLLOUT + "enforce_eager", "rollout.enforceEager", "bool", False),
    Key(ROLLOUT + "seed", "rollout.seed", "int", write_default=False),
    Key(ROLLOUT + "log_prob_micro_batch_size_per_gpu", "rollout.logProbMicroBatchSizePerGpu", "int", combined=True),
    Key(
        ROLLOUT + "log_prob_micro_batch_size",
        "rollout.logProbMicroBatchSizePerGpu",
        "int",
        combined=True,
        doc="over all GPUs: divided by them",
    ),
    Key(
        ROLLOUT + "log_prob_use_dynamic_bsz",
        "rollout.logProbMaxTokenLenPerGpu",
        "bool",
        _DYNAMIC,
        combined=True,
        doc="true: the token budget holds, and the micro size falls away",
    ),
    Key(
        ROLLOUT + "log_prob_max_token_len_per_gpu",
        "rollout.logProbMaxTokenLenPerGpu",
        "int",
        _MAX_TOKENS,
        combined=True,
    ),
    Key(
        ROLLOUT + "val_kwargs.n",
        "rollout.valKwargs.n",
        "int",
        1,
        combined=True,
        doc="1 where the temperature is 0: verl's responses would all be the same",
    ),
    Key(ROLLOUT + "val_kwargs.temperature", "rollout.valKwargs.temperature", "float", 0),
    Key(ROLLOUT + "val_kwargs.top_p", "rollout.valKwargs.topP", "float", 1.0),
    Key(ROLLOUT + "val_kwargs.top_k", "rollout.valKwargs.topK", "int", -1),
    _engine("max_model_len", "int"),
    _engine("max_num_batched_tokens", "int"),
    _engine("max_num_seqs", "int"),
    _engine("enable_chunked_prefill", "bool"),
    _engine("enable_prefix_caching", "bool"),
    Key(ROLLOUT + "engine_kwargs.vllm.*", "rollout.engineArgs.*", "any", combined=True, doc="as they stand"),
    # actor
    Key(ACTOR + "ppo_mini_batch_size", "actor.ppoMiniBatchSize", "int", 256, doc="prompts, as in verl"),
    Key(ACTOR + "ppo_micro_batch_size_per_gpu", "actor.ppoMicroBatchSizePerGpu", "int", combined=True),
    Key(
        ACTOR + "ppo_micro_batch_size",
        "actor.ppoMicroBatchSizePerGpu",
        "int",
        combined=True,
        doc="over all GPUs: divided by them",
    ),
    Key(
        ACTOR + "use_dynamic_bsz",
        "actor.ppoMaxTokenLenPerGpu",
        "bool",
        False,
        combined=True,
        doc="true: the token budget holds, and the micro size falls away",
    ),
    Key(ACTOR + "ppo_max_token_len_per_gpu", "actor.ppoMaxTokenLenPerGpu", "int", 16384, combined=True),
    Key(ACTOR + "ppo_epochs", "actor.ppoEpochs", "int", 1),
    Key(
        ACTOR + "policy_loss.loss_mode",
        "actor.policyLoss.lossMode",
        "text",
        "vanilla",
        choices=LOSS_MODES,
        instead="vanilla",
    ),
    Key(ACTOR + "policy_loss.clip_cov_ratio", "actor.policyLoss.clipCovRatio", "float", 0.0002),
    Key(ACTOR + "policy_loss.clip_cov_lb", "actor.policyLoss.clipCovLb", "float", 1.0),
    Key(ACTOR + "policy_loss.clip_cov_ub", "actor.policyLoss.clipCovUb", "float", 5.0),
    Key(ACTOR + "policy_loss.kl_cov_ratio", "actor.policyLoss.klCovRatio", "float", 0.0002),
    Key(ACTOR + "policy_loss.ppo_kl_coef", "actor.policyLoss.ppoKlCoef", "float", 0.1),
    Key(ACTOR + "tau_pos", "actor.tauPos", "float", 1.0),
    Key(ACTOR + "tau_neg", "actor.tauNeg", "float", 1.05),
    Key(
        ACTOR + "clip_ratio",
        "actor.clipRatio",
        "float",
        0.2,
        combined=True,
        doc="with the losses that we have, like the three below",
    ),
    Key(ACTOR + "clip_ratio_low", "actor.clipRatioLow", "float", combined=True, write_default=False),
    Key(ACTOR + "clip_ratio_high", "actor.clipRatioHigh", "float", combined=True, write_default=False),
    Key(ACTOR + "clip_ratio_c", "actor.clipRatioC", "float", 3.0, combined=True),
    Key(
        ACTOR + "loss_agg_mode",
        "actor.lossAggMode",
        "text",
        "token-mean",
        choices={name: name for name in get_args(LossAggMode)},
        instead="token-mean",
    ),
    Key(ACTOR + "use_kl_loss", "actor.useKlLoss", "bool", False),
    Key(ACTOR + "kl_loss_coef", "actor.klLossCoef", "float", 0.001),
    Key(ACTOR + "kl_loss_type", "actor.klLossType", "text", "low_var_kl", choices=KL_TYPES, instead="low_var_kl"),
    Key(ACTOR + "entropy_coeff", "actor.entropyCoeff", "float", 0),
    Key(
        ACTOR + "grad_clip",
        "actor.gradClip",
        "float",
        1.0,
        aliases=(ACTOR + "optim.clip_grad", ACTOR + "optim.grad_clip"),
    ),
    Key(ACTOR + "optim.lr", "actor.optim.lr", "float", 1e-6),
    Key(ACTOR + "optim.weight_decay", "actor.optim.weightDecay", "float", 0.01),
    Key(ACTOR + "optim.betas", "actor.optim.betas", "floats", [0.9, 0.999]),
    Key(
        ACTOR + "optim.lr_warmup_steps",
        "actor.optim.lrWarmupSteps",
        "int",
        -1,
        combined=True,
        doc="verl counts steps, we count updates: multiplied by the updates a step",
    ),
    Key(
        ACTOR + "optim.lr_warmup_steps_ratio",
        "actor.optim.lrWarmupSteps",
        "float",
        0.0,
        combined=True,
        doc="of `trainer.total_training_steps`, where that is given",
    ),
    Key(
        ACTOR + "optim.lr_scheduler_type",
        "actor.optim.lrSchedulerType",
        "text",
        "constant",
        aliases=(ACTOR + "optim.warmup_style",),
        choices={"constant": "constant", "cosine": "cosine", "linear": "linear"},
    ),
    Key(ACTOR + "fsdp_config.reshard_after_forward", "actor.fsdp.reshardAfterForward", "bool", True),
    # ref
    Key(REF + "log_prob_micro_batch_size_per_gpu", "ref.logProbMicroBatchSizePerGpu", "int", combined=True),
    Key(
        REF + "log_prob_micro_batch_size",
        "ref.logProbMicroBatchSizePerGpu",
        "int",
        combined=True,
        doc="over all GPUs: divided by them",
    ),
    Key(REF + "log_prob_use_dynamic_bsz", "ref.logProbMaxTokenLenPerGpu", "bool", _DYNAMIC, combined=True),
    Key(REF + "log_prob_max_token_len_per_gpu", "ref.logProbMaxTokenLenPerGpu", "int", _MAX_TOKENS, combined=True),
    # reward
    Key(
        "reward.custom_reward_function.path",
        "reward.functions[0].python.source",
        "text",
        aliases=("custom_reward_function.path",),
        combined=True,
        doc="the file's text; an absolute path that cannot be read is a module of the pods, any other a placeholder",
    ),
    Key(
        "reward.custom_reward_function.name",
        "reward.functions[0].python.function",
        "text",
        "compute_score",
        aliases=("custom_reward_function.name",),
        combined=True,
    ),
    Key(
        "reward.custom_reward_function.reward_kwargs.*",
        "reward.functions[0].python.params",
        "any",
        combined=True,
        doc="as they stand",
    ),
    Key(
        "reward.reward_model.enable",
        "reward.functions[0].classifier",
        "bool",
        False,
        aliases=("reward_model.enable",),
        combined=True,
        doc="a classifier by its chat template, without a `custom_reward_function`",
    ),
    Key(
        "reward.reward_model.model_path",
        "reward.functions[0].classifier.path",
        "text",
        aliases=("reward_model.model.path",),
        combined=True,
    ),
    Key(
        "reward.reward_model.rollout.max_model_len",
        "reward.functions[0].classifier.maxLength",
        "int",
        aliases=("reward_model.rollout.max_model_len", "reward_model.max_length"),
        combined=True,
        doc="`data.max_prompt_length` + `data.max_response_length` where unset",
    ),
    _overlong("enable", "enable", "bool"),
    _overlong("len", "len", "int"),
    _overlong("penalty_factor", "penaltyFactor", "float"),
    Key("reward.num_workers", "reward.workers", "int", aliases=("reward_model.num_workers",), write_default=False),
    # trainer
    Key("trainer.total_epochs", "trainer.totalEpochs", "int", 30, combined=True, doc="where no steps are given"),
    Key("trainer.total_training_steps", "trainer.totalSteps", "int", combined=True),
    Key("trainer.nnodes", "trainer.nnodes", "int", 1),
    Key("trainer.n_gpus_per_node", "trainer.nGpusPerNode", "int", 8),
    Key(
        "trainer.save_freq",
        "trainer.saveFreq",
        "int",
        -1,
        combined=True,
        doc="above 0: also a claim template for the checkpoints",
    ),
    Key(
        "trainer.test_freq",
        "trainer.testFreq",
        "int",
        -1,
        combined=True,
        doc="with `data.val_files`, like the next one",
    ),
    Key("trainer.val_before_train", "trainer.valBeforeTrain", "bool", True, combined=True),
    Key("trainer.max_actor_ckpt_to_keep", "checkpoint.keep", "int", write_default=False),
    Key(
        "trainer.resume_mode",
        "checkpoint.resume",
        "text",
        "auto",
        choices={"auto": "Auto", "disable": "Never"},
        instead="Auto",
    ),
    Key("trainer.experiment_name", "metadata.name", "text", combined=True, doc="made a valid name"),
    Key("trainer.project_name", "metadata.name", "text", combined=True, doc="where there is no experiment name"),
)

CARRIED: Mapping[str, Key] = {key.verl: key for key in KEYS}
_ALIASES: Mapping[str, str] = {alias: key.verl for key in KEYS for alias in key.aliases}
_PREFIXES: tuple[tuple[str, str], ...] = (
    ("model.", MODEL),
    ("actor.", ACTOR),
    ("rollout.", ROLLOUT),
    ("ref.", REF),
    ("custom_reward_function.", "reward.custom_reward_function."),
)

OTHER_DEFAULTS: Mapping[str, Any] = {
    ACTOR + "strategy": "fsdp",
    ACTOR + "ulysses_sequence_parallel_size": 1,
    MODEL + "use_remove_padding": True,
    MODEL + "enable_gradient_checkpointing": True,
    ROLLOUT + "mode": "async",
    "trainer.project_name": "verl_examples",
    "trainer.experiment_name": "gsm8k",
    "data.val_files": "~/data/rlhf/gsm8k/test.parquet",
}
"""Defaults of keys that are not carried, for interpolations that name them."""


def canonical(key: str) -> str:
    """The key by verl's present name."""
    for short, full in _PREFIXES:
        if key.startswith(short):
            key = full + key.removeprefix(short)
            break
    return _ALIASES.get(key, key)


def verl_default(key: str) -> Any:
    """verl's default of a key. Raises KeyError where there is none."""
    found = CARRIED.get(key)
    if found is not None and "*" not in key and not (found.default is None and key in OTHER_DEFAULTS):
        return found.default
    return OTHER_DEFAULTS[key]
