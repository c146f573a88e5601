"""What a training step reports: Prometheus metrics in a registry of their own, and a line in the log."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, pstdev

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge

from grpo_api import metric_names as names
from grpo_api.metric_names import JOB_LABELS, Metric
from grpo_trainer.rewards.result import CAUSES

# A counter's `_created` series would double the number of series and says nothing that the job's start does not.
prometheus_client.disable_created_metrics()


@dataclass
class StepReport:
    """Numbers of one finished step. Fields that are None were not computed in it."""

    step: int
    """Steps done, this one included."""
    total_steps: int
    step_seconds: float
    phase_seconds: dict[str, float]
    """By phase: rollout, reward, old_log_prob, ref, update, sync, checkpoint."""
    rewards: list[float]
    """Rewards of the responses that count; masked ones are left out."""
    prompt_tokens: int
    """Prompt tokens, counted once a response."""
    response_tokens: int
    responses: int
    truncated: float
    """Share of responses cut at maxResponseLength, 0 to 1."""
    zero_std_groups: float
    """Share of groups whose rewards are all equal, 0 to 1."""
    function_means: dict[str, float] = field(default_factory=dict)
    function_stds: dict[str, float] = field(default_factory=dict)
    function_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each reward function's calls, all processes together."""
    reward_errors: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Failed samples of this step by (function, cause)."""
    loss: float | None = None
    kl: float | None = None
    kl_coefficient: float | None = None
    """Of the KL in the reward, for the next step."""
    entropy: float | None = None
    """Nats a response token."""
    clip_fraction: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    rollout_mismatch: float | None = None
    """Mean absolute difference of the rollout's and the trainer's log-probabilities."""
    rollout_kl: float | None = None
    """Nats a token between rollout engine and trainer."""
    rollout_weight: float | None = None
    """Mean weight of the rollout correction."""
    rollout_sample_size: float | None = None
    """Effective sample size of the weights, 0 to 1."""
    sampling_rounds: int = 1
    """Batches of prompts sampled."""
    gpu_memory: dict[int, int] = field(default_factory=dict)
    """Bytes by rank."""
    gpu_memory_peak: dict[int, int] = field(default_factory=dict)
    """Bytes by rank."""
    host_memory: dict[int, int] = field(default_factory=dict)
    """Resident bytes by rank."""
    eta_seconds: float | None = None
    overlong_prompts: int = 0
    """Training rows met so far whose prompt is longer than maxPromptLength."""

    @property
    def reward_mean(self) -> float | None:
        return fmean(self.rewards) if self.rewards else None

    @property
    def reward_std(self) -> float | None:
        """Population standard deviation over all responses of the step."""
        return pstdev(self.rewards) if self.rewards else None

    @property
    def rewards_per_second(self) -> float | None:
        """Responses that were scored / seconds of scoring, over all rounds of sampling."""
        seconds = self.phase_seconds.get("reward")
        return self.responses * self.sampling_rounds / seconds if seconds else None

    @property
    def tokens_per_second(self) -> float:
        """(prompt + response tokens) / seconds of the step, over all GPUs. verl's throughput is this by GPU."""
        return (self.prompt_tokens + self.response_tokens) / self.step_seconds

    @property
    def response_length(self) -> float:
        """Mean tokens a response."""
        return self.response_tokens / self.responses


class TrainerMetrics:
    """All of `grpo_api.metric_names.TRAINER_METRICS` for one job. A series appears once it has a value."""

    def __init__(self, namespace: str, name: str) -> None:
        self.registry = CollectorRegistry()
        self._job = {"job_namespace": namespace, "job_name": name}
        kinds = {"gauge": Gauge, "counter": Counter}
        self._metrics = {
            metric.name: kinds[metric.kind](
                metric.name, metric.help, (*JOB_LABELS, *metric.labels), registry=self.registry
            )
            for metric in names.TRAINER_METRICS
        }

    def set(self, metric: Metric, value: float | None, **labels: object) -> None:
        """Set a gauge; None leaves it as it is."""
        if value is not None:
            self._metrics[metric.name].labels(**self._job, **labels).set(value)

    def add(self, metric: Metric, value: float, **labels: object) -> None:
        """Raise a counter."""
        self._metrics[metric.name].labels(**self._job, **labels).inc(value)

    def record_step(self, report: StepReport, timestamp: float) -> None:
        """Take over a step's numbers; `timestamp` (Unix seconds) is when it ended."""
        for metric, value in (
            (names.STEP, report.step),
            (names.TOTAL_STEPS, report.total_steps),
            (names.REWARD_MEAN, report.reward_mean),
            (names.REWARD_STD, report.reward_std),
            (names.REWARD_THROUGHPUT, report.rewards_per_second),
            (names.ZERO_STD_GROUPS, report.zero_std_groups),
            (names.RESPONSE_LENGTH, report.response_length),
            (names.TRUNCATED, report.truncated),
            (names.THROUGHPUT, report.tokens_per_second),
            (names.LOSS, report.loss),
            (names.KL, report.kl),
            (names.KL_COEFFICIENT, report.kl_coefficient),
            (names.ENTROPY, report.entropy),
            (names.CLIP_FRACTION, report.clip_fraction),
            (names.GRAD_NORM, report.grad_norm),
            (names.LEARNING_RATE, report.learning_rate),
            (names.ROLLOUT_MISMATCH, report.rollout_mismatch),
            (names.ROLLOUT_KL, report.rollout_kl),
            (names.ROLLOUT_WEIGHT, report.rollout_weight),
            (names.ROLLOUT_SAMPLE_SIZE, report.rollout_sample_size),
            (names.SAMPLING_ROUNDS, report.sampling_rounds),
            (names.LAST_STEP_TIMESTAMP, timestamp),
        ):
            self.set(metric, value)
        self.set(names.OVERLONG, report.overlong_prompts, data="train")
        for function, mean in report.function_means.items():
            self.set(names.REWARD_FUNCTION_MEAN, mean, function=function)
            for cause in CAUSES:  # from 0, as rate() does not see a counter's first value
                self.add(names.REWARD_ERRORS, 0, function=function, cause=cause)
        for function, deviation in report.function_stds.items():
            self.set(names.REWARD_FUNCTION_STD, deviation, function=function)
        for function, seconds in report.function_seconds.items():
            self.add(names.REWARD_FUNCTION_SECONDS, seconds, function=function)
        for (function, cause), count in report.reward_errors.items():
            self.add(names.REWARD_ERRORS, count, function=function, cause=cause)
        for phase, seconds in report.phase_seconds.items():
            self.set(names.PHASE_DURATION, seconds, phase=phase)
            self.add(names.PHASE_SECONDS, seconds, phase=phase)
        self.set(names.PHASE_DURATION, report.step_seconds, phase="step")
        self.add(names.TOKENS, report.prompt_tokens, kind="prompt")
        self.add(names.TOKENS, report.response_tokens, kind="response")
        for metric, by_rank in (
            (names.GPU_MEMORY, report.gpu_memory),
            (names.GPU_MEMORY_PEAK, report.gpu_memory_peak),
            (names.HOST_MEMORY, report.host_memory),
        ):
            for rank, size in by_rank.items():
                self.set(metric, size, rank=str(rank))

    def record_checkpoint(self, step: int, timestamp: float, size_bytes: int) -> None:
        """Take over the newest complete checkpoint."""
        self.set(names.CHECKPOINT_STEP, step)
        self.set(names.CHECKPOINT_TIMESTAMP, timestamp)
        self.set(names.CHECKPOINT_SIZE, size_bytes)


def log_line(report: StepReport) -> str:
    """One line a step: `step=3/20 reward/mean=0.312 ... update_s=9.8 grad_norm=1.2 lr=3e-05`.

    A single function's mean is left out where it would repeat the reward.
    """
    values: dict[str, float | None] = {
        "reward/mean": report.reward_mean,
        "reward/std": report.reward_std,
        "tokens_per_s": report.tokens_per_second,
        "step_s": report.step_seconds,
        "eta_s": report.eta_seconds,
    }
    values |= {f"{phase}_s": seconds for phase, seconds in report.phase_seconds.items()}
    values |= {
        "loss": report.loss,
        "kl": report.kl,
        "kl_coef": report.kl_coefficient,
        "entropy": report.entropy,
        "clip_fraction": report.clip_fraction,
        "grad_norm": report.grad_norm,
        "lr": report.learning_rate,
        "response_len": report.response_length,
        "truncated": report.truncated,
        "zero_std": report.zero_std_groups,
        "rollout_mismatch": report.rollout_mismatch,
        "rollout_kl": report.rollout_kl,
        "sampling_rounds": report.sampling_rounds if report.sampling_rounds > 1 else None,
    }
    if len(report.function_means) > 1:
        values |= {f"reward/{name}": mean for name, mean in report.function_means.items()}
        values |= {f"reward/{name}/std": deviation for name, deviation in report.function_stds.items()}
    values |= {f"reward_errors/{name}/{cause}": count for (name, cause), count in report.reward_errors.items()}
    shown = " ".join(f"{key}={short(value)}" for key, value in values.items() if value is not None)
    return f"step={report.step}/{report.total_steps} {shown}"


def warnings(report: StepReport) -> list[str]:
    """What a step's numbers warn of, in words with the repair."""
    found = []
    if report.truncated == 1.0:
        found.append("every response was cut at data.maxResponseLength: raise it, or the model cannot finish an answer")
    if report.zero_std_groups == 1.0:
        found.append(
            "the rewards of every group are all equal, so this step teaches nothing: check the reward function, "
            "or make the task easier or harder"
        )
    if not report.rewards:
        found.append("no response has a reward: every sample failed in scoring (see the errors above)")
    return found


def short(value: float) -> str:
    """At most three significant digits after the point; whole numbers of hundreds and more as such."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    if value and abs(value) < 0.001:
        return f"{value:.3g}"
    return f"{value:.3f}".rstrip("0").rstrip(".")
