"""Faults of the reward functions that the schema cannot see: parameters of rules, sources of inline Python."""

import ast

from pydantic import ValidationError

from grpo_api.errors import FieldError, exactly_one
from grpo_api.explain import explain
from grpo_api.spec.reward import KINDS, BuiltinReward, ClipSpec, PythonReward
from grpo_api.spec.reward_rules import RULES, CodeParams, rule_params
from grpo_api.spec.root import GRPOJobSpec


def reward_faults(spec: GRPOJobSpec) -> list[FieldError]:
    """Faults of the `reward` section."""
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
        faults += exactly_one(path, {kind: getattr(function, kind) for kind in KINDS}, "builtin: {rule: numeric}")
        faults += _clip_faults(function.clip, f"{path}.clip")
        if function.builtin is not None:
            faults += _rule_faults(function.builtin, f"{path}.builtin.params", spec.reward.timeout_seconds)
        if function.http is not None and function.http.timeout_seconds >= spec.reward.timeout_seconds:
            message = (
                f"must be less than reward.timeoutSeconds ({spec.reward.timeout_seconds:g}), which ends all attempts"
            )
            value = function.http.timeout_seconds
            faults.append(FieldError(f"{path}.http.timeoutSeconds", value, f"{message}: lower it, or raise that"))
        if function.python is not None:
            faults += _python_faults(function.name, function.python, f"{path}.python")
    return faults


def _clip_faults(clip: ClipSpec | None, path: str) -> list[FieldError]:
    if clip is None:
        return []
    if clip.min is None and clip.max is None:
        return [FieldError(path, None, "set min, max or both; none is set")]
    if clip.min is not None and clip.max is not None and clip.min >= clip.max:
        return [FieldError(f"{path}.min", clip.min, f"must be less than max ({clip.max:g}): lower it")]
    return []


def _rule_faults(builtin: BuiltinReward, path: str, timeout: float) -> list[FieldError]:
    try:
        params = rule_params(builtin.rule, builtin.params)
    except ValidationError as error:
        return [explain(item, RULES[builtin.rule], path) for item in error.errors()]
    if isinstance(params, CodeParams) and params.time_seconds >= timeout:
        message = f"must be less than reward.timeoutSeconds ({timeout:g}), or slow programs count as errors, not as 0"
        return [FieldError(f"{path}.time_seconds", params.time_seconds, f"{message}: lower it, or raise that")]
    return []


def _python_faults(name: str, python: PythonReward, path: str) -> list[FieldError]:
    """The source is parsed (not run), so that a syntax error costs no pod."""
    try:
        tree = ast.parse(python.source, filename=f"{name}.py")
    except SyntaxError as error:
        message = f"{name}.py, line {error.lineno}: SyntaxError: {error.msg}"
        return [FieldError(f"{path}.source", (error.text or "").strip(), message)]
    wanted = python.function
    if any(wanted in _bound_names(node) for node in tree.body):
        return []
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    message = f"is not defined in the source, which defines {', '.join(defined) or 'no function'}; " + (
        f"try {defined[0]}" if defined else f"add def {wanted}(...)"
    )
    return [FieldError(f"{path}.function", wanted, message)]


def _bound_names(node: ast.stmt) -> list[str]:
    """Names that a top-level statement binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    return []
