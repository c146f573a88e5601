"""The three signatures that reward functions are written in, recognised by the names of their parameters."""

import inspect
from dataclasses import dataclass
from typing import Any, Literal

Form = Literal["verl", "trl", "batch"]

SIGNATURES = """\
    def {name}(data_source, solution_str, ground_truth, extra_info)  # verl: one response; float or dict with "score"
    def {name}(prompts, completions, **columns)  # TRL: the whole batch; a list of floats or None
    def {name}(batch)  # the whole batch, batch["response"] and so on; a tensor, array or list of shape (B,)"""
VERL_PARAMETERS = frozenset({"data_source", "solution_str", "ground_truth", "extra_info"})


class SignatureError(Exception):
    """A function whose parameters fit none of the three signatures."""


@dataclass(frozen=True)
class Signature:
    """How a function is called."""

    form: Form
    parameters: frozenset[str]
    """Parameters that can be given by name."""
    required: frozenset[str]
    takes_any: bool
    """It has `**kwargs`."""


def recognise(name: str, function: Any) -> Signature:
    """The signature of a function. Raises SignatureError that names its parameters and the three signatures."""
    forms = f"The names of the parameters decide:\n{SIGNATURES.format(name=name)}"
    if not callable(function):
        raise SignatureError(f"{name} is a {type(function).__name__}, not a function. {forms}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:  # some that are written in C have none
        raise SignatureError(f"{name}: {error}. {forms}") from None
    named = [p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    by_position = {p.name for p in named if p.kind is p.POSITIONAL_ONLY}
    names = frozenset(p.name for p in named) - by_position
    required = frozenset(p.name for p in named if p.default is p.empty)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())

    def found(form: Form) -> Signature:
        return Signature(form, names, required, takes_any)

    if "solution_str" in names and required <= VERL_PARAMETERS and not required & by_position:
        return found("verl")
    if "completions" in names and not required & by_position:
        return found("trl")
    if "batch" in names | by_position and required <= {"batch"}:
        return found("batch")
    shown = ", ".join(p.name for p in named) or "none"
    shown += _near(names, required)
    raise SignatureError(f"{name}{signature} fits none of the three signatures: its parameters are {shown}. {forms}")


def _near(names: frozenset[str], required: frozenset[str]) -> str:
    """For a function that comes close: which of its parameters nobody would give."""
    for key, given, whose in (("solution_str", VERL_PARAMETERS, "verl"), ("batch", frozenset({"batch"}), "(batch)")):
        if key in names and (extra := required - given):
            return f"; as a {whose} function it is given no {', '.join(sorted(extra))}: set a default"
    return ""
