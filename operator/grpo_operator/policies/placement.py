"""All or nothing: part of a gang does not hold resources for long while another part has none."""

from datetime import datetime

from grpo_operator.policies.podstate import Object, condition, is_scheduled, seconds_since
from grpo_operator.policies.restart import Loss
from grpo_operator.reasons import Cause


def placement_loss(
    pods: list[Object], expected: int, timeout: float, now: datetime
) -> tuple[Loss | None, float | None]:
    """A loss where the gang has been partly placed for `timeout` seconds; else when (in seconds) to look again."""
    placed = [pod for pod in pods if is_scheduled(pod)]
    if not placed or len(placed) == expected:
        return None, None
    held = max(seconds_since(condition(pod, "PodScheduled").get("lastTransitionTime"), now) for pod in placed)
    if held == float("inf"):
        return None, 5.0
    if held < timeout:
        return None, timeout - held
    message = (
        f"{len(placed)} of {expected} pods were placed for {held:.0f} s while the others were not "
        "(gangScheduling.scheduleTimeoutSeconds); all are deleted and tried again"
    )
    return Loss(Cause.SCHEDULE_TIMEOUT, placed[0]["metadata"]["name"], message), None
