"""All or nothing: part of a gang does not hold resources for long while another part has none."""

from datetime import datetime

from grpo_operator.gang.gated import released_at
from grpo_operator.policies.podstate import Object, condition, is_scheduled, seconds_since
from grpo_operator.policies.restart import Loss
from grpo_operator.reasons import Cause


def placement_loss(
    pods: list[Object], expected: int, timeout: float, now: datetime
) -> tuple[Loss | None, float | None]:
    """A loss where the gang has been partly placed, or released to the scheduler and not placed whole, for `timeout`
    seconds; else when (in seconds) to look again."""
    placed = [pod for pod in pods if is_scheduled(pod)]
    holding = [pod for pod in pods if is_scheduled(pod) or released_at(pod) is not None]
    if not holding or len(placed) == expected:
        return None, None
    held = max(_held_seconds(pod, now) for pod in holding)
    if held == float("inf"):
        return None, 5.0
    if held < timeout:
        return None, timeout - held
    message = (
        f"{len(placed)} of {expected} pods had nodes after {held:.0f} s, the others had none "
        "(gangScheduling.scheduleTimeoutSeconds); all are deleted and tried again"
    )
    return Loss(Cause.SCHEDULE_TIMEOUT, holding[0]["metadata"]["name"], message), None


def _held_seconds(pod: Object, now: datetime) -> float:
    """Seconds that a pod has kept others from its place: by its node, or by a plan that the scheduler has yet to
    follow (backend gated)."""
    if is_scheduled(pod):
        return seconds_since(condition(pod, "PodScheduled").get("lastTransitionTime"), now)
    return now.timestamp() - (released_at(pod) or 0.0)
