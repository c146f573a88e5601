"""Faults that need more than one field, for the layers after the schema: the operator's `Valid` and the CLI."""

import json

from grpo_api.batch_plan import batch_faults
from grpo_api.errors import FieldError, exactly_one
from grpo_api.pod_faults import pod_faults
from grpo_api.reward_faults import reward_faults
from grpo_api.spec import runtime
from grpo_api.spec.model_data import DataSource, MixedSource, ReasoningGymSource
from grpo_api.spec.root import GRPOJobSpec

MAX_BYTES = 999_000
"""Of the spec as JSON and the inline sources, which the pods get as files once more: all in one ConfigMap, of which the
API server takes 1 MiB with its metadata."""

_TEMPLATE_ARGUMENTS = {
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "conversation",
    "max_length",
    "messages",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "tokenize",
    "tokenizer_kwargs",
    "truncation",
}
"""Parameters of Transformers' `apply_chat_template` itself, which are no variables of the template."""


def validate_spec(spec: GRPOJobSpec) -> list[FieldError]:
    """Every fault of a spec whose single fields are in order. CEL refuses most of these at admission already."""
    return [
        *_choice_faults(spec),
        *batch_faults(spec),
        *reward_faults(spec),
        *pod_faults(spec),
        *_scheduling_faults(spec),
    ]


def size_faults(spec: GRPOJobSpec) -> list[FieldError]:
    """A fault where the spec is too large for the pods' ConfigMap. Not part of `validate_spec`: a spec that came out of
    the ConfigMap did fit."""
    sources = sum(len(function.python.source.encode()) for function in spec.reward.functions if function.python)
    whole = len(json.dumps(spec.model_dump(mode="json", by_alias=True, exclude_none=True)))
    if whole + sources <= MAX_BYTES:
        return []
    message = (
        f"take {whole + sources} bytes in the pods' ConfigMap (inline sources count twice), which holds {MAX_BYTES}: "
        "move large sources into the image"
    )
    return [FieldError("spec" if not sources else "spec.reward.functions", None, message)]


def _scheduling_faults(spec: GRPOJobSpec) -> list[FieldError]:
    gang, faults = spec.gang_scheduling, []
    if gang.queue is not None and gang.backend not in runtime.QUEUED_BACKENDS:
        faults.append(FieldError("spec.gangScheduling.queue", gang.queue, runtime.NO_QUEUE))
    if gang.queue is None and gang.backend in runtime.QUEUE_NEEDED:
        faults.append(FieldError("spec.gangScheduling.queue", None, runtime.QUEUE_MISSING))
    if spec.run_policy.managed_by == runtime.MULTIKUEUE:
        faults.append(FieldError("spec.runPolicy.managedBy", runtime.MULTIKUEUE, runtime.NO_MULTIKUEUE))
    return faults


def _choice_faults(spec: GRPOJobSpec) -> list[FieldError]:
    faults: list[FieldError] = []
    for path, source in [*_sources(spec.data.train, "spec.data.train"), *_sources(spec.data.val, "spec.data.val")]:
        given: dict[str, object] = {"files": source.files, "hub": source.hub, "reasoningGym": source.reasoning_gym}
        if isinstance(source, DataSource):
            given["mix"] = source.mix
        faults += exactly_one(path, given, "files: [/data/train.parquet]")
    faults += [*_mix_faults(spec), *_val_faults(spec)]
    lengths = {"totalSteps": spec.trainer.total_steps, "totalEpochs": spec.trainer.total_epochs}
    faults += exactly_one("spec.trainer", dict(lengths), "totalSteps: 100")
    for path, micro, budget in (
        ("actor.ppoM", spec.actor.ppo_micro_batch_size_per_gpu, spec.actor.ppo_max_token_len_per_gpu),
        (
            "rollout.logProbM",
            spec.rollout.log_prob_micro_batch_size_per_gpu,
            spec.rollout.log_prob_max_token_len_per_gpu,
        ),
        ("ref.logProbM", spec.ref.log_prob_micro_batch_size_per_gpu, spec.ref.log_prob_max_token_len_per_gpu),
    ):
        if micro is not None and budget is not None:
            message = f"excludes {path}axTokenLenPerGpu ({budget}): remove one of them"
            faults.append(FieldError(f"spec.{path}icroBatchSizePerGpu", micro, message))
    template = spec.data.prompt_template
    if "{prompt}" not in template:
        message = "must hold {prompt}, which stands for the row's prompt: add it where the prompt belongs"
        faults.append(FieldError("spec.data.promptTemplate", template, message))
    loss = spec.actor.policy_loss
    if loss.clip_cov_lb >= loss.clip_cov_ub:
        message = f"must be less than clipCovUb ({loss.clip_cov_ub:g}): no covariance is between them"
        faults.append(FieldError("spec.actor.policyLoss.clipCovLb", loss.clip_cov_lb, message))
    if taken := _TEMPLATE_ARGUMENTS & spec.data.chat_template_kwargs.keys():
        message = "set by the trainer, or no variable of a template: remove them"
        faults.append(FieldError("spec.data.chatTemplateKwargs", sorted(taken), message))
    if spec.model.attn_implementation == "flash_attention_2" and spec.model.dtype != "bfloat16":
        message = f"takes bfloat16 only, and model.dtype is {spec.model.dtype}: set sdpa, or dtype: bfloat16"
        faults.append(FieldError("spec.model.attnImplementation", spec.model.attn_implementation, message))
    if spec.rollout.engine == "hf":
        tensor_parallel, more = spec.rollout.tensor_model_parallel_size, spec.rollout.engine_args
        if tensor_parallel != 1:
            message = "the engine hf holds the whole model on each GPU: set it to 1, or use engine vllm"
            faults.append(FieldError("spec.rollout.tensorModelParallelSize", tensor_parallel, message))
        if more:
            message = "are vLLM's, and the engine is hf: remove them, or use engine vllm"
            faults.append(FieldError("spec.rollout.engineArgs", list(more), message))
    return faults


def _sources(source: DataSource | None, path: str) -> list[tuple[str, DataSource | MixedSource]]:
    """A source and those that it mixes, each after its place in the spec."""
    if source is None:
        return []
    return [(path, source), *((f"{path}.mix[{index}]", one) for index, one in enumerate(source.mix or []))]


def _generated(source: DataSource | None, path: str) -> dict[str, ReasoningGymSource]:
    """The reasoning-gym tasks of a source, by their place in the spec."""
    placed = [(f"{place}.reasoningGym", one.reasoning_gym) for place, one in _sources(source, path)]
    return {place: task for place, task in placed if task is not None}


def _mix_faults(spec: GRPOJobSpec) -> list[FieldError]:
    tasks, mix = _generated(spec.data.train, "spec.data.train"), spec.data.train.mix or []
    rows, batch = sum(task.size for task in tasks.values()), spec.data.train_batch_size
    if not mix or len(tasks) < len(mix) or rows >= batch:
        return []
    message = f"have {rows} rows together, fewer than one batch: data.trainBatchSize is {batch}; raise the sizes"
    return [FieldError("spec.data.train.mix", [task.size for task in tasks.values()], message)]


def _val_faults(spec: GRPOJobSpec) -> list[FieldError]:
    faults = []
    trained = [(task.task, task.seed) for task in _generated(spec.data.train, "").values()]
    for path, val in _generated(spec.data.val, "spec.data.val").items():
        if (val.task, val.seed) in trained:
            message = "and task are those of data.train, so the model would be validated on its training rows: "
            faults.append(FieldError(f"{path}.seed", val.seed, f"{message}set another seed"))
    weights = [one.weight for one in (spec.data.val and spec.data.val.mix) or [] if one.weight is not None]
    if weights:
        message = "has weights, and validation takes all rows of each dataset: remove them"
        faults.append(FieldError("spec.data.val.mix", weights, message))
    sampling = spec.rollout.val_kwargs
    if sampling.n > 1 and sampling.temperature == 0:
        message = (
            "responses need a temperature above 0, or all are the same: set rollout.valKwargs.temperature, or n: 1"
        )
        faults.append(FieldError("spec.rollout.valKwargs.n", sampling.n, message))
    return faults
