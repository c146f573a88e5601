"""Faults that need more than one field, for the layers after the schema: the operator's `Valid` and the CLI."""

import ast
import json
import re

from grpo_api.batch_plan import batch_faults
from grpo_api.errors import FieldError
from grpo_api.explain import similar
from grpo_api.pod_faults import pod_faults
from grpo_api.spec.reward import BuiltinReward
from grpo_api.spec.root import GRPOJobSpec

RULE_PARAMS = {
    "exact_match": ("ignore_case",),
    "numeric": ("first", "tolerance"),
    "regex": ("pattern", "ignore_case"),
}
"""Parameters of the builtin rules, as the trainer's functions take them."""


MAX_BYTES = 999_000
"""Of the spec as JSON and the inline sources, which the pods get as files once more: all in one ConfigMap, of which the
API server takes 1 MiB with its metadata."""


def validate_spec(spec: GRPOJobSpec) -> list[FieldError]:
    """Every fault of a spec whose single fields are in order. CEL refuses most of these at admission already."""
    return [*_choice_faults(spec), *batch_faults(spec), *_reward_faults(spec), *pod_faults(spec)]


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


def _exactly_one(path: str, given: dict[str, object], example: str) -> list[FieldError]:
    """Faults unless one of the fields is set."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if len(chosen) == 1:
        return []
    *first, last = given
    message = f"set exactly one of {', '.join(first)} and {last}"
    if chosen:
        return [FieldError(path, list(chosen), f"{message}; {' and '.join(chosen)} are set: keep one")]
    return [FieldError(path, None, f"{message}; none is set: add one, such as {example}")]


def _choice_faults(spec: GRPOJobSpec) -> list[FieldError]:
    train = spec.data.train
    faults = _exactly_one(
        "spec.data.train",
        {"files": train.files, "hub": train.hub, "reasoningGym": train.reasoning_gym},
        "files: [/data/train.parquet]",
    )
    lengths = {"totalSteps": spec.trainer.total_steps, "totalEpochs": spec.trainer.total_epochs}
    faults += _exactly_one("spec.trainer", dict(lengths), "totalSteps: 100")
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


def _no_parameter(name: str, rule: str, takes: tuple[str, ...]) -> str:
    message = f"is no parameter of {rule}, which takes {', '.join(takes)}"
    meant = similar(name, list(takes))
    return f"{message}; did you mean {meant}?" if meant else message


def _rule_faults(builtin: BuiltinReward, path: str) -> list[FieldError]:
    """Parameters that the rule does not take, or lacks."""
    takes = RULE_PARAMS[builtin.rule]
    faults = [
        FieldError(f"{path}.params.{name}", value, _no_parameter(name, builtin.rule, takes))
        for name, value in builtin.params.items()
        if name not in takes
    ]
    if builtin.rule != "regex":
        return faults
    pattern = builtin.params.get("pattern")
    if pattern is None:
        message = "is missing: the rule regex looks for it in the response"
        return [*faults, FieldError(f"{path}.params.pattern", None, message)]
    if not isinstance(pattern, str):
        return [*faults, FieldError(f"{path}.params.pattern", pattern, "must be text: put it in quotes")]
    try:
        re.compile(pattern)
    except re.error as error:
        message = f"is no regular expression: {error}; a literal character needs a \\ before it"
        faults.append(FieldError(f"{path}.params.pattern", pattern, message))
    return faults


def _reward_faults(spec: GRPOJobSpec) -> list[FieldError]:
    """Inline sources are parsed here (not run), so that a syntax error costs no pod."""
    faults: list[FieldError] = []
    buffer = spec.reward.overlong_buffer
    if buffer.enable and buffer.len > spec.data.max_response_length:
        message = f"is more than data.maxResponseLength ({spec.data.max_response_length}): lower it"
        faults.append(FieldError("spec.reward.overlongBuffer.len", buffer.len, message))
    names = [function.name for function in spec.reward.functions]
    for index, function in enumerate(spec.reward.functions):
        path = f"spec.reward.functions[{index}]"
        if names.count(function.name) > 1:
            faults.append(FieldError(f"{path}.name", function.name, "is used twice; names must differ: rename one"))
        kinds: dict[str, object] = {"builtin": function.builtin, "python": function.python}
        faults += _exactly_one(path, kinds, "builtin: {rule: numeric}")
        if function.builtin is not None:
            faults += _rule_faults(function.builtin, f"{path}.builtin")
        if function.python is None:
            continue
        source, wanted = function.python.source, function.python.function
        try:
            tree = ast.parse(source, filename=f"{function.name}.py")
        except SyntaxError as error:
            line = (error.text or "").strip()
            faults.append(
                FieldError(
                    f"{path}.python.source",
                    line,
                    f"{function.name}.py, line {error.lineno}: SyntaxError: {error.msg}",
                )
            )
            continue
        defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        if not any(wanted in _bound_names(node) for node in tree.body):
            faults.append(
                FieldError(
                    f"{path}.python.function",
                    wanted,
                    f"is not defined in the source, which defines {', '.join(defined) or 'no function'}; "
                    + (f"try {defined[0]}" if defined else f"add def {wanted}(...)"),
                )
            )
    return faults


def _bound_names(node: ast.stmt) -> list[str]:
    """Names that a top-level statement binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    return []
