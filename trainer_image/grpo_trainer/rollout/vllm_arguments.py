"""What a vLLM engine is made with. Without vLLM itself, whose import takes seconds."""

from typing import Any

from grpo_api.job import GRPOJobSpec

CPU_MAX_SEQUENCES = 64
"""Responses sampled at a time on CPU, unless `rollout.engineArgs.max_num_seqs` says otherwise."""


def vllm_arguments(spec: GRPOJobSpec, *, cuda: bool) -> dict[str, Any]:
    """Arguments of `vllm.LLM`; those of `rollout.engineArgs` win."""
    arguments: dict[str, Any] = {
        "model": spec.model.path,
        "revision": spec.model.revision,
        "tokenizer": spec.model.tokenizer_path,
        "trust_remote_code": spec.model.trust_remote_code,
        "dtype": spec.model.dtype,
        "seed": spec.rollout.seed,
        "max_model_len": spec.data.max_prompt_length + spec.data.max_response_length,
        "gpu_memory_utilization": spec.rollout.gpu_memory_utilization,
        "enforce_eager": spec.rollout.enforce_eager or not cuda,
        "tensor_parallel_size": spec.rollout.tensor_model_parallel_size,
        "enable_sleep_mode": cuda,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "disable_log_stats": True,
    }
    if spec.rollout.tensor_model_parallel_size > 1:
        arguments["distributed_executor_backend"] = "external_launcher"
    if not cuda:
        arguments["max_num_seqs"] = CPU_MAX_SEQUENCES
    return arguments | spec.rollout.engine_args
