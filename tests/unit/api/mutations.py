"""Any field of a spec, with any value: for tests that look for crashes and for layers that disagree."""

from itertools import pairwise
from typing import Any

from grpo_api.fields import bare, fields, inner, is_model
from grpo_api.job import GRPOJobSpec

VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 2, 3, 8, 1.5, 0.5, 1e3, -0.1, 10**7, 2**62, 1e12, "", " ", "a", "A_b", "8", "1e-6",
    "/", "/x", "/dev/shm", "8Gi", "8GiB", "-1", "512m", "yes", "None", "auto", "vllm", "sglang", "{prompt}", "n=1", "ü",
    "x" * 300, [], ["a"], [0.5, 0.5], [1, 2], [{}], [{"name": "a"}], [{"name": "a"}, {"name": "a"}], [None], [[]],
    {}, {"a": 1}, {"a": None}, {"name": "a"}, {"cpu": "8Gi"}, {"cpu": 0.5}, {"size": "1Gi"}, {"path": "a/b"},
]  # fmt: skip
"""Of every type, and close to what some field takes."""


def spec_paths(model: Any = GRPOJobSpec, path: tuple[str | int, ...] = ("spec",)) -> list[tuple[str | int, ...]]:
    """Paths of every field, of the first entry of every list, and of a field that does not exist in each object."""
    found: list[tuple[str | int, ...]] = [(*path, "surprise")]
    for name, field in fields(model).items():
        here, below = (*path, name), bare(field.annotation)
        found.append(here)
        if not is_model(below) and str(below).startswith("list"):
            here, below = (*here, 0), bare(inner(below))
            found.append(here)
        if is_model(below):
            found += spec_paths(below, here)
    return found


def mutated(base: dict[str, Any], path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """The base (changed in place) with the value at the path, and empty objects and lists made on the way."""
    holder: Any = base
    for part, after in pairwise(path):
        child = holder[part] if isinstance(holder, list) else holder.get(part)
        if not isinstance(child, list if isinstance(after, int) else dict) or child in ([], {}):
            child = [{}] if isinstance(after, int) else {}
            holder[part] = child
        holder = child
    holder[path[-1]] = value
    return base
