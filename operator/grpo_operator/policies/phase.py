"""The display word and the conditions of a gang: what its pods, the API server and the head say, in that order."""

from datetime import datetime
from typing import Any

from grpo_api.names import Condition, State
from grpo_operator import status
from grpo_operator.gang.base import Waiting
from grpo_operator.kube import Object
from grpo_operator.observe import Observed
from grpo_operator.policies import podstate, problems, restart
from grpo_operator.reasons import Reason

_TRAINING = frozenset({"training", "saving", "done"})


def compute(
    new: dict[str, Any],
    observed: Observed,
    pods: list[Object],
    total: int,
    waiting: Waiting | None,
    now: datetime,
) -> float | None:
    """State, reason and conditions of a gang that nothing is wrong with, or that cannot start yet.

    `waiting` is what its backend knows of why a gang has no nodes; it tells more than what single pods say.
    Returns the seconds after which an obstacle is worth telling, if it still stands then.
    """
    scheduled = sum(map(podstate.is_scheduled, pods))
    if len(pods) < total or scheduled == total:
        waiting = None
    fault, problem, wait = observed.create_fault, problems.pod_problem(pods), None
    if problem is None and scheduled < total:
        claims = [item for (kind, _), item in observed.children.items() if kind == "PersistentVolumeClaim"]
        problem, wait = problems.placement_problem(pods, claims, now)
    if problem is None and len(pods) == scheduled == total:
        problem = next((_of_pod(pod, observed) for pod in pods if pod["metadata"]["uid"] in observed.pod_events), None)
    if scheduled == total:
        status.set_condition(new, Condition.SCHEDULED, "True", Reason.ALL_PODS_SCHEDULED, f"{total} pods", now)
    elif len(pods) == total:
        reason, message = problem or (Reason.WAITING_FOR_SCHEDULER, f"{scheduled} of {total} pods are scheduled")
        if waiting is not None:
            reason, message = waiting.reason, waiting.message
        status.set_condition(new, Condition.SCHEDULED, "False", reason, message, now)
    if len(pods) < total:
        reason, message = (fault.reason, fault.message) if fault else (str(Reason.CREATING_PODS), "")
        state = State.RESTARTING if new["attempt"] and new.get("state") == State.RESTARTING else State.PENDING
        not_running(new, state, reason, message, now)
    elif waiting is not None:
        not_running(new, waiting.state, waiting.reason, waiting.message, now)
    elif problem is not None and scheduled < total:
        not_running(new, State.SCHEDULING, *problem, now)
    elif scheduled < total:
        message = f"{scheduled} of {total} pods are scheduled"
        not_running(new, State.SCHEDULING, Reason.WAITING_FOR_SCHEDULER, message, now)
    elif problem is not None:
        not_running(new, State.STARTING, *problem, now)
    elif all(map(podstate.is_ready, pods)) and observed.head_report and observed.head_report.phase in _TRAINING:
        status.set_state(new, State.RUNNING, Reason.TRAINING, "")
        status.set_condition(new, Condition.RUNNING, "True", Reason.TRAINING, "", now)
    elif new.get("state") == State.RUNNING and new.get("createdAttempt") == new["attempt"]:
        # A probe or a progress poll that failed once says nothing; pods that end are told by their phase.
        reason, message = Reason.TRAINING, ""
        if silent := [pod for pod in pods if podstate.is_unreachable(pod)]:
            reason, message = Reason.NODE_UNREACHABLE, restart.silence(silent[0])
        status.set_state(new, State.RUNNING, reason, message)
        status.set_condition(new, Condition.RUNNING, "True", reason, message, now)
    else:
        ready = sum(map(podstate.is_ready, pods))
        phase = observed.head_report.phase if observed.head_report else "starting"
        not_running(new, State.STARTING, Reason.STARTING, f"{ready} of {total} pods are ready; head: {phase}", now)
    return wait


def _of_pod(pod: Object, observed: Observed) -> tuple[str, str]:
    reason, message = observed.pod_events[pod["metadata"]["uid"]]
    return reason, f"{pod['metadata']['name']}: {message}"


def not_running(new: dict[str, Any], state: State, reason: str, message: str, now: datetime) -> None:
    status.set_state(new, state, reason, message)
    status.set_condition(new, Condition.RUNNING, "False", reason, message, now)
    if state is State.RESTARTING:
        status.set_condition(new, Condition.SCHEDULED, "False", reason, message, now)


def end(new: dict[str, Any], state: State, reason: str, message: str, now: datetime) -> None:
    status.set_state(new, state, reason, message)
    status.set_condition(new, Condition.RUNNING, "False", Reason.ENDED, "", now)
    ended = Condition.SUCCEEDED if state is State.SUCCEEDED else Condition.FAILED
    status.set_condition(new, ended, "True", reason, message, now)
    new["completionTime"] = status.timestamp(now)
