"""All children that a job should have, in order of creation."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from grpo_api import names
from grpo_api.job import GRPOJob
from grpo_api.names import State
from grpo_operator.children.claim import claim
from grpo_operator.children.configmap import config_map
from grpo_operator.children.pods import pod
from grpo_operator.children.service import service
from grpo_operator.gang.base import Gang, Waiting
from grpo_operator.gang.choice import choose
from grpo_operator.kube import Object, kind_of
from grpo_operator.observe import Observed
from grpo_operator.policies.podstate import attempt_of
from grpo_operator.reasons import Reason


@dataclass(frozen=True)
class Wanted:
    """What must exist for an attempt, or why it cannot."""

    makers: dict[tuple[str, str], Callable[[], Object]]
    """Who makes each child, by its (kind, name), in order of creation. Mostly all are there and none is called."""
    gang: dict[str, Any]
    """`status.gang`."""
    fault: str | None = None
    left_alone: bool = False
    """The gang is whole, and its backend's API or rights are gone: its objects stay as they are."""
    waiting: Waiting | None = None
    """Why a gang whose pods are all there has no nodes, where its backend knows."""
    consults: tuple[str, str] | None = None
    """(kind, name) of another controller's object that says more of that."""

    @property
    def manifests(self) -> list[Object]:
        return [make() for make in self.makers.values()]


def wanted(job: GRPOJob, attempt: int, observed: Observed) -> Wanted:
    pods = [pod for pod in observed.pods if attempt_of(pod) == attempt]
    gang = Gang(job, attempt, pods, observed.children, observed.told, observed.consulted)
    in_use = ((observed.job.get("status") or {}).get("gang") or {}).get("backend") if pods else None
    backend, why = choose(job, observed.capabilities, in_use, whole=len(pods) == job.spec.trainer.nnodes)
    if backend is None:
        return Wanted({}, {"backend": job.spec.gang_scheduling.backend, "reason": why}, fault=why)
    makers: dict[tuple[str, str], Callable[[], Object]] = {}
    if (made_claim := claim(job)) is not None:
        makers[kind_of(made_claim), made_claim["metadata"]["name"]] = lambda: made_claim
    makers["ConfigMap", names.config_map_name(job.name)] = partial(config_map, job)
    makers["Service", names.service_name(job.name)] = partial(service, job)
    left_alone = backend.refusal(job) is not None
    for item in [] if left_alone else backend.objects(gang):
        makers[kind_of(item), item["metadata"]["name"]] = partial(dict, item)

    def make_pod(rank: int) -> Object:
        return backend.decorate(pod(job, rank, attempt, observed.default_image), gang)

    for rank in range(job.spec.trainer.nnodes):
        makers["Pod", names.pod_name(job.name, rank)] = partial(make_pod, rank)
    return Wanted(
        makers,
        {"backend": backend.name, "reason": why},
        left_alone=left_alone,
        waiting=Waiting(State.PENDING, Reason.UNSCHEDULABLE, why) if left_alone else backend.waiting(gang),
        consults=None if left_alone else backend.consults(gang),
    )


def spoiled(made: Wanted, observed: Observed) -> list[tuple[str, Object]]:
    """Services that somebody has edited, to be made anew: without theirs, the pods of a gang do not find each other.

    The job's file needs no such look, its ConfigMap is immutable; and pods are the restart policy's business.
    """
    result = []
    for (kind, name), make in made.makers.items():
        found = observed.children.get((kind, name))
        if kind != "Service" or found is None or found["metadata"].get("deletionTimestamp"):
            continue
        asked = make()["spec"]
        if (
            found.get("spec", {}).get("selector") != asked["selector"]  # one key more and it selects none
            or not _holds(found.get("spec"), asked)
        ):
            result.append((kind, found))
    return result


def _holds(found: Any, asked: Any) -> bool:
    """Whether `found` has all that was asked for; the API server adds defaults of its own."""
    if isinstance(asked, dict):
        return isinstance(found, dict) and all(_holds(found.get(key), value) for key, value in asked.items())
    if isinstance(asked, list):
        same_length = isinstance(found, list) and len(found) == len(asked)
        return same_length and all(_holds(*pair) for pair in zip(found, asked, strict=True))
    return bool(found == asked)
