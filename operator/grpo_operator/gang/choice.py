"""Which backend a job uses."""

from grpo_api.job import GRPOJob
from grpo_operator.gang.base import GangBackend
from grpo_operator.gang.native import NativeGang
from grpo_operator.gang.none import NoGang


def choose(job: GRPOJob, native_served: bool) -> tuple[GangBackend | None, str]:
    """The backend, or None where the one asked for is not to be had, and why."""
    asked = job.spec.gang_scheduling.backend
    if asked == "none":
        return NoGang(), "asked for in gangScheduling.backend"
    if native_served:
        return NativeGang(), "the cluster serves scheduling.k8s.io/v1beta1"
    if asked == "native":
        return None, (
            "gangScheduling.backend is native, but the cluster does not serve scheduling.k8s.io/v1beta1 PodGroups: "
            "switch on the feature gate GenericWorkload and that API, or set the backend to auto or none"
        )
    return NoGang(), "the cluster serves no gang API that is supported; pods are scheduled one by one"
