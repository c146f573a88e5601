"""Parameters of the builtin reward rules (`builtin.params`), one model a rule; their names are those of Python."""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

TagName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Tokens = Annotated[int, Field(ge=0, le=1_048_576)]


class RuleParams(BaseModel):
    """Parameters of one rule."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False)


class AnswerParams(RuleParams):
    """Of a rule that looks for an answer in the response."""

    answer_tag: TagName | None = None
    """Look only at the text in the response's last element of this name: with `answer`, at what stands between
    `<answer>` and `</answer>`. Without such an element the score is 0."""


class ExactMatchParams(AnswerParams):
    """The response, stripped, equals the ground truth's text, stripped."""

    ignore_case: bool = False
    """Compare without regard to case."""


class NumericParams(AnswerParams):
    """The response's last number equals the ground truth's last number."""

    first: bool = False
    """Compare the response's first number instead."""
    tolerance: float = Field(default=0.0, ge=0, le=1e12)
    """Greatest absolute difference."""


class Gsm8kParams(AnswerParams):
    """GSM8K as verl scores it: a number in the response's last 300 characters has the ground truth's digits."""

    method: Literal["strict", "flexible"] = "strict"
    """`strict`: the last number after `#### `; `flexible`: the last number."""
    format_score: float = Field(default=0.0, ge=-1, le=1)
    """Score of a wrong number; none at all scores 0."""


class MathParams(AnswerParams):
    """The response's mathematical answer equals the ground truth, by the library math-verify."""

    boxed: bool = False
    """Only what stands in the last `\\boxed{}` counts; else the last formula or number does."""


class RegexParams(AnswerParams):
    """A pattern is found in the response."""

    pattern: str = Field(max_length=4096)
    """What the rule regex looks for in the response, in the syntax of Python's `re`; a dot matches newlines, too."""
    ignore_case: bool = False
    """Match without regard to case."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise PydanticCustomError(
                "rule",
                "{message}",
                {"message": f"is no regular expression: {error}; a literal character needs a \\ before it"},
            ) from None
        return value


class TagsParams(RuleParams):
    """The response consists of these elements, each once and in this order, with nothing but space around them."""

    tags: list[TagName] = Field(default=["think", "answer"], min_length=1, max_length=16)
    """The elements: `<think>...</think>`, then `<answer>...</answer>`."""
    prefilled: bool = False
    """The chat template writes the first opening tag into the prompt, so responses begin inside that element."""
    rest: bool = False
    """Text between and after the elements is allowed."""
    partial: bool = False
    """Score the share of the tags (opening and closing) that stand exactly once instead of all or nothing."""

    @field_validator("tags")
    @classmethod
    def _differ(cls, value: list[str]) -> list[str]:
        if len(set(value)) < len(value):
            raise PydanticCustomError("rule", "names an element twice: each stands once in a response, so remove one")
        return value


class LengthParams(RuleParams):
    """1 for a response of `min_tokens` to `max_tokens` tokens; outside it falls evenly to 0 over `margin` tokens."""

    min_tokens: Tokens = 0
    """Fewest tokens that score 1."""
    max_tokens: Tokens
    """Most tokens that score 1."""
    margin: Tokens = 0
    """Tokens outside over which the score falls to 0; with 0 it falls at once."""

    @field_validator("max_tokens")
    @classmethod
    def _above(cls, value: int, info: Any) -> int:
        if value < (least := info.data.get("min_tokens", 0)):
            message = f"is less than min_tokens ({least}): no length would score 1; raise it"
            raise PydanticCustomError("rule", "{message}", {"message": message})
        return value


class JsonSchemaParams(AnswerParams):
    """The response is JSON that a JSON schema accepts; a fence of three backticks around it is taken off."""

    json_schema: dict[str, Any]
    """The schema: draft 2020-12, or the one that its `$schema` names. References to other documents are not followed.
    """

    @field_validator("json_schema")
    @classmethod
    def _is_schema(cls, value: dict[str, Any]) -> dict[str, Any]:
        from jsonschema import SchemaError
        from jsonschema.validators import Draft202012Validator, validator_for

        try:
            validator_for(value, Draft202012Validator).check_schema(value)
        except SchemaError as error:
            where = "".join(f"[{part!r}]" for part in error.absolute_path)
            message = f"is no JSON schema: {where} {error.message[:300]}; correct it"
            raise PydanticCustomError("rule", "{message}", {"message": message}) from None
        return value


class ReasoningGymParams(AnswerParams):
    """The score, 0 to 1, that reasoning-gym's own task gives the answer, which must be one text."""

    task: str | None = Field(default=None, min_length=1, max_length=128)
    """Name of the task; without it the row's `extra_info.source_dataset` or the end of its data source names it."""


class CodeParams(AnswerParams):
    """Share of the ground truth's test cases that the Python program in the response passes, in a sandbox."""

    time_seconds: float = Field(default=10.0, gt=0, le=600)
    """Seconds that the test cases of a response may take together, less than `reward.timeoutSeconds`; cases that are
    not done by then count as failed."""
    memory_mib: int = Field(default=512, ge=64, le=65_536)
    """Address space of the program, in MiB."""
    file_mib: int = Field(default=16, ge=1, le=4096)
    """Size of each file that it writes, and of its output, in MiB."""
    max_tests: int = Field(default=10, ge=1, le=1000)
    """The first so many test cases are run."""
    all_tests: bool = False
    """Score 1 where every case passes, else 0, and stop at the first that fails."""
    landlock: Literal["required", "if_available"] = "required"
    """Whether a node whose kernel has no Landlock may run programs: there they read and write what the trainer may,
    checkpoints and mounted tokens among it."""


class VerlParams(CodeParams):
    """verl's default reward: the row's data source names the rule. The parameters are those of `code`, for programs."""


RULES: dict[str, type[RuleParams]] = {
    "exact_match": ExactMatchParams,
    "numeric": NumericParams,
    "gsm8k": Gsm8kParams,
    "math": MathParams,
    "regex": RegexParams,
    "tags": TagsParams,
    "length": LengthParams,
    "json_schema": JsonSchemaParams,
    "reasoning_gym": ReasoningGymParams,
    "code": CodeParams,
    "verl": VerlParams,
}


def rule_params(rule: str, params: dict[str, Any]) -> RuleParams:
    """The parameters with their defaults. Raises pydantic.ValidationError."""
    return RULES[rule].model_validate(params, strict=True)
