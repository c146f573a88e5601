"""The whole spec: every section, and the batch rules across them."""

from pydantic import ConfigDict, Field

from grpo_api.base import FROZEN, ApiModel, cel, cel_rules
from grpo_api.spec.model_data import DataSpec, ModelSpec
from grpo_api.spec.reward import RewardSpec
from grpo_api.spec.runtime import (
    CheckpointSpec,
    GangSchedulingSpec,
    MetricsSpec,
    RunPolicySpec,
    TemplateSpec,
)
from grpo_api.spec.training import ActorSpec, AlgorithmSpec, RefSpec, RolloutSpec, TrainerSpec

_GPUS = "(self.trainer.nnodes * self.trainer.nGpusPerNode)"
_RESPONSES = "(self.data.trainBatchSize * self.rollout.n)"
_MINI = "(self.actor.ppoMiniBatchSize * self.rollout.n)"
_LONGEST = "(self.data.maxPromptLength + self.data.maxResponseLength)"
_LIKELY = "[1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 16, 20, 24, 30, 32, 48, 60, 64, 96, 128, 192, 256, 384, 512, 1024]"
"""Sizes that a message may advise: those among them which divide."""


def _batch_rule(rule: str, field: str, message: str, *numbers: str) -> dict[str, str]:
    """A rule on one field whose message shows its numbers, one CEL expression for each `%d` and `%s`.

    `format` rather than `+`: the API server's cost estimate of joined strings is unbounded.
    """
    plain = message.replace(" (%d)", "").replace("%d", "N").replace("try one of %s", "`grpoctl plan` names some")
    expression = "'" + message.replace("'", "\\'") + f"'.format([{', '.join(numbers)}])"
    return cel(rule, plain, messageExpression=expression, fieldPath=f".{field}")


def _divisors(whole: str) -> str:
    return f"{_LIKELY}.filter(size, {whole} % size == 0)"


def _micro_rule(field: str, responses: str, what: str) -> dict[str, str]:
    """A micro-batch size divides what each GPU computes; silent where the GPUs' share is itself no whole number."""
    share = f"{responses} / {_GPUS}"
    return _batch_rule(
        f"!has(self.{field}) || {responses} % {_GPUS} != 0 || {share} % self.{field} == 0",
        field,
        f"{field} (%d) must divide the {what} responses on each GPU: %d / %d GPUs = %d; try one of %s",
        f"self.{field}",
        responses,
        _GPUS,
        share,
        _divisors(f"({share})"),
    )


def _budget_rule(field: str) -> dict[str, str]:
    return _batch_rule(
        f"!has(self.{field}) || self.{field} >= {_LONGEST}",
        field,
        f"{field} (%d) must hold one whole sequence: data.maxPromptLength + data.maxResponseLength = %d; try that or "
        "more",
        f"self.{field}",
        _LONGEST,
    )


def _either_rule(section: str, micro: str, budget: str) -> dict[str, str]:
    return cel(
        f"!(has(self.{section}.{micro}) && has(self.{section}.{budget}))",
        f"{section}.{micro} excludes {section}.{budget}: remove one of them",
        fieldPath=f".{section}.{micro}",
    )


_LOG_PROB = ("logProbMicroBatchSizePerGpu", "logProbMaxTokenLenPerGpu")

# The batch rules that CEL can say; `batch_plan.batch_faults` says the same ones with the nearest values that work.
_BATCH_RULES = cel_rules(
    _batch_rule(
        "self.trainer.nGpusPerNode % self.rollout.tensorModelParallelSize == 0",
        "rollout.tensorModelParallelSize",
        "rollout.tensorModelParallelSize (%d) must divide trainer.nGpusPerNode (%d); try one of %s",
        "self.rollout.tensorModelParallelSize",
        "self.trainer.nGpusPerNode",
        _divisors("self.trainer.nGpusPerNode"),
    ),
    _batch_rule(
        "self.data.trainBatchSize % self.actor.ppoMiniBatchSize == 0",
        "actor.ppoMiniBatchSize",
        "actor.ppoMiniBatchSize (%d prompts) must divide data.trainBatchSize (%d prompts); try one of %s",
        "self.actor.ppoMiniBatchSize",
        "self.data.trainBatchSize",
        _divisors("self.data.trainBatchSize"),
    ),
    _batch_rule(
        f"{_MINI} % {_GPUS} == 0",
        "actor.ppoMiniBatchSize",
        "actor.ppoMiniBatchSize x rollout.n = %d x %d = %d responses must be divisible by the %d GPUs "
        "(trainer.nnodes x trainer.nGpusPerNode); a multiple of the GPUs always is",
        "self.actor.ppoMiniBatchSize",
        "self.rollout.n",
        _MINI,
        _GPUS,
    ),
    _micro_rule("actor.ppoMicroBatchSizePerGpu", _MINI, "mini-batch's"),
    _micro_rule("rollout.logProbMicroBatchSizePerGpu", _RESPONSES, "step's"),
    _micro_rule("ref.logProbMicroBatchSizePerGpu", _RESPONSES, "step's"),
    _budget_rule("actor.ppoMaxTokenLenPerGpu"),
    _budget_rule("rollout.logProbMaxTokenLenPerGpu"),
    _budget_rule("ref.logProbMaxTokenLenPerGpu"),
    _either_rule("actor", "ppoMicroBatchSizePerGpu", "ppoMaxTokenLenPerGpu"),
    _either_rule("rollout", *_LOG_PROB),
    _either_rule("ref", *_LOG_PROB),
    _batch_rule(
        "!has(self.data.train.reasoningGym) || self.data.train.reasoningGym.size >= self.data.trainBatchSize",
        "data.train.reasoningGym.size",
        "data.train.reasoningGym.size (%d rows) must fill one batch: data.trainBatchSize is %d; raise the one or lower "
        "the other",
        "self.data.train.reasoningGym.size",
        "self.data.trainBatchSize",
    ),
    _batch_rule(
        "!has(self.data.val) || !has(self.data.val.reasoningGym) || !has(self.data.train.reasoningGym) || "
        "self.data.val.reasoningGym.task != self.data.train.reasoningGym.task || "
        "self.data.val.reasoningGym.seed != self.data.train.reasoningGym.seed",
        "data.val.reasoningGym.seed",
        "data.val.reasoningGym.seed (%d) and task are those of data.train, so the model would be validated on its "
        "training rows: set another seed",
        "self.data.val.reasoningGym.seed",
    ),
    _batch_rule(
        "!has(self.reward.overlongBuffer) || !self.reward.overlongBuffer.enable || "
        "self.reward.overlongBuffer.len <= self.data.maxResponseLength",
        "reward.overlongBuffer.len",
        "reward.overlongBuffer.len (%d) is more than data.maxResponseLength (%d): lower it",
        "self.reward.overlongBuffer.len",
        "self.data.maxResponseLength",
    ),
    cel(
        "self.rollout.engine != 'hf' || self.rollout.tensorModelParallelSize == 1",
        "the engine hf holds the whole model on each GPU: set rollout.tensorModelParallelSize to 1, or use vllm",
        fieldPath=".rollout.tensorModelParallelSize",
    ),
    cel(
        "self.trainer.nnodes == 1 || !has(self.checkpoint.claimTemplate) || "
        "!('ReadWriteOncePod' in self.checkpoint.claimTemplate.accessModes)",
        "ReadWriteOncePod lets one pod mount the claim, and trainer.nnodes asks for more: use ReadWriteMany",
        fieldPath=".checkpoint.claimTemplate.accessModes",
    ),
)


class GRPOJobSpec(ApiModel):
    """What to train, on what, how, and where."""

    model_config = ConfigDict(json_schema_extra=_BATCH_RULES)

    model: ModelSpec = Field(json_schema_extra=FROZEN)
    """The model that is trained."""
    data: DataSpec = Field(json_schema_extra=FROZEN)
    """Where prompts come from, how they are put to the model, and how many make a step."""
    reward: RewardSpec = Field(json_schema_extra=FROZEN)
    """Functions that score responses: each response's reward is their weighted sum."""
    algorithm: AlgorithmSpec = Field(default_factory=AlgorithmSpec, json_schema_extra=FROZEN)
    """How rewards become advantages."""
    rollout: RolloutSpec = Field(default_factory=RolloutSpec, json_schema_extra=FROZEN)
    """How responses are sampled: `n` for each prompt, by engines that hold the current policy's weights."""
    actor: ActorSpec = Field(json_schema_extra=FROZEN)
    """How the policy is updated from a step's responses: batches, clipping, loss, optimizer."""
    ref: RefSpec = Field(default_factory=RefSpec, json_schema_extra=FROZEN)
    """Batches of the frozen reference model, loaded only with `actor.useKlLoss` or `algorithm.useKlInReward`."""
    trainer: TrainerSpec = Field(json_schema_extra=FROZEN)
    """Length and size of the run: exactly one of `totalSteps` and `totalEpochs`, pods and GPUs."""
    gang_scheduling: GangSchedulingSpec = Field(default_factory=GangSchedulingSpec, json_schema_extra=FROZEN)
    """How the gang's pods are placed: all of them, or none."""
    checkpoint: CheckpointSpec = Field(default_factory=CheckpointSpec, json_schema_extra=FROZEN)
    """Checkpoints and their volume: an existing claim, or one made from a template, or, with neither, none at all."""
    run_policy: RunPolicySpec = Field(default_factory=RunPolicySpec)
    """Life of the job: suspension, restarts, limits in time, clean-up. May change while the job runs."""
    template: TemplateSpec = Field(default_factory=TemplateSpec, json_schema_extra=FROZEN)
    """The gang's pods. What the operator must control (rank, rendezvous, mounts it makes) wins over this section."""
    metrics: MetricsSpec = Field(default_factory=MetricsSpec, json_schema_extra=FROZEN)
    """The metrics endpoint of the trainer's pods."""

    @property
    def has_reference(self) -> bool:
        """Whether a frozen reference model is loaded beside the actor."""
        return self.actor.use_kl_loss or self.algorithm.use_kl_in_reward
