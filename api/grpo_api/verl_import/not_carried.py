"""verl's keys that no field of a GRPOJob stands for, each with the reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_api.verl_import.keys import ACTOR, MODEL, REF, ROLLOUT


@dataclass(frozen=True)
class NotCarried:
    """Keys that are left out. `pattern` may end in `.*`, for the whole section."""

    pattern: str
    reason: str
    neutral: tuple[Any, ...] = ()
    """Values that change nothing here, besides null."""
    instead: str = ""
    """What is done instead where the value is none of `neutral`: the job then trains otherwise than verl."""

    def matches(self, key: str) -> bool:
        if self.pattern.endswith(".*"):
            section = self.pattern.removesuffix(".*")
            return key == section or key.startswith(section + ".")
        return key == self.pattern

    def changes(self, value: Any) -> bool:
        return bool(self.instead) and value is not None and value not in ([], {}) and _plain(value) not in self.neutral


def _plain(value: Any) -> Any:
    return (
        value
        if not isinstance(value, str)
        else {"true": True, "false": False, "none": "null"}.get(value.lower(), value)
    )


_GROUP = "decides which of verl's files are read; the defaults of its FSDP engine hold here"
_ENGINE = "one engine here: FSDP2"
_MEMORY = "memory and speed only; the trainer decides"
_PROFILER = "no profiler in this API"
_TEXT_ONLY = "text only"
_NO_CRITIC = "no critic in this API yet"
_REWARD_MODEL = "of verl's server for reward models; a classifier runs on the head pod's CPU here"


def _many(
    names: str, reason: str, neutral: tuple[Any, ...] = (), instead: str = "", under: str = ""
) -> list[NotCarried]:
    return [NotCarried(under + name, reason, neutral, instead) for name in names.split()]


NOT_CARRIED: tuple[NotCarried, ...] = (
    # algorithm
    NotCarried("algorithm.filter_groups.metric", "groups are told apart by their whole reward"),
    NotCarried("algorithm.filter_groups.*", "the trainer decides"),
    NotCarried("algorithm.use_pf_ppo", "off here, too", (False,), "samples are not reweighted (no PF-PPO here)"),
    NotCarried("algorithm.pf_ppo.*", "no PF-PPO here"),
    *_many(
        "rollout_correction.rollout_is_batch_normalize rollout_is rollout_is_threshold_lower",
        "off here, too",
        (False, "null"),
        "algorithm.rolloutCorrection weighs samples by rolloutIs and its thresholds alone",
        under="algorithm.",
    ),
    NotCarried(
        "algorithm.rollout_correction.bypass_mode",
        "off here, too",
        (False,),
        "old log-probabilities are computed by the trainer, not taken from the rollout engine",
    ),
    *_many(
        "rollout_correction.* rollout_is_threshold rollout_is_level rollout_is_mode rollout_is_veto_threshold",
        "belongs to forms of the rollout correction that this API does not have yet",
        under="algorithm.",
    ),
    # model
    *_many(
        "use_remove_padding enable_activation_offload use_liger use_fused_kernels fused_kernel_options.* tiled_mlp.* "
        "use_shm",
        _MEMORY,
        under=MODEL,
    ),
    NotCarried(MODEL + "enable_gradient_checkpointing", "always on here; memory and speed only"),
    NotCarried(MODEL + "lora_adapter_path", "off here, too", (), "training starts from the model without the adapter"),
    *_many(
        "exclude_modules lora.exclude_modules target_parameters",
        "none here, too",
        ("null", "[]"),
        "adapters are in the layers that model.lora.targetModules names",
        under=MODEL,
    ),
    NotCarried(
        MODEL + "lora.dropout", "off here, too", (0,), "no dropout: both log-probabilities must come from one function"
    ),
    *_many("lora.*", "of another engine; the rest is the same here", under=MODEL),
    NotCarried(
        MODEL + "external_lib", "off here, too", (), "the module is not imported; put what it does into the image"
    ),
    NotCarried(MODEL + "override_config.*", "the model's own", (), "the model's own configuration is used"),
    NotCarried(MODEL + "hf_config_path", "the model's own", (), "the model's own configuration is used"),
    NotCarried(MODEL + "mtp.enable", "off here, too", (False,), "no multi-token prediction here"),
    NotCarried(MODEL + "mtp.*", "no multi-token prediction here"),
    # actor
    NotCarried(ACTOR + "strategy", _ENGINE),
    NotCarried(REF + "strategy", _ENGINE),
    *_many("megatron.* veomni.* torchtitan.* automodel.* engine.* model_engine", _ENGINE, under=ACTOR),
    *_many("megatron.* veomni.* torchtitan.* automodel.* engine.* model_engine", _ENGINE, under=REF),
    NotCarried(ACTOR + "policy_loss.*", "belongs to losses that this API does not have yet"),
    NotCarried(ACTOR + "loss_scale_factor", "the same here", (), "token sums are divided by data.maxResponseLength"),
    NotCarried(
        ACTOR + "fsdp_config.model_dtype", "float32 master weights", ("fp32", "float32"), "master weights are float32"
    ),
    NotCarried(ACTOR + "fsdp_config.*", _MEMORY),
    *_many(
        "qat.enable fsdp_config.qat.enable", "off here, too", (False,), "no quantisation-aware training", under=ACTOR
    ),
    *_many(
        "ulysses_sequence_parallel_size use_torch_compile entropy_from_logits_with_chunking entropy_checkpointing "
        "entropy_from_logits_chunk_size pad_to_length use_remove_padding use_fused_kernels use_prefix_grouper "
        "recompute_old_log_prob",
        _MEMORY,
        under=ACTOR,
    ),
    NotCarried(ACTOR + "freeze_vision_tower", _TEXT_ONLY),
    *_many("calculate_entropy calculate_sum_pi_squared sum_pi_squared_checkpointing", "a metric only", under=ACTOR),
    *_many("shuffle data_loader_seed", "the trainer cuts mini-batches by its own seed", under=ACTOR),
    NotCarried(
        ACTOR + "use_rollout_log_probs", "off here, too", (False,), "old log-probabilities are the trainer's own"
    ),
    NotCarried(ACTOR + "checkpoint.*", "a checkpoint holds all that a resume needs"),
    NotCarried(ACTOR + "qat.*", "no quantisation-aware training"),
    NotCarried(ACTOR + "router_replay.*", "no router replay for mixture-of-experts models"),
    NotCarried(ACTOR + "profiler.*", _PROFILER),
    NotCarried(ACTOR + "rollout_n", "follows rollout.n"),
    NotCarried(ACTOR + "optim.optimizer", "the same here", ("AdamW",), "AdamW is used"),
    NotCarried(ACTOR + "optim.min_lr_ratio", "0 here, too", (0,), "the cosine falls to 0"),
    NotCarried(ACTOR + "optim.num_cycles", "half a cosine here, too", (0.5,), "half a cosine is used"),
    NotCarried(ACTOR + "optim.total_training_steps", "the trainer counts them"),
    *_many(
        "optimizer_impl override_optimizer_config.* zero_indexed_step lr_warmup_init lr_decay_steps lr_decay_style "
        "min_lr weight_decay_incr_style lr_wsd_decay_style lr_wsd_decay_steps use_checkpoint_opt_param_scheduler "
        "lr_min lr_start lr_decay_ratio decay_factor eps",
        "belongs to another optimizer or engine",
        under=ACTOR + "optim.",
    ),
    # ref
    *_many(
        "fsdp_config.* profiler.* router_replay.* use_torch_compile ulysses_sequence_parallel_size rollout_n model.* "
        "entropy_from_logits_with_chunking entropy_from_logits_chunk_size entropy_checkpointing pad_to_length "
        "use_prefix_grouper enable use_remove_padding use_fused_kernels",
        "the reference is sharded and run like the actor",
        under=REF,
    ),
    # rollout
    NotCarried(
        ROLLOUT + "do_sample", "the same here", (True,), "responses are sampled: equal ones would teach nothing"
    ),
    NotCarried(ROLLOUT + "ignore_eos", "off here, too", (False,), "a response ends at the end-of-sequence token"),
    NotCarried(
        ROLLOUT + "multi_turn.enable", "off here, too", (False,), "no tools and turns in this API yet: one response"
    ),
    NotCarried(ROLLOUT + "multi_turn.*", "no tools and turns in this API yet"),
    NotCarried(ROLLOUT + "agent.*", "no agent loop in this API yet"),
    NotCarried(ROLLOUT + "val_kwargs.do_sample", "verl's engines do not read it, either: temperature 0 is greedy"),
    NotCarried(ROLLOUT + "val_kwargs.*", "validation samples by rollout.valKwargs"),
    *_many("engine_kwargs.sglang.* engine_kwargs.trtllm.*", "the engine is vllm", under=ROLLOUT),
    NotCarried(ROLLOUT + "quantization", "off here, too", (), "the rollout engine samples with the unquantised model"),
    NotCarried(ROLLOUT + "skip_rollout", "off here, too", (False,), "responses are sampled afresh"),
    NotCarried(ROLLOUT + "over_sample_rate", "off here, too", (0,), "every response is waited for"),
    NotCarried(ROLLOUT + "calculate_log_probs", "the trainer computes log-probabilities in any case"),
    *_many(
        "mode sglang_rollout_mode free_cache_engine load_format layered_summon max_num_seqs_per_rank "
        "disable_log_stats multi_stage_wake_up data_parallel_size moe_tensor_parallel_size "
        "expert_parallel_size pipeline_model_parallel_size cudagraph_capture_sizes logprobs_mode "
        "scheduling_policy full_determinism nnodes n_gpus_per_node skip_tokenizer_init checkpoint_engine.* "
        "update_weights_bucket_megabytes enable_sleep_mode enable_rollout_routing_replay chat_scheduler "
        "moe_load_balance_metrics_interval use_fire_sampling limit_images trace.* prometheus.* "
        "disaggregation.* quantization_config_file qat.* mtp.* skip_dump_dir engine_kwargs tokenizer_config "
        "server.* custom.*",
        "inside the rollout engine; the trainer decides",
        under=ROLLOUT,
    ),
    *_many(
        "prompt_length response_length", "follows data.max_prompt_length and data.max_response_length", under=ROLLOUT
    ),
    NotCarried(ROLLOUT + "profiler.*", _PROFILER),
    *_many("actor_rollout_ref.hybrid_engine actor_rollout_ref.nccl_timeout", "the trainer decides"),
    # critic, reward
    NotCarried("critic.enable", "off here, too", (False,), f"{_NO_CRITIC}: the group's mean is the baseline"),
    NotCarried("critic.*", f"{_NO_CRITIC}: the group's mean is the baseline"),
    NotCarried("use_critic", "off here, too", (False,), f"{_NO_CRITIC}: the group's mean is the baseline"),
    NotCarried("use_rm", "verl makes it from reward_model.enable"),
    NotCarried(
        "use_reference_policy", "the reference is loaded where a KL is in the loss or in the reward, and only there"
    ),
    NotCarried(
        "reward_model.model.trust_remote_code",
        "off here, too",
        (False,),
        "code that comes with a classifier is not run",
    ),
    *_many(
        "reward_model.reward_manager reward.reward_manager.name reward_manager.name",
        "the same here",
        ("naive", "batch", "rate_limited", "prime", "dapo"),
        "each response's reward is the function's score alone, without the manager's own rules",
    ),
    *_many(
        "reward_model.overlong_buffer.* reward_model.reward_kwargs.* reward.reward_kwargs.*",
        "belongs to the reward manager",
    ),
    *_many(
        "reward_model.sandbox_fusion.* reward.sandbox_fusion.* sandbox_fusion.*",
        "programs run in the rule `code`'s own sandbox",
    ),
    *_many("reward_model.* reward.reward_model.*", _REWARD_MODEL),
    *_many("reward.reward_manager.* reward_manager.*", "the reward is the weighted sum of reward.functions"),
    NotCarried("reward._target_", "names a class of verl"),
    # data
    NotCarried("data.validation_shuffle", "the order of the validation rows changes no number"),
    NotCarried("data.train_max_samples", "all rows here, too", (-1,), "all rows are used; cut the files"),
    NotCarried(
        "data.gen_batch_size", "one batch of data.train_batch_size is drawn at a time, also under filter_groups"
    ),
    *_many(
        "data.image_key data.video_key data.audio_key data.image_patch_size data.return_multi_modal_inputs", _TEXT_ONLY
    ),
    NotCarried("data.mm_processor_kwargs.*", _TEXT_ONLY),
    *_many(
        "data.return_raw_input_ids data.return_raw_chat data.return_full_prompt data.use_shm "
        "data.dataloader_num_workers data.filter_overlong_prompts_workers data.cache_dir data.trust_remote_code "
        "data.need_tools_kwargs data.filter_prompts",
        "inside verl's data loader",
    ),
    *_many(
        "data.custom_cls.path data.sampler.class_path data.datagen.path",
        "off here, too",
        (),
        "rows are read as they are",
    ),
    *_many("data.custom_cls.* data.sampler.* data.datagen.*", "no custom data classes in this API yet"),
    *_many("data.tool_config_path data.function_tool_path", "no tools in this API yet"),
    # trainer
    NotCarried("trainer.critic_warmup", "0 here, too", (0,), f"{_NO_CRITIC}: the actor is updated from the first step"),
    *_many(
        "trainer.log_val_generations trainer.validation_data_dir",
        "validation's numbers go to the log and to Prometheus; its responses are not kept",
    ),
    NotCarried("trainer.val_only", "off here, too", (False,), "the job trains, whatever it validates"),
    NotCarried("trainer.logger", "every number goes to the log and to Prometheus; no tracker in this API yet"),
    NotCarried("trainer.resume_from_path", "off here, too", (), "the job resumes from its own newest checkpoint only"),
    *_many("trainer.default_local_dir trainer.default_hdfs_dir", "checkpoints go to the claim of spec.checkpoint"),
    *_many("trainer.v1.trainer_mode", "synchronous here, too", ("sync",), "the job trains synchronously"),
    *_many(
        "trainer.balance_batch trainer.device trainer.use_v1 trainer.v1.* trainer.use_legacy_worker_impl "
        "trainer.del_local_ckpt_after_load trainer.max_critic_ckpt_to_keep trainer.ray_wait_register_center_timeout "
        "trainer.esi_redundant_time trainer.remove_previous_ckpt_in_save trainer.rollout_data_dir "
        "trainer.hybrid_engine trainer.profile_steps trainer.controller_nsight_options.* "
        "trainer.worker_nsight_options.* trainer.npu_profile.* trainer.val_generations_to_log_to_wandb "
        "trainer.runtime_env trainer.hf_hub_cache trainer.rollout_save_freq",
        "how verl runs its own processes; the operator and the trainer decide",
    ),
    # others
    NotCarried("distillation.enabled", "off here, too", (False,), "no teacher in this API yet: reward.functions alone"),
    NotCarried("distillation.*", "no teacher in this API yet"),
    *_many("global_profiler.* profiler.*", _PROFILER),
    *_many("ray_kwargs.* ray_init.*", "the trainer starts Ray itself"),
    *_many("transfer_queue.* skip.* async_training.*", "how verl runs its own processes"),
    *_many("hydra.* defaults model_engine", _GROUP),
)


def reason_for(key: str) -> NotCarried | None:
    if key.endswith("._target_") or key == "_target_":
        return NotCarried(key, "names a class of verl")
    if "@" in key or "/" in key:
        return NotCarried(key, _GROUP)
    return next((item for item in NOT_CARRIED if item.matches(key)), None)


def known_names() -> Mapping[str, str]:
    """Every pattern that is no section, for advice on unknown keys."""
    return {item.pattern: item.pattern for item in NOT_CARRIED if not item.pattern.endswith(".*")}
