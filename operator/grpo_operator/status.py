"""Writing `status`: conditions, state, progress. Works on dicts in memory; `apply` patches once."""

from datetime import datetime
from typing import Any

from grpo_api import names
from grpo_api.job import GRPOJob
from grpo_api.names import State
from grpo_api.status import HeadReport, percent
from grpo_operator.observe import Observed
from grpo_operator.policies import podstate

MAX_MESSAGE = 4000


def timestamp(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def set_state(status: dict[str, Any], state: State, reason: str, message: str) -> None:
    status["state"] = str(state)
    status["reason"] = str(reason)
    status["message"] = message[:MAX_MESSAGE]


def set_condition(
    status: dict[str, Any], kind: names.Condition, value: str, reason: str, message: str, now: datetime
) -> None:
    """Set one condition; its transition time changes only when its status does."""
    conditions = status.setdefault("conditions", [])
    held = next((item for item in conditions if item["type"] == kind), None)
    changed = held is None or held["status"] != value
    entry = {
        "type": str(kind),
        "status": value,
        "reason": str(reason),
        "message": message[:MAX_MESSAGE],
        "lastTransitionTime": timestamp(now) if held is None or changed else held["lastTransitionTime"],
        "observedGeneration": status.get("observedGeneration", 0),
    }
    if held is None:
        conditions.append(entry)
    else:
        conditions[conditions.index(held)] = entry


def new_restart(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any] | None:
    """The restart that `new` tells of and `old` does not."""
    told = {(entry["attempt"], entry["time"]) for entry in old.get("restarts") or []}
    entry: dict[str, Any] | None = (new.get("restarts") or [None])[-1]
    return None if entry is None or (entry["attempt"], entry["time"]) in told else entry


def blames(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether `new` holds a decision on why a gang was lost, which nothing takes back."""
    return new_restart(old, new) is not None or new.get("failures", 0) > old.get("failures", 0)


def set_nodes(status: dict[str, Any], ready: int, total: int) -> None:
    status["nodes"] = {"ready": ready, "total": total, "summary": f"{ready}/{total}"}


def take_progress(status: dict[str, Any], observed: Observed, job: GRPOJob) -> None:
    """Progress and checkpoint from the head: by its report while it runs, by its last words after."""
    attempt = status.get("attempt", 0)
    reports: list[HeadReport] = [observed.head_report] if observed.head_report else []
    last_words = (
        podstate.report(pod)
        for pod in observed.pods
        if podstate.attempt_of(pod) == attempt and podstate.rank_of(pod) == 0
    )
    reports.extend(report for report in last_words if report is not None)
    last = (status.get("restarts") or [{}])[-1]
    for report in reports:
        if report.resumed_from_step is not None and last.get("attempt") == attempt - 1:
            # A checkpoint may have been completed after the last report of the gang that was lost.
            last["fromStep"] = report.resumed_from_step
        if report.progress is not None:
            progress = report.progress.model_dump(by_alias=True, exclude_none=True)
            if not progress.get("totalSteps") and job.batch_plan.total_steps:
                progress["totalSteps"] = job.batch_plan.total_steps
            progress["percent"] = percent(progress["step"], progress.get("totalSteps", 0))
            held = status.get("progress") or {}
            # A new attempt starts at its checkpoint; until its first step the reward of the last one stays on show.
            status["progress"] = {**held, **progress}
        if report.checkpoint is not None:
            held_step = (status.get("checkpoint") or {}).get("step", -1)
            if report.checkpoint.step >= held_step:
                status["checkpoint"] = report.checkpoint.model_dump(by_alias=True, exclude_none=True)
