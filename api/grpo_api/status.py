"""`status` of a GRPOJob, and the report that a trainer leaves when it ends."""

from typing import Literal

from pydantic import ConfigDict, Field

from grpo_api.base import ApiModel
from grpo_api.batch_plan import BatchPlan
from grpo_api.names import Condition, State


class ConditionStatus(ApiModel):
    """One condition, by the API conventions."""

    type: Condition
    """Kind of condition."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: str = Field(max_length=256)
    """CamelCase word for the cause."""
    message: str = Field(default="", max_length=4096)
    """The cause in words, with the repair."""
    last_transition_time: str = Field(max_length=64)
    """When `status` last changed (RFC 3339)."""
    observed_generation: int = 0
    """Generation of the spec that it speaks of."""


def percent(step: int, total_steps: int) -> str:
    """Share of the steps done, rounded down, as it is displayed: `35%`."""
    return f"{100 * step // total_steps}%" if total_steps else "0%"


class Progress(ApiModel):
    """How far training is, as the head pod reports it."""

    step: int = 0
    """Steps done."""
    total_steps: int = 0
    """Steps of the whole run."""
    percent: str = "0%"
    """Share of the steps done, for display."""
    reward_mean: float | None = None
    """Mean reward of the last step's responses."""
    tokens_per_second: float | None = None
    """Prompt and response tokens of the last step by its seconds, over all GPUs."""
    eta_seconds: float | None = None
    """Time left at the pace of the last steps."""
    last_step_time: str | None = None
    """When the last step, or the last batch of a validation, ended (RFC 3339)."""
    val_step: int | None = None
    """Step of the last validation; 0 is the one before training."""
    val_reward_mean: float | None = None
    """Mean over its prompts of their responses' mean reward."""


class CheckpointStatus(ApiModel):
    """Newest complete checkpoint."""

    step: int
    """Step after which it was written."""
    time: str | None = None
    """When (RFC 3339)."""
    path: str | None = None
    """Directory inside the pods."""
    size_bytes: int | None = None
    """Its size."""


class Restart(ApiModel):
    """One restart of the gang."""

    time: str
    """When it was decided (RFC 3339)."""
    attempt: int
    """The attempt that ended."""
    pod: str | None = None
    """The pod that caused it."""
    cause: str
    """CamelCase word: Failed, OOMKilled, Drained, Evicted, Preempted, NodeLost, PodDeleted, PeerLost, ..."""
    counted: bool = True
    """Whether it spent `runPolicy.maxRestarts`."""
    from_step: int | None = None
    """Step of the checkpoint resumed from."""
    message: str = ""
    """The cause in words."""


class NodesStatus(ApiModel):
    """Pods of the gang."""

    ready: int = 0
    """Ready pods."""
    total: int = 0
    """Pods of the gang."""
    summary: str = "0/0"
    """`ready/total`, for display."""


class GangStatus(ApiModel):
    """How the gang is placed."""

    backend: str
    """The backend in use."""
    reason: str = ""
    """Why it was chosen, or what it waits for."""


class GRPOJobStatus(ApiModel):
    """What the operator observes."""

    observed_generation: int = 0
    """Generation of the spec that this status speaks of."""
    state: State | None = None
    """One word for display."""
    reason: str | None = None
    """CamelCase word for the state's cause."""
    message: str | None = None
    """The cause in words."""
    conditions: list[ConditionStatus] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    """Valid, Scheduled, Running, Suspended, Succeeded, Failed."""
    attempt: int | None = None
    """Number of the gang, from 0; each restart raises it."""
    created_attempt: int | None = None
    """The attempt all of whose pods have existed: a pod of it that is missing has been deleted."""
    restarts: list[Restart] = Field(default_factory=list, max_length=20)
    """The last restarts, newest last."""
    failures: int | None = None
    """Restarts so far that spent `runPolicy.maxRestarts`."""
    batch_plan: BatchPlan | None = None
    """Every number that follows from the batch sizes."""
    progress: Progress | None = None
    """How far training is."""
    checkpoint: CheckpointStatus | None = None
    """Newest complete checkpoint."""
    nodes: NodesStatus | None = None
    """Pods of the gang."""
    gang: GangStatus | None = None
    """How the gang is placed."""
    start_time: str | None = None
    """When the first pods were made (RFC 3339)."""
    completion_time: str | None = None
    """When the job ended (RFC 3339)."""
    last_update_time: str | None = Field(default=None, max_length=64)
    """When this status was written (RFC 3339)."""


class HeadReport(ApiModel):
    """Body of `GET /progress` in the head pod (JSON, camelCase)."""

    model_config = ConfigDict(extra="ignore")
    phase: str = "starting"
    """What the trainer is doing: starting, loading, training, saving, done."""
    progress: Progress | None = None
    checkpoint: CheckpointStatus | None = None
    resumed_from_step: int | None = None
    """Step of the checkpoint that this attempt went on from; none where it began anew or has not loaded yet."""


class TerminationReport(HeadReport):
    """What a trainer writes to the termination log before it exits (JSON, at most 4096 bytes)."""

    exit_code: int
    reason: str
    """CamelCase word, such as `RewardSyntaxError`."""
    message: str = ""
    """In words, with the file and line of the user's code where that is the cause."""
