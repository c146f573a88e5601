"""Prometheus metrics of trainer and operator: the one list that code, dashboard, alerts and docs share.

Base units; counters end in `_total`; ratios run from 0 to 1. Every trainer metric carries JOB_LABELS.
"""

from typing import Literal, NamedTuple

JOB_LABELS = ("job_namespace", "job_name")


class Metric(NamedTuple):
    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


STEP = Metric("grpo_step", "gauge", "Steps done.")
TOTAL_STEPS = Metric("grpo_steps_planned", "gauge", "Steps of the whole run.")
REWARD_MEAN = Metric("grpo_reward_mean", "gauge", "Mean reward of the last step's responses.")
REWARD_STD = Metric("grpo_reward_std", "gauge", "Standard deviation of the last step's rewards.")
REWARD_FUNCTION_MEAN = Metric(
    "grpo_reward_function_mean", "gauge", "Mean score of one reward function, unweighted.", ("function",)
)
REWARD_FUNCTION_STD = Metric(
    "grpo_reward_function_std",
    "gauge",
    "Standard deviation of one reward function's scores, unweighted.",
    ("function",),
)
REWARD_FUNCTION_SECONDS = Metric(
    "grpo_reward_function_seconds_total",
    "counter",
    "Seconds of one reward function's calls, all processes together.",
    ("function",),
)
REWARD_THROUGHPUT = Metric(
    "grpo_reward_responses_per_second", "gauge", "Responses scored in a second of the last step's reward phase."
)
REWARD_ERRORS = Metric(
    "grpo_reward_errors_total",
    "counter",
    "Samples whose scoring failed, by cause: exception, timeout, crash, none, nan.",
    ("function", "cause"),
)
ZERO_STD_GROUPS = Metric(
    "grpo_reward_zero_std_groups_ratio", "gauge", "Share of groups whose rewards are all equal: they teach nothing."
)
RESPONSE_LENGTH = Metric("grpo_response_length_mean_tokens", "gauge", "Mean tokens of a response.")
TRUNCATED = Metric("grpo_response_truncated_ratio", "gauge", "Share of responses cut at maxResponseLength.")
PHASE_DURATION = Metric(
    "grpo_step_duration_seconds",
    "gauge",
    "Seconds of the last step by phase: rollout, reward, old_log_prob, ref, update, sync, checkpoint, and step (all); "
    "and of the last validation: validation, which no step contains.",
    ("phase",),
)
PHASE_SECONDS = Metric("grpo_phase_seconds_total", "counter", "Seconds spent in each phase.", ("phase",))
TOKENS = Metric("grpo_tokens_total", "counter", "Tokens seen, by kind: prompt (once a response), response.", ("kind",))
THROUGHPUT = Metric(
    "grpo_throughput_tokens_per_second",
    "gauge",
    "Prompt and response tokens of the last step by its seconds, all GPUs.",
)
LOSS = Metric("grpo_loss", "gauge", "Policy loss of the last update.")
KL = Metric("grpo_kl_mean", "gauge", "Mean KL to the reference model, where it is computed.")
KL_COEFFICIENT = Metric("grpo_kl_coefficient", "gauge", "Factor of the KL in the reward, with algorithm.useKlInReward.")
ENTROPY = Metric("grpo_entropy_mean_nats", "gauge", "Mean entropy of the policy at response tokens.")
CLIP_FRACTION = Metric("grpo_clip_fraction_ratio", "gauge", "Share of tokens whose probability ratio was clipped.")
GRAD_NORM = Metric("grpo_grad_norm", "gauge", "Gradient norm before clipping.")
LEARNING_RATE = Metric("grpo_learning_rate", "gauge", "Learning rate of the last update.")
ROLLOUT_MISMATCH = Metric(
    "grpo_rollout_logprob_difference_mean",
    "gauge",
    "Mean absolute difference between the rollout engine's and the trainer's log-probabilities.",
)
ROLLOUT_KL = Metric(
    "grpo_rollout_kl_mean_nats", "gauge", "KL a token (k3) between the rollout engine's policy and the trainer's."
)
ROLLOUT_WEIGHT = Metric(
    "grpo_rollout_importance_weight_mean", "gauge", "Mean weight of algorithm.rolloutCorrection, after its thresholds."
)
ROLLOUT_SAMPLE_SIZE = Metric(
    "grpo_rollout_effective_sample_ratio", "gauge", "Effective sample size of those weights as a share of the tokens."
)
SAMPLING_ROUNDS = Metric(
    "grpo_sampling_rounds", "gauge", "Batches of prompts that the last step sampled; above 1 with filterGroups only."
)
OVERLONG = Metric(
    "grpo_data_overlong_prompts",
    "gauge",
    "Rows met so far whose prompt is longer than data.maxPromptLength: dropped or cut, as data.overlongPrompts says.",
    ("data",),
)
VAL_SCORE = Metric(
    "grpo_validation_score",
    "gauge",
    "Result of the last validation by data source, variable (reward, or a function's name) and statistic: mean@n, "
    "best@n/mean, pass@k.",
    ("data_source", "variable", "statistic"),
)
VAL_STEP = Metric("grpo_validation_step", "gauge", "Step of the last validation; 0 is the one before training.")
LAST_STEP_TIMESTAMP = Metric(
    "grpo_last_step_timestamp_seconds", "gauge", "When the last step, or the last batch of a validation, ended."
)
CHECKPOINT_STEP = Metric("grpo_checkpoint_step", "gauge", "Step of the newest complete checkpoint.")
CHECKPOINT_TIMESTAMP = Metric("grpo_checkpoint_timestamp_seconds", "gauge", "When the newest checkpoint was complete.")
CHECKPOINT_SIZE = Metric("grpo_checkpoint_size_bytes", "gauge", "Size of the newest complete checkpoint.")
GPU_MEMORY = Metric("grpo_gpu_memory_allocated_bytes", "gauge", "GPU memory allocated by torch now.", ("rank",))
GPU_MEMORY_PEAK = Metric(
    "grpo_gpu_memory_peak_bytes", "gauge", "GPU memory allocated by torch at most in the last step.", ("rank",)
)
HOST_MEMORY = Metric("grpo_host_memory_bytes", "gauge", "Resident memory of a worker process.", ("rank",))
RESUMED_STEP = Metric(
    "grpo_resumed_step", "gauge", "Step of the checkpoint that this attempt started from; 0 for none."
)

TRAINER_METRICS = [value for value in list(globals().values()) if isinstance(value, Metric)]

JOBS = Metric("grpo_operator_jobs", "gauge", "GRPOJobs by state.", ("job_namespace", "state"))
JOB_INFO = Metric(
    "grpo_operator_job_info", "gauge", "1 for each GRPOJob, with its state.", (*JOB_LABELS, "state", "gang_backend")
)
JOB_RESTARTS = Metric("grpo_operator_job_restarts", "gauge", "Restarts of a job's gang so far (attempt).", JOB_LABELS)
RECONCILE_SECONDS = Metric("grpo_operator_reconcile_seconds", "histogram", "Seconds of one reconcile.")
RECONCILE_ERRORS = Metric(
    "grpo_operator_reconcile_errors_total", "counter", "Reconciles that failed, by error.", ("error",)
)
QUEUE_DEPTH = Metric("grpo_operator_queue_depth", "gauge", "Jobs that wait for a reconcile.")
QUEUE_OLDEST = Metric("grpo_operator_queue_oldest_seconds", "gauge", "Age of the oldest item in the queue.")
API_REQUESTS = Metric(
    "grpo_operator_api_requests_total", "counter", "Requests to the API server.", ("verb", "resource", "code")
)
RESTARTS = Metric("grpo_operator_restarts_total", "counter", "Gang restarts by cause.", ("cause",))
LEADER = Metric("grpo_operator_leader", "gauge", "1 where this process holds the Lease.")
LAST_WATCH_EVENT = Metric(
    "grpo_operator_last_watch_event_timestamp_seconds", "gauge", "When the last watch event arrived."
)

OPERATOR_METRICS = [
    value for value in list(globals().values()) if isinstance(value, Metric) and value not in TRAINER_METRICS
]
