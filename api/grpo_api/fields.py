"""Looking up the contract's models by the names that stand in YAML."""

from collections.abc import Iterator, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

Model = type[BaseModel]


def fields(model: Model) -> dict[str, FieldInfo]:
    """A model's fields by their YAML names."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def bare(annotation: Any) -> Any:
    """A type without its `Annotated` and `| None`."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) in (Union, UnionType):
            kept = [option for option in get_args(annotation) if option is not NoneType]
            if len(kept) != 1:
                return annotation
            annotation = kept[0]
        else:
            return annotation


def inner(annotation: Any) -> Any:
    """Type of a list's items or of an object's values; None of anything else."""
    annotation = bare(annotation)
    arguments = get_args(annotation)
    if get_origin(annotation) is list:
        return arguments[0]
    return arguments[1] if get_origin(annotation) is dict else None


def is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def find(root: Model, path: Sequence[str | int]) -> tuple[Any, FieldInfo | None]:
    """Type at a path and the field that holds it; (None, None) where there is no such field."""
    annotation: Any = root
    field: FieldInfo | None = None
    for part in path:
        annotation = bare(annotation)
        if is_model(annotation):
            field = fields(annotation).get(str(part))
            if field is None:
                return None, None
            annotation = field.annotation
        else:
            annotation = inner(annotation)
    return bare(annotation), field


def every_field(model: Model, path: str) -> Iterator[tuple[str, str]]:
    """(YAML name, path of the object that holds it) of every field below a model."""
    for name, field in fields(model).items():
        yield name, path
        below, mark = bare(field.annotation), ""
        if not is_model(below):
            below, mark = bare(inner(below)), "[]"
        if is_model(below):
            yield from every_field(below, f"{path}.{name}{mark}")


def as_admitted(value: Any, annotation: Any) -> Any:
    """What the API server makes of a value before it looks at it: null is unset, and 1e3 for a number is 1000."""
    annotation = bare(annotation)
    if is_model(annotation) and isinstance(value, dict):
        known = fields(annotation)
        return {
            key: as_admitted(child, known[key].annotation) if key in known else child
            for key, child in value.items()
            if child is not None or key not in known
        }
    below = inner(annotation)
    if below is not None and below is not Any:
        if isinstance(value, list):
            return [as_admitted(child, below) for child in value]
        if isinstance(value, dict):
            return {key: as_admitted(child, below) for key, child in value.items()}
    if annotation in (int, float) and isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    return value
