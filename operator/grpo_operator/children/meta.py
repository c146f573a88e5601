"""Metadata that all children share."""

from typing import Any

from grpo_api import names
from grpo_api.job import GRPOJob

Object = dict[str, Any]


def labels(job: GRPOJob) -> dict[str, str]:
    return {
        names.LABEL_NAME: "grpo-trainer",
        names.LABEL_INSTANCE: job.name,
        names.LABEL_COMPONENT: names.COMPONENT_TRAINER,
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        names.LABEL_PART_OF: names.PART_OF,
        names.LABEL_JOB_NAME: job.name,
    }


def owner(job: GRPOJob) -> Object:
    """Deletion of the job takes the child along, with the operator up or down."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": job.name,
        "uid": job.metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }


def metadata(job: GRPOJob, name: str, *, owned: bool = True, more_labels: dict[str, str] | None = None) -> Object:
    result: Object = {"name": name, "namespace": job.namespace, "labels": {**labels(job), **(more_labels or {})}}
    if owned:
        result["ownerReferences"] = [owner(job)]
    return result
