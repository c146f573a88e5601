"""`reward`: a weighted list of functions that score responses."""

from typing import Literal

from pydantic import ConfigDict, Field

from grpo_api.base import ApiModel, FreeObject, Name, Size, cel, cel_rules, exactly_one


class BuiltinReward(ApiModel):
    """A rule that ships with the trainer."""

    rule: Literal[
        "exact_match",
        "numeric",
        "gsm8k",
        "math",
        "regex",
        "tags",
        "length",
        "json_schema",
        "reasoning_gym",
        "code",
    ]
    """`exact_match`: the response equals the ground truth. `numeric`: its last number does. `gsm8k`: as verl scores
    GSM8K. `math`: through math-verify. `regex`: a pattern is found. `tags`: `<think>...</think><answer>...</answer>`
    and the like. `length`: tokens within bounds. `json_schema`: JSON that a schema accepts. `reasoning_gym`: the
    task's own score. `code`: share of test cases passed, in a sandbox."""
    params: FreeObject = Field(default_factory=dict)
    """Parameters of the rule, by its own names; docs/rewards.md lists them."""


class PythonReward(ApiModel):
    """A Python function, inline. It runs in the reward pool's processes, which see no GPU."""

    source: str = Field(min_length=1, max_length=262_144)
    """Source text of a Python module that defines the function, at most 262144 characters."""
    function: str = Field(default="compute_score", max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Name of the function. Its parameters decide how it is called: `(data_source, solution_str, ground_truth,
    extra_info)` as in verl, returning a float or a dict with `score`; `(prompts, completions, **columns)` as in TRL,
    returning a list of floats or None; or `(batch)`, returning a tensor, array or list of shape (B,)."""


class ClipSpec(ApiModel):
    """Bounds of a function's scores."""

    model_config = ConfigDict(
        json_schema_extra=cel_rules(
            cel("has(self.min) || has(self.max)", "set min, max or both; none is set"),
            cel("!has(self.min) || !has(self.max) || self.min < self.max", "min must be less than max"),
        )
    )
    min: float | None = Field(default=None, ge=-1e6, le=1e6)
    """Lower scores become this."""
    max: float | None = Field(default=None, ge=-1e6, le=1e6)
    """Higher scores become this."""


class RewardFunction(ApiModel):
    """One weighted reward: exactly one of `builtin` and `python`."""

    model_config = ConfigDict(
        json_schema_extra=cel_rules(exactly_one("builtin", "python", example="builtin: {rule: numeric}"))
    )
    name: Name
    """Name in metrics and logs; no two functions share one."""
    weight: float = Field(default=1.0, ge=-1e6, le=1e6)
    """Factor in the weighted sum; a negative one makes a penalty."""
    clip: ClipSpec | None = None
    """Bounds of each score, before its weight."""
    builtin: BuiltinReward | None = None
    """A rule that ships with the trainer."""
    python: PythonReward | None = None
    """Your own function, written here."""


class OverlongBufferSpec(ApiModel):
    """DAPO's soft punishment of long responses: nothing up to `data.maxResponseLength` - `len` tokens, then growing
    evenly to `penaltyFactor` at `data.maxResponseLength`."""

    enable: bool = False
    """Take the penalty off the reward."""
    len: int = Field(default=1, ge=1, le=1_048_576)
    """Tokens before `data.maxResponseLength` over which the penalty grows; at most that many."""
    penalty_factor: float = Field(default=1.0, gt=0, le=1e6)
    """Penalty of the longest responses."""


class RewardSpec(ApiModel):
    """The reward is the weighted sum of its functions."""

    functions: list[RewardFunction] = Field(
        min_length=1,
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    """The functions, 1 to 16, with distinct names."""
    timeout_seconds: float = Field(default=30.0, gt=0, le=3600)
    """Seconds a sample's scoring may take; a call that takes longer is killed and counts as an error."""
    workers: int = Field(default=2, ge=1, le=256)
    """Processes of the reward pool, in the head pod."""
    worker_memory: Size | None = None
    """Memory that the Python of each process may take, as in `2Gi`; an allocation beyond it raises MemoryError. Unset:
    a quarter of the pod's, and at least 1Gi."""
    overlong_buffer: OverlongBufferSpec = Field(default_factory=OverlongBufferSpec)
    """Penalty of long responses, beside the functions; `gdpo` and `filterGroups` do not see it."""
    on_error: Literal["Mask", "Zero"] = "Mask"
    """What a sample counts where a function raises, times out, ends its process or returns NaN or an infinity: `Mask`
    takes it out of its group and of the loss, `Zero` scores it 0."""
    on_none: Literal["Skip", "Error"] = "Skip"
    """What None from a function means: `Skip` leaves the function out of that sample's sum, as in TRL; `Error` is a
    failure as `onError` has it, which a sample without any score is under both."""
