"""Base of every model of the contract, and the types that a CRD needs."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from grpo_api.quantity import QUANTITY_PATTERN, SHAPE, check_quantity, check_size


class ApiModel(BaseModel):
    """camelCase in YAML, snake_case in Python; unknown fields are errors; attribute docstrings become descriptions."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
    )


def cel(rule: str, message: str, **more: str) -> dict[str, str]:
    """One `x-kubernetes-validations` entry. `message` may be replaced by `messageExpression` in `more`."""
    return {"rule": rule, "message": message, **more}


def cel_rules(*rules: dict[str, str]) -> dict[str, Any]:
    """`json_schema_extra` that carries CEL rules to the CRD."""
    return {"x-kubernetes-validations": list(rules)}


def exactly_one(*names: str, example: str) -> dict[str, str]:
    """The rule that one of an object's fields, and no second one, is set."""
    *first, last = names
    wanted = f"set exactly one of {', '.join(first)} and {last}"
    given = f"[{', '.join(f'has(self.{name})' for name in names)}]"
    return cel(
        f"{given}.filter(one, one).size() == 1",
        wanted,
        messageExpression=f"{given}.exists(one, one) ? '{wanted}; several are set: keep one' : "
        f"'{wanted}; none is set: add one, such as {example}'",
    )


FROZEN: dict[str, Any] = {"x-kubernetes-map-type": "atomic"}
"""`json_schema_extra` of a section that cannot change after creation. It has one owner, as a whole: to keep who set
each of its fields, defaults too, was half of a job's size and a third of what its creation cost the API server."""


def unchanged(sections: list[str]) -> dict[str, str]:
    """The rule of the whole object that these sections of its spec stay as they are.

    A write of the status cannot change a spec, nor the other way round, so what changes `status.lastUpdateTime` need
    not be compared: that was a fifth of what a write of the status cost the API server.
    """
    same = {name: f"self.spec.{name} == oldSelf.spec.{name}" for name in sections}
    changed = " + ".join(f"({rule} ? '' : 'spec.{name} ')" for name, rule in same.items())
    # Optional fields (`self.?status`) and lists of words are too dear by the API server's estimate.
    told = "has({0}.status) && has({0}.status.lastUpdateTime)".format
    earlier = f"{told('oldSelf')} && self.status.lastUpdateTime == oldSelf.status.lastUpdateTime"
    written = f"{told('self')} && !({earlier})"
    advice = (
        "cannot change after creation: delete the job and apply it again (with the same name and a kept claim it "
        "resumes from its newest checkpoint)"
    )
    return cel(
        f"{written} || ({' && '.join(same.values())})",
        f"a section other than runPolicy {advice}",
        messageExpression=f"{changed} + '{advice}'",
        fieldPath=".spec",
    )


_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_NAME_RULE = cel(
    f"self.matches('{_NAME_PATTERN}')",
    "must hold only lower-case letters, digits and '-', and begin and end with a letter or digit",
)
Name = Annotated[
    str,
    Field(min_length=1, max_length=63, pattern=_NAME_PATTERN, json_schema_extra=cel_rules(_NAME_RULE)),
]
"""A DNS label."""
ShortText = Annotated[str, Field(min_length=1, max_length=253)]
Path = Annotated[str, Field(min_length=1, max_length=1024)]
FreeObject = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]
"""An object whose fields the API server keeps without knowing them."""
# No second look at the text (`quantity(self)`) in the rule for maps: the API server estimates the cost of each by the
# longest request times the map's bound.
_QUANTITY_RULE = cel(
    "type(self) == int ? self >= 0 : type(self) == string && !self.startsWith('-') && isQuantity(self)",
    f"is no Kubernetes quantity, or is negative: {SHAPE}",
)
_SIZE_RULE = cel(
    "type(self) == int ? self >= 1 : type(self) == string && isQuantity(self) && "
    "!quantity(self).isLessThan(quantity('1'))",
    f"is no Kubernetes quantity of at least one byte: {SHAPE}",
)
Quantity = Annotated[
    int | str,
    BeforeValidator(check_quantity),
    Field(
        json_schema_extra={"x-kubernetes-int-or-string": True, "pattern": QUANTITY_PATTERN, **cel_rules(_QUANTITY_RULE)}
    ),
]
"""A Kubernetes resource quantity, such as `8Gi` or `2`."""
Size = Annotated[
    int | str,
    BeforeValidator(check_size),
    Field(json_schema_extra={"x-kubernetes-int-or-string": True, "pattern": QUANTITY_PATTERN, **cel_rules(_SIZE_RULE)}),
]
"""A quantity of bytes."""
