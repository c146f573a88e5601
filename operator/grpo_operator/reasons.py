"""Every reason that a condition, an Event or `status.reason` can carry."""

from enum import StrEnum


class Reason(StrEnum):
    SPEC_VALID = "SpecValid"
    INVALID_SPEC = "InvalidSpec"
    NAME_CONFLICT = "NameConflict"
    CREATE_REFUSED = "CreateRefused"
    CLAIM_MISSING = "ClaimMissing"
    CLAIM_NOT_BOUND = "ClaimNotBound"
    TRAINER_NOT_RUN = "TrainerNotRun"
    QUOTA_EXCEEDED = "QuotaExceeded"
    LIMIT_RANGE = "LimitRangeExceeded"
    POD_SECURITY = "PodSecurityViolation"
    ADMISSION_DENIED = "AdmissionDenied"
    ADMISSION_UNAVAILABLE = "AdmissionUnavailable"
    CREATING_PODS = "CreatingPods"
    UNSCHEDULABLE = "Unschedulable"
    WAITING_FOR_QUOTA = "WaitingForQuota"
    NOT_MANAGED_BY_KUEUE = "NotManagedByKueue"
    WAITING_FOR_CAPACITY = "WaitingForCapacity"
    LARGER_THAN_CLUSTER = "LargerThanCluster"
    WAITING_FOR_SCHEDULER = "WaitingForScheduler"
    ALL_PODS_SCHEDULED = "AllPodsScheduled"
    STARTING = "Starting"
    TRAINING = "Training"
    NODE_UNREACHABLE = "NodeUnreachable"
    RESTARTING = "Restarting"
    BACKOFF = "RestartBackoff"
    SUSPENDED = "Suspended"
    SUSPENDING = "Suspending"
    NOT_SUSPENDED = "NotSuspended"
    RESUMED = "Resumed"
    SUCCEEDED = "TrainingSucceeded"
    MAX_RESTARTS = "MaxRestartsReached"
    DEADLINE = "DeadlineExceeded"
    ENDED = "JobEnded"


class Cause(StrEnum):
    """Why a gang restarted (`status.restarts[].cause`)."""

    FAILED = "Failed"
    OOM_KILLED = "OOMKilled"
    PEER_LOST = "PeerLost"
    POD_DELETED = "PodDeleted"
    EVICTED = "Evicted"
    DRAINED = "Drained"
    PREEMPTED = "Preempted"
    NODE_LOST = "NodeLost"
    NODE_REJECTED = "NodeRejected"
    SCHEDULE_TIMEOUT = "ScheduleTimeout"
    STALLED = "Stalled"


UNCOUNTED = frozenset(
    {
        *(Cause.POD_DELETED, Cause.EVICTED, Cause.DRAINED, Cause.PREEMPTED),
        *(Cause.NODE_LOST, Cause.NODE_REJECTED, Cause.SCHEDULE_TIMEOUT),
    }
)
"""Causes outside the job: they do not spend `runPolicy.maxRestarts`."""
