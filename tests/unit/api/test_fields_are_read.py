"""Nothing that the API takes is ignored: code of the operator or the trainer reads each field of the spec.

A field counts as read where a file has its name as an attribute (`.train_batch_size`) or, in objects that are not
parsed, as a key (`["cleanPodPolicy"]`, `.get("cleanPodPolicy")`), and reaches the field's object too: by the name of
its class or, in the same two ways, of the field that holds it.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pydantic import BaseModel, create_model
from pydantic.alias_generators import to_camel

from grpo_api.fields import bare, inner, is_model
from grpo_api.spec.reward import RewardSpec
from grpo_api.spec.root import GRPOJobSpec
from grpo_api.spec.training import ActorSpec

ROOT = Path(__file__).parents[3]
READERS = [
    *(ROOT / "operator").rglob("*.py"),
    *(ROOT / "trainer_image").rglob("*.py"),
    # What the operator or the trainer calls to have a field's meaning:
    ROOT / "api" / "grpo_api" / "batch_plan.py",
    ROOT / "api" / "grpo_api" / "job.py",
    ROOT / "api" / "grpo_api" / "reward_items.py",
]
PASSED_WHOLE = {
    "EnvVar.value": "children/pods.py dumps each entry of template.env into the container",
    "EnvVar.value_from": "likewise",
}
"""Fields that reach their place inside an object which is handed on as it is."""


@cache
def names_in(file: Path) -> frozenset[str]:
    """Attributes, keys that are looked up, and names."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Subscript):
            found |= _texts(node.slice)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            found |= _texts(*node.args[:1])
    return frozenset(found)


def _texts(*nodes: ast.expr) -> set[str]:
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def models_below(model: type[BaseModel], holder: str) -> Iterator[tuple[type[BaseModel], str]]:
    """Each model of the tree with the name of the field that holds it."""
    yield model, holder
    for name, field in model.model_fields.items():
        below = bare(field.annotation)
        below = below if is_model(below) else bare(inner(below))
        if is_model(below):
            yield from models_below(below, name)


def unread(model: type[BaseModel], holder: str) -> list[str]:
    """Fields of one model that no file reads."""

    def is_read(field: str) -> bool:
        return any(
            {field, to_camel(field)} & names and {model.__name__, holder, to_camel(holder)} & names
            for names in map(names_in, READERS)
        )

    return [f"{model.__name__}.{name}" for name in model.model_fields if not is_read(name)]


def test_every_field_has_code_that_reads_it():
    models = list(models_below(GRPOJobSpec, "spec"))
    found = [field for model, holder in models for field in unread(model, holder)]
    assert [field for field in found if field not in PASSED_WHOLE] == []
    assert {f"{model.__name__}.{name}" for model, _ in models for name in model.model_fields} > PASSED_WHOLE.keys()


def test_a_field_that_nothing_reads_is_found():
    new = create_model("ActorSpec", __base__=ActorSpec, surprise_factor=(float, 0.0))
    assert unread(new, "actor") == ["ActorSpec.surprise_factor"]


def test_a_name_that_is_read_of_another_object_alone_is_found():
    """`split` is read of a hub's source."""
    assert unread(create_model("RewardSpec", __base__=RewardSpec, split=(str, "")), "reward") == ["RewardSpec.split"]
