"""Every name that two rooms share: labels, environment, paths, ports, exit codes, conditions."""

from enum import IntEnum, StrEnum
from typing import Any

GROUP = "grpo.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "GRPOJob"
PLURAL = "grpojobs"
SINGULAR = "grpojob"
SHORT_NAME = "grpo"
FIELD_MANAGER = "grpo-operator"
CONTROLLER = f"{GROUP}/operator"
"""This operator, in `runPolicy.managedBy`."""

MAX_JOB_NAME_LENGTH = 52

LABEL_NAME = "app.kubernetes.io/name"
LABEL_INSTANCE = "app.kubernetes.io/instance"
LABEL_COMPONENT = "app.kubernetes.io/component"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_PART_OF = "app.kubernetes.io/part-of"
LABEL_JOB_NAME = f"{GROUP}/job-name"
LABEL_NODE_RANK = f"{GROUP}/node-rank"
LABEL_ATTEMPT = f"{GROUP}/attempt"
SCHEDULING_GATE = f"{GROUP}/gang"
"""Gate of pods that wait until there is room for their whole gang."""
ANNOTATION_RELEASED_AT = f"{GROUP}/released-at"
ANNOTATION_PLANNED_NODE = f"{GROUP}/planned-node"
ANNOTATION_KEEPS_ROOM_FROM = f"{GROUP}/keeps-room-from"
MANAGED_BY = "grpo-operator"
PART_OF = "grpo-operator"
COMPONENT_TRAINER = "trainer"

ENV_NODE_RANK = "GRPO_NODE_RANK"
ENV_NUM_NODES = "GRPO_NUM_NODES"
ENV_HEAD_ADDRESS = "GRPO_HEAD_ADDRESS"
ENV_ATTEMPT = "GRPO_ATTEMPT"

TRAINER_CONTAINER = "trainer"
JOB_FILE = "/etc/grpo/job.json"
REWARD_DIR = "/etc/grpo/reward"
REWARD_TOKENS_DIR = "/run/secrets/grpo.dev/reward"
"""Holds a directory for each HTTP reward function that has a token, by its name."""
REWARD_TOKEN_FILE = "token"
REWARD_WORKER = "grpo_trainer.rewards.worker"
"""Module of the program of a reward process."""
DEFAULT_CHECKPOINT_MOUNT = "/checkpoints"
SCRATCH_DIR = "/tmp"
TERMINATION_LOG = "/dev/termination-log"
"""The trainer writes a TerminationReport (JSON, at most 4096 bytes) here before it exits."""

TRAINER_METRICS_PORT = 9464
TRAINER_METRICS_PORT_NAME = "metrics"
PROGRESS_PATH = "/progress"
METRICS_PATH = "/metrics"
HEALTH_PATH = "/healthz"
OPERATOR_METRICS_PORT = 8080
OPERATOR_PROBE_PORT = 8081

RAY_GCS_PORT = 6379
RAY_OBJECT_MANAGER_PORT = 8076
RAY_NODE_MANAGER_PORT = 8077
RAY_RUNTIME_ENV_AGENT_PORT = 8078
RAY_METRICS_EXPORT_PORT = 8079
RAY_DASHBOARD_AGENT_PORT = 8082
RAY_MIN_WORKER_PORT = 20000
RAY_MAX_WORKER_PORT = 20999
TORCH_RENDEZVOUS_PORT = 29500

GPU_RESOURCE = "nvidia.com/gpu"


class ExitCode(IntEnum):
    """Exit codes of the trainer; any other non-zero code is a failure that spends the restart budget."""

    DONE = 0
    BAD_SPEC = 64
    """Bad spec or preflight: the user's fault, never retried."""
    BAD_INPUT = 65
    """Bad data, model or reward: the user's fault, never retried."""
    PEER_LOST = 75
    """A peer or device was lost, stalled or timed out: the gang restarts."""
    STOPPED = 143
    """Stopped on request (SIGTERM)."""


class Condition(StrEnum):
    VALID = "Valid"
    SCHEDULED = "Scheduled"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class State(StrEnum):
    """`status.state`, the display word; computed from what is observed, never read off the last condition."""

    PENDING = "Pending"
    QUEUED = "Queued"
    SCHEDULING = "Scheduling"
    STARTING = "Starting"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    RESTARTING = "Restarting"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    INVALID = "Invalid"


TERMINAL_STATES = frozenset({State.SUCCEEDED, State.FAILED})

CHECKPOINT_STEP_FORMAT = "step-{step:08d}"
CHECKPOINT_PARTIAL_SUFFIX = ".partial"
CHECKPOINT_MANIFEST = "manifest.json"


def pod_name(job: str, rank: int) -> str:
    """Name and hostname of the pod of one node rank."""
    return f"{job}-{rank}"


def label_number(metadata: dict[str, Any], label: str) -> int:
    """The number in a label of an object; -1 where somebody took the label away or edited it."""
    value = (metadata.get("labels") or {}).get(label, "")
    return int(value) if value.isdecimal() else -1


def service_name(job: str) -> str:
    """Headless Service of the gang, also its pods' subdomain."""
    return job


def config_map_name(job: str) -> str:
    return f"{job}-config"


def claim_name(job: str) -> str:
    """Claim made from `checkpoint.claimTemplate`."""
    return f"{job}-checkpoints"


def head_address(job: str, namespace: str) -> str:
    return f"{pod_name(job, 0)}.{service_name(job)}.{namespace}.svc"


def checkpoint_dir(mount: str, namespace: str, job: str) -> str:
    """Directory that holds a job's `step-XXXXXXXX` checkpoints."""
    return f"{mount.rstrip('/')}/{namespace}.{job}"
