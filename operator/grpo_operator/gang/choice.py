"""Which backend a job uses."""

from grpo_api.job import GRPOJob
from grpo_operator.gang.base import Capabilities, GangBackend
from grpo_operator.gang.coscheduling import CoschedulingGang
from grpo_operator.gang.gated import GatedGang
from grpo_operator.gang.kai import KaiGang
from grpo_operator.gang.kueue import KueueGang
from grpo_operator.gang.native import NativeGang
from grpo_operator.gang.none import NoGang
from grpo_operator.gang.volcano import VolcanoGang

BACKENDS: dict[str, type[GangBackend]] = {
    backend.name: backend
    for backend in (KueueGang, NativeGang, VolcanoGang, CoschedulingGang, KaiGang, GatedGang, NoGang)
}
"""By the name in `gangScheduling.backend`; `auto` takes the first that does not refuse the job, of those with queues
where the job names one and of the others where it does not."""
KINDS = frozenset(kind for backend in BACKENDS.values() for kind in backend.kinds)
"""Every kind that a backend makes."""
READ_KINDS = frozenset(kind for backend in BACKENDS.values() for kind in backend.reads)
"""Every kind that another controller makes for a backend's gangs."""


def choose(
    job: GRPOJob, capabilities: Capabilities, in_use: str | None = None, whole: bool = False
) -> tuple[GangBackend | None, str]:
    """(the backend, or None where none takes this job; why).

    `in_use` is the backend by which this attempt's pods were made: while they are there it stays, whatever the cluster
    has come to offer since, or offers no longer: pods of two backends are no gang, and another backend would take away
    the objects of pods that run. If the gang is `whole`, nothing more is made by it, and it may refuse the job.
    """
    asked = job.spec.gang_scheduling.backend
    held = asked == "auto" and in_use in BACKENDS
    name = in_use if held and in_use else asked
    if name != "auto":
        backend = BACKENDS[name](capabilities)
        if (refused := backend.refusal(job)) is not None:
            fault = f"gangScheduling.backend is {asked}, but {refused}"
            if held:
                fault = (
                    f"this attempt's pods were made by the backend {name}, but {refused}; or suspend the job and "
                    "resume it, which makes new pods by what the cluster has"
                )
            return backend if whole else None, fault
        return backend, backend.reason() if held else "asked for in gangScheduling.backend"
    refused = None
    queued = job.spec.gang_scheduling.queue is not None
    for backend in (kind(capabilities) for kind in BACKENDS.values() if kind.automatic and kind.has_queues is queued):
        if (refused := backend.refusal(job)) is None:
            return backend, backend.reason()
    return None, f"gangScheduling.backend is auto, but {refused}"
