"""OmegaConf's interpolations: `${data.max_prompt_length}`, `${.sibling}`, `${oc.select:key,default}`, `${oc.env:X,y}`.

https://omegaconf.readthedocs.io/en/latest/usage.html#variable-interpolation
"""

from collections.abc import Callable, Mapping
from typing import Any

from grpo_api.verl_import.hydra import parse_value

Lookup = Callable[[str], Any]
"""The value (as written) of a key; raises KeyError where there is none."""


class Unresolved(ValueError):
    """An interpolation that has no value; the text says why and what to do."""


def resolve(key: str, value: Any, lookup: Lookup, env: Mapping[str, str], above: tuple[str, ...] = ()) -> Any:
    """A value with every interpolation in it replaced. `above` are the keys that are being resolved."""
    if isinstance(value, list):
        return [resolve(key, item, lookup, env, above) for item in value]
    if isinstance(value, dict):
        return {name: resolve(key, item, lookup, env, above) for name, item in value.items()}
    if not isinstance(value, str) or "${" not in value:
        return value
    if key in above:
        raise Unresolved(f"refers to itself: {' -> '.join((*above, key))}; give it a value")
    above = (*above, key)
    parts: list[Any] = []
    at = 0
    while (start := value.find("${", at)) >= 0:
        end = _closing(value, start)
        if start > at:
            parts.append(value[at:start])
        parts.append(_one(key, value[start + 2 : end], lookup, env, above))
        at = end + 1
    if at < len(value):
        parts.append(value[at:])
    return parts[0] if len(parts) == 1 else "".join(_plain(part) for part in parts)


def _plain(value: Any) -> str:
    return "null" if value is None else str(value)


def _closing(text: str, start: int) -> int:
    depth = 0
    for at in range(start, len(text)):
        if text.startswith("${", at) or (text[at] == "{" and depth and text[at - 1] != "$"):
            depth += 1
        elif text[at] == "}":
            depth -= 1
            if depth == 0:
                return at
    raise Unresolved(f"has no closing brace after {text[start:]!r}; close it")


def _one(key: str, inner: str, lookup: Lookup, env: Mapping[str, str], above: tuple[str, ...]) -> Any:
    name, colon, arguments = inner.strip().partition(":")
    if not colon:
        return _path(key, name, lookup, env, above)
    first, comma, default = arguments.partition(",")
    first = first.strip().strip("'\"")
    if name == "oc.select":
        try:
            return _path(key, first, lookup, env, above)
        except Unresolved:
            if not comma and key not in above[:-1]:
                return None
    elif name == "oc.env":
        if first in env:
            return env[first]
        if not comma:
            raise Unresolved(f"${{{inner}}}: the environment has no {first}; set it, or write the value")
    else:
        raise Unresolved(f"${{{inner}}}: the resolver {name} is not known here; write the value")
    return resolve(f"{key}?", parse_value(default), lookup, env, above)


def _path(key: str, name: str, lookup: Lookup, env: Mapping[str, str], above: tuple[str, ...]) -> Any:
    target = name
    if name.startswith("."):
        ups = len(name) - len(name.lstrip("."))
        base = key.rstrip("?").split(".")
        target = ".".join([*base[: len(base) - ups], name.lstrip(".")])
    try:
        found = lookup(target)
    except KeyError:
        raise Unresolved(
            f"${{{name}}} has no value: neither the input nor verl's defaults set {target}; add {target}=... or write "
            "the value"
        ) from None
    return resolve(target, found, lookup, env, above)
