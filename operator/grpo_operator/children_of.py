"""All children that a job should have, in order of creation."""

from dataclasses import dataclass
from typing import Any

from grpo_api.job import GRPOJob
from grpo_operator.children.claim import claim
from grpo_operator.children.configmap import config_map
from grpo_operator.children.pods import pod
from grpo_operator.children.service import service
from grpo_operator.gang.base import Gang, Waiting
from grpo_operator.gang.choice import choose
from grpo_operator.kube import Object
from grpo_operator.observe import Observed
from grpo_operator.policies.podstate import attempt_of


@dataclass(frozen=True)
class Wanted:
    """What must exist for an attempt, or why it cannot."""

    manifests: list[Object]
    gang: dict[str, Any]
    """`status.gang`."""
    fault: str | None = None
    waiting: Waiting | None = None
    """Why a gang whose pods are all there has no nodes, where its backend knows."""
    consults: tuple[str, str] | None = None
    """(kind, name) of another controller's object that says more of that."""


def wanted(job: GRPOJob, attempt: int, observed: Observed) -> Wanted:
    pods = [pod for pod in observed.pods if attempt_of(pod) == attempt]
    gang = Gang(job, attempt, pods, observed.children, observed.told, observed.consulted)
    in_use = ((observed.job.get("status") or {}).get("gang") or {}).get("backend") if pods else None
    backend, why = choose(job, observed.capabilities, in_use)
    if backend is None:
        return Wanted([], {"backend": job.spec.gang_scheduling.backend, "reason": why}, fault=why)
    made_claim = claim(job)
    made_pods = [
        backend.decorate(pod(job, rank, attempt, observed.default_image), gang)
        for rank in range(job.spec.trainer.nnodes)
    ]
    manifests = [
        *([made_claim] if made_claim else []),
        config_map(job),
        service(job),
        *backend.objects(gang),
        *made_pods,
    ]
    return Wanted(
        manifests,
        {"backend": backend.name, "reason": why},
        waiting=backend.waiting(gang),
        consults=backend.consults(gang),
    )


def spoiled(manifests: list[Object], observed: Observed) -> list[tuple[str, Object]]:
    """Services that somebody has edited, to be made anew: without theirs, the pods of a gang do not find each other.

    The job's file needs no such look, its ConfigMap is immutable; and pods are the restart policy's business.
    """
    return [
        ("Service", found)
        for item in manifests
        if item["kind"] == "Service"
        and (found := observed.children.get(("Service", item["metadata"]["name"]))) is not None
        and not found["metadata"].get("deletionTimestamp")
        and (
            found.get("spec", {}).get("selector") != item["spec"]["selector"]  # one key more and it selects none
            or not _holds(found.get("spec"), item["spec"])
        )
    ]


def _holds(found: Any, asked: Any) -> bool:
    """Whether `found` has all that was asked for; the API server adds defaults of its own."""
    if isinstance(asked, dict):
        return isinstance(found, dict) and all(_holds(found.get(key), value) for key, value in asked.items())
    if isinstance(asked, list):
        same_length = isinstance(found, list) and len(found) == len(asked)
        return same_length and all(_holds(*pair) for pair in zip(found, asked, strict=True))
    return bool(found == asked)
