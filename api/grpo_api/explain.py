"""From pydantic's findings to faults that say which field, what value and how to repair it."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic.alias_generators import to_camel

from grpo_api.errors import FieldError
from grpo_api.fields import Model, bare, every_field, fields, find, inner, is_model
from grpo_api.spec.reserved import NOT_YET, RESERVED

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", list: "a list"}
_OTHER_NAMES = {
    "name": "engine",
    "learningRate": "lr",
    "batchSize": "trainBatchSize",
    "numGenerations": "n",
    "maxCompletionLength": "maxResponseLength",
    "beta": "klLossCoef",
    "model": "path",
    "epochs": "totalEpochs",
    "steps": "totalSteps",
    "maxSteps": "totalSteps",
    "numTrainEpochs": "totalEpochs",
    "gpus": "nGpusPerNode",
    "nodes": "nnodes",
    "tpSize": "tensorModelParallelSize",
    "type": "rule",
    "code": "source",
}
"""What other projects, or haste, call our fields; looked at where nothing here has a similar name."""


def explain(item: Mapping[str, Any], root: Model, prefix: str = "") -> FieldError:
    """A fault from an entry of `ValidationError.errors()` of `root`, which stands at `prefix`."""
    location = list(item["loc"])
    kind, value, context = item["type"], item.get("input"), item.get("ctx") or {}
    if kind == "invalid_key":
        location[-1] = str(value).lower() if isinstance(value, bool) else str(value)
        kind, value = "extra_forbidden", None
    path = prefix + _path(location)
    annotation, field = find(root, location)
    if kind == "missing":
        return FieldError(path.lstrip("."), None, _missing(annotation, field))
    if kind == "extra_forbidden":
        message = _unknown(root, location, value, prefix)
    elif kind == "literal_error":
        message = _choice(value, [str(option) for option in get_args(annotation)])
    elif kind in ("quantity", "rule"):
        message = str(item["msg"])
    elif kind == "string_pattern_mismatch":
        message = _pattern(str(value), context["pattern"], field)
    elif kind.startswith(("string_too", "too_")):
        message = _length(kind, value, context)
    elif kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"):
        message = _range(annotation, field, location)
    else:
        message = _type(annotation, value, _range(annotation, field, location)) or str(item["msg"])
    return FieldError(path.lstrip("."), value, message)


def _missing(annotation: Any, field: Any) -> str:
    if field is None or not field.description:
        return "is missing"
    message = f"is missing: {field.description}"
    needed = [name for name, below in fields(annotation).items() if below.is_required()] if is_model(annotation) else []
    return f"{message} It needs {', '.join(needed)}." if needed else message


def _path(location: Sequence[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)


def _unknown(root: Model, location: list[Any], value: Any, prefix: str) -> str:
    """Why there is no such field, and where the nearest one is."""
    *parents, name = location
    section = (prefix + _path(parents)).lstrip(".")
    for reserved in RESERVED:
        if reserved.path == f"{section}.{name}":
            return reserved.message
    if isinstance(value, str) and value.lower() in NOT_YET:
        return f"unknown field, and {NOT_YET[value.lower()]}: remove it"
    holder, _ = find(root, parents)
    here = list(fields(holder)) if is_model(holder) else []
    if (meant := similar(str(name), here)) is not None:
        return f"unknown field; did you mean {meant}?"
    everywhere: dict[str, list[str]] = {}
    for known, place in every_field(root, ""):
        if place:
            everywhere.setdefault(known, []).append((prefix + place).lstrip("."))
    camel = to_camel(str(name))
    if (meant := _OTHER_NAMES.get(camel)) in here:
        return f"unknown field; here it is called {meant}"
    for candidate in (camel, _OTHER_NAMES.get(camel), similar(camel, list(everywhere))):
        if candidate in everywhere:
            return f"unknown field; {candidate} belongs in {' or '.join(dict.fromkeys(everywhere[candidate]))}"
    if section == "spec.template":
        below = name if name in ("spec", "metadata") else f"spec.{name}"
        return f"unknown field; a pod's own fields go into podOverlay: write podOverlay.{below}"
    return f"unknown field; {section or 'this object'} has {', '.join(here)}"


def similar(word: str, known: list[str]) -> str | None:
    """The known word that was probably meant: snake_case, another case, or a slip of the finger."""
    by_lower = {name.lower(): name for name in known}
    plain = word.replace("_", "").replace("-", "").lower()
    if plain in by_lower:
        return by_lower[plain]
    found = difflib.get_close_matches(plain, list(by_lower), 1, cutoff=0.74)
    return by_lower[found[0]] if found else None


def _choice(value: Any, options: list[str]) -> str:
    message = f"must be {options[0]}" if len(options) == 1 else f"must be one of {', '.join(options)}"
    if not isinstance(value, str):
        return f"{message}; put it in quotes" if str(value) in options else message
    if value.lower() in NOT_YET:
        return f"{message}; {NOT_YET[value.lower()]}"
    by_lower = {option.lower(): option for option in options}
    found = difflib.get_close_matches(value.lower(), list(by_lower), 1, cutoff=0.6)
    return f"{message}; did you mean {by_lower[found[0]]}?" if found and len(options) > 1 else message


def _pattern(value: str, pattern: str, field: Any) -> str:
    if pattern == r"^/":
        return f"must be an absolute path: try /{value}"
    if field.json_schema_extra and ("/" in pattern or ":" in pattern):
        return str(field.json_schema_extra["x-kubernetes-validations"][0]["message"])
    dns = "".join(character if character.isalnum() and character.isascii() else "-" for character in value.lower())
    dns = "-".join(part for part in dns.split("-") if part)[:63].strip("-")
    if "A-Z" in pattern:
        return "must be a Python name: letters, digits and _, not starting with a digit"
    return "must hold only lower-case letters, digits and '-' and begin and end with a letter or digit" + (
        f": try {dns}" if dns else ""
    )


def _length(kind: str, value: Any, context: Mapping[str, Any]) -> str:
    text = kind.startswith("string")
    size = len(value) if isinstance(value, str | list | dict) else context.get("actual_length")
    what = ("character" if text else "entry") if size == 1 else ("characters" if text else "entries")
    if kind.endswith("short"):
        least = context["min_length"]
        if least == 1:
            return f"must not be empty: {'give it a value' if text else 'add an entry'}"
        return f"has {size} {what} and needs at least {least}"
    return f"has {size} {what} and may have at most {context['max_length']}: shorten it"


def _range(annotation: Any, field: Any, location: Sequence[str | int]) -> str:
    bounds: dict[str, float] = {}
    annotated = field.metadata if field is not None else []
    if location and isinstance(location[-1], int) and field is not None:
        annotated = getattr(inner(field.annotation), "__metadata__", ())
    for entry in annotated:
        for source in (entry, *getattr(entry, "metadata", ())):
            bounds |= {key: getattr(source, key) for key in ("ge", "gt", "le", "lt") if hasattr(source, key)}
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    parts = [f"{words[key]} {_number(bounds[key])}" for key in ("ge", "gt", "le", "lt") if key in bounds]
    return f"must be {_KINDS.get(annotation, 'a number')}" + (f", {' and '.join(parts)}" if parts else "")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


def _type(annotation: Any, value: Any, number_range: str) -> str | None:
    wanted = _kind(annotation)
    if wanted is None:
        return None
    message = number_range if annotation in (int, float) else f"must be {wanted}"
    if annotation in (int, float) and isinstance(value, str):
        number = _as_number(value)
        if number is not None and (annotation is float or number.is_integer()):
            return f"{message}: write {value.strip()} without quotes"
    if annotation is int and isinstance(value, float) and abs(value) < 2**63:
        return f"{message}: try {int(value)} or {int(value) + 1}"
    if annotation is bool and isinstance(value, str):
        spelled = {"yes": "true", "on": "true", "true": "true", "no": "false", "off": "false", "false": "false"}
        if value.lower() in spelled:
            return f"{message}: write {spelled[value.lower()]}"
    if annotation is bool and value in (0, 1):
        return f"{message}: write {'true' if value else 'false'}"
    if annotation is str and isinstance(value, int | float):
        return f'{message}: put it in quotes, as in "{str(value).lower() if isinstance(value, bool) else value}"'
    if isinstance(value, dict):
        return f"{message}, not an object"
    if wanted == "a list" and bare(inner(annotation)) is str and isinstance(value, str):
        return f"{message}: write [{value}]"
    return message


def _kind(annotation: Any) -> str | None:
    annotation = bare(annotation)
    if is_model(annotation):
        return f"an object with the fields {', '.join(fields(annotation))}"
    if inner(annotation) is not None:
        return "an object" if str(annotation).startswith("dict") else "a list"
    return _KINDS.get(annotation)


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
