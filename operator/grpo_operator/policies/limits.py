"""Limits in time: how long a job may be active, stand still while it trains, and stay after its end."""

from datetime import datetime
from typing import Any

from grpo_api import names
from grpo_api.names import Condition, State
from grpo_api.spec.runtime import RunPolicySpec
from grpo_operator.policies.podstate import seconds_since
from grpo_operator.policies.restart import CLOCK_TOLERANCE_SECONDS, Loss
from grpo_operator.reasons import Cause


def deadline(status: dict[str, Any], policy: RunPolicySpec, now: datetime) -> tuple[str | None, float | None]:
    """(message once the job has been active too long, else None; seconds until then)."""
    limit, start = policy.active_deadline_seconds, status.get("startTime")
    if limit is None or start is None:
        return None, None
    left = limit - seconds_since(start, now)
    if left > 0:
        return None, left
    return f"active for {limit} s since {start}, and runPolicy.activeDeadlineSeconds allows no more", None


def stall(
    status: dict[str, Any], policy: RunPolicySpec, job: str, quiet: float | None, now: datetime
) -> tuple[Loss | None, float | None]:
    """(a loss once a running gang has finished no step for too long; seconds until then).

    `quiet`: seconds since the head last said something new. It is measured here, so that no jump of a clock restarts a
    gang that makes steps; and times in the future, which a jump back leaves behind, keep none that hangs.
    """
    limit = policy.stall_timeout_seconds
    if limit is None or status.get("state") != State.RUNNING:
        return None, None
    began = next(
        (item["lastTransitionTime"] for item in status.get("conditions", []) if item["type"] == Condition.RUNNING), None
    )
    told = (seconds_since(at, now) for at in (began, (status.get("progress") or {}).get("lastStepTime")))
    ages = [age for age in told if age > -CLOCK_TOLERANCE_SECONDS]
    still = min([*ages, *([] if quiet is None else [quiet])], default=0.0)
    if still < limit:
        return None, limit - still
    step = (status.get("progress") or {}).get("step", 0)
    message = f"no step finished for {still:.0f} s after step {step} (runPolicy.stallTimeoutSeconds is {limit})"
    return Loss(Cause.STALLED, names.pod_name(job, 0), message), None


def expiry(status: dict[str, Any], ttl: int | None, now: datetime) -> float | None:
    """Seconds until a job that has ended is deleted (at most 0: now), or None for never."""
    end = status.get("completionTime")
    return None if ttl is None or end is None else ttl - seconds_since(end, now)
