"""`reward`: a weighted list of functions that score responses."""

from typing import Literal

from pydantic import ConfigDict, Field

from grpo_api.base import ApiModel, FreeObject, Name, Path, ShortText, Size, cel, cel_rules, exactly_one


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
        "verl",
    ]
    """`exact_match`: the response equals the ground truth. `numeric`: its last number does. `gsm8k`: as verl scores
    GSM8K. `math`: through math-verify. `regex`: a pattern is found. `tags`: `<think>...</think><answer>...</answer>`
    and the like. `length`: tokens within bounds. `json_schema`: JSON that a schema accepts. `reasoning_gym`: the
    task's own score. `code`: share of test cases passed, in a sandbox. `verl`: the rule that
    verl has for the row's data source."""
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
    params: FreeObject = Field(default_factory=dict)
    """Keyword arguments that each call gets besides those."""


_FUNCTION_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"
_FUNCTION_RULE = cel(
    f"self.matches('{_FUNCTION_PATTERN}')", "must name a module and a function of it, as in package.module:function"
)
_URL_PATTERN = r"^https?://[^/@ ]+(/[^ ]*)?$"
_URL_RULE = cel(
    f"self.matches('{_URL_PATTERN}')",
    "must be a URL as in http://rewards.team.svc:8000/score, without a password in it (tokenSecret is for that)",
)
_KEY_PATTERN = r"^[-._a-zA-Z0-9]+$"


class ModuleReward(ApiModel):
    """A Python function in a module that the image or a mounted volume holds. It is called as an inline one is."""

    path: str = Field(
        min_length=3, max_length=512, pattern=_FUNCTION_PATTERN, json_schema_extra=cel_rules(_FUNCTION_RULE)
    )
    """The function, as `package.module:function`."""
    directory: str | None = Field(default=None, min_length=1, max_length=1024, pattern=r"^/")
    """Absolute path of a directory that is searched before the image's packages, such as where `template.podOverlay`
    mounts a volume."""
    params: FreeObject = Field(default_factory=dict)
    """Keyword arguments that each call gets besides those of its signature."""


class TokenSecret(ApiModel):
    """A key of a Secret in the job's namespace. The head pod mounts it as a file; the operator does not read it."""

    name: str = Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    """Name of the Secret."""
    key: str = Field(default="token", min_length=1, max_length=253, pattern=_KEY_PATTERN)
    """Key whose value is the token."""


class HttpReward(ApiModel):
    """A server that scores batches of responses; docs/rewards.md has requests and answers."""

    url: str = Field(min_length=1, max_length=2048, pattern=_URL_PATTERN, json_schema_extra=cel_rules(_URL_RULE))
    """Where batches are posted."""
    batch_size: int = Field(default=64, ge=1, le=4096)
    """Responses of a request at most."""
    concurrency: int = Field(default=4, ge=1, le=64)
    """Requests at a time, each by a process of its own beside `reward.workers`."""
    timeout_seconds: float = Field(default=10.0, gt=0, le=3600)
    """Seconds that one attempt may take; all attempts together end before `reward.timeoutSeconds`."""
    retries: int = Field(default=3, ge=0, le=20)
    """Further attempts where the server cannot be reached, does not answer in time, or answers 408, 425, 429 or 5xx."""
    backoff_seconds: float = Field(default=0.5, ge=0, le=60)
    """Seconds before the first further attempt, twice as many before each next one, give or take a half; the server's
    `Retry-After` counts where it is longer."""
    token_secret: TokenSecret | None = None
    """Token that is sent as `Authorization: Bearer`."""


class ClassifierReward(ApiModel):
    """A small sequence classifier of Transformers, on the head pod's CPU in a process of its own. Its weights must be
    safetensors, and code of its own is not run."""

    path: Path
    """Hub id, or path in the pods."""
    revision: ShortText | None = None
    """Branch, tag or commit of a hub id."""
    label: ShortText | None = None
    """Name or number of the class whose output is the score; may be left out where there is one class only."""
    output: Literal["logit", "sigmoid", "probability"] = "logit"
    """What the score is: the class's logit, its sigmoid, or its share of the softmax over all classes."""
    input: Literal["response", "pair", "chat"] = "response"
    """What is classified: the response; prompt and response as a pair of texts; or the conversation, by the
    classifier's own chat template, with prompts that are plain text as one user message."""
    max_length: int = Field(default=1024, ge=1, le=1_048_576)
    """Tokens of an input; longer ones lose their beginning."""
    batch_size: int = Field(default=16, ge=1, le=4096)
    """Inputs of one call, which `reward.timeoutSeconds` limits."""
    threads: int = Field(default=4, ge=1, le=256)
    """CPU threads."""


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


KINDS = ("builtin", "python", "module", "http", "classifier")
"""Fields of a function of which exactly one is set."""


class RewardFunction(ApiModel):
    """One weighted reward: exactly one of `builtin`, `python`, `module`, `http` and `classifier`."""

    model_config = ConfigDict(json_schema_extra=cel_rules(exactly_one(*KINDS, example="builtin: {rule: numeric}")))
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
    module: ModuleReward | None = None
    """Your own function, in the image or on a volume."""
    http: HttpReward | None = None
    """Your own server."""
    classifier: ClassifierReward | None = None
    """A small model."""


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
