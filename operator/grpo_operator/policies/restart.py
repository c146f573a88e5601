"""Whole-gang restart: what caused it, whether it counts, and when the next attempt starts."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from grpo_api import names
from grpo_operator.policies import podstate
from grpo_operator.policies.podstate import Object
from grpo_operator.reasons import UNCOUNTED, Cause, Reason

PEER_GRACE_SECONDS = 5.0
"""A pod that says it lost a peer waits this long for the peer's own state to arrive, which names the true cause."""
NODE_GRACE_SECONDS = 60.0
"""The same while another pod seems to run still: Kubernetes notices after 50 s that a node has fallen silent."""
BACKOFF_BASE_SECONDS = 5.0
BACKOFF_CAP_SECONDS = 300.0
CLOCK_TOLERANCE_SECONDS = 60.0
"""A time further than this in the future was written under a clock that was wrong or has been set back: no wait."""
UNPLACED_BACKOFF_SECONDS = 30.0
"""Pause after a gang that could not be placed whole, so that others may be, or that a node did not take."""

# Causes outside the job first: they explain what the others only suffer from.
_ORDER = [
    *(Cause.PREEMPTED, Cause.EVICTED, Cause.DRAINED, Cause.NODE_LOST, Cause.NODE_REJECTED, Cause.POD_DELETED),
    *(Cause.OOM_KILLED, Cause.FAILED, Cause.PEER_LOST, Cause.STALLED),
]


@dataclass(frozen=True)
class Loss:
    """Why the gang is lost."""

    cause: Cause
    pod: str
    message: str
    wait_seconds: float = 0.0
    """More than 0: look again then, a better cause may turn up."""

    @property
    def counted(self) -> bool:
        return self.cause not in UNCOUNTED


@dataclass(frozen=True)
class UserFault:
    """The trainer said that a retry is of no use (exit codes 64 and 65)."""

    reason: str
    message: str


def user_fault(pods: list[Object]) -> UserFault | None:
    for pod in pods:
        ended = podstate.terminated(pod)
        done = ended is not None and ended.get("exitCode") == names.ExitCode.DONE
        if done and podstate.rank_of(pod) == 0 and podstate.report(pod) is None:
            message = (
                f"{pod['metadata']['name']} ended with exit code 0 but left no report, so it did not run the "
                "trainer: check template.image and the command in template.podOverlay"
            )
            return UserFault(Reason.TRAINER_NOT_RUN, message)
        if ended and ended.get("exitCode") in (names.ExitCode.BAD_SPEC, names.ExitCode.BAD_INPUT):
            found = podstate.report(pod)
            if found is not None:
                return UserFault(found.reason, podstate.without_secrets(found.message))
            return UserFault("BadInput", podstate.describe(pod))
    return None


def find_loss(pods: list[Object], expected: list[str], gang_was_complete: bool, now: datetime) -> Loss | None:
    """Why the gang of this attempt cannot go on, or None. `gang_was_complete`: all its pods have existed.

    Pods are made in the order of their ranks, so that those below the last one that is there have existed too.
    """
    present = {pod["metadata"]["name"] for pod in pods}
    existed = expected if gang_was_complete else expected[: max(map(podstate.rank_of, pods), default=0)]
    found = [Loss(Cause.POD_DELETED, name, f"{name} is gone") for name in existed if name not in present]
    silent = [pod for pod in pods if podstate.is_unreachable(pod)]
    in_doubt = any(pod["status"].get("phase") == "Running" and not podstate.has_ended(pod) for pod in pods)
    grace = NODE_GRACE_SECONDS if in_doubt and not silent else PEER_GRACE_SECONDS
    for pod in pods:
        if (cause := podstate.cause(pod)) is not None:
            wait = 0.0
            if cause is Cause.PEER_LOST:
                since = podstate.seconds_since((podstate.terminated(pod) or {}).get("finishedAt"), now)
                wait = max(0.0, grace - since) if since > -CLOCK_TOLERANCE_SECONDS else 0.0
                found += [Loss(Cause.NODE_LOST, item["metadata"]["name"], silence(item)) for item in silent]
            found.append(Loss(cause, pod["metadata"]["name"], podstate.describe(pod), wait))
    return min(found, key=lambda loss: _ORDER.index(loss.cause), default=None)


def silence(pod: Object) -> str:
    """Of a pod whose node does not answer. Its kubelet may come back, so that alone is no loss."""
    since = podstate.condition(pod, "Ready").get("lastTransitionTime", "?")
    return f"node {pod['spec'].get('nodeName')} of {pod['metadata']['name']} does not answer since {since}"


def next_start(restarts: list[dict[str, Any]], now: datetime) -> datetime | None:
    """When the pods of the next attempt may be made; None for at once."""
    if not restarts:
        return None
    decided = datetime.fromisoformat(restarts[-1]["time"])
    if (decided - now).total_seconds() > CLOCK_TOLERANCE_SECONDS:
        return None
    return decided + timedelta(seconds=backoff_seconds(restarts))


def backoff_seconds(restarts: list[dict[str, Any]]) -> float:
    """Pause before the next attempt: 5 s doubled for each failure in a row that made no progress, at most 300 s."""
    if not restarts:
        return 0.0
    last = restarts[-1]
    if last["cause"] in (Cause.SCHEDULE_TIMEOUT, Cause.NODE_REJECTED):
        return UNPLACED_BACKOFF_SECONDS
    if not last["counted"]:
        return 0.0
    in_a_row = 0
    for entry in reversed(restarts):
        if not entry["counted"] or entry.get("fromStep") != last.get("fromStep"):
            break
        in_a_row += 1
    return float(min(BACKOFF_CAP_SECONDS, BACKOFF_BASE_SECONDS * 2 ** (in_a_row - 1)))
