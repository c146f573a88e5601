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


def goes_last(item: Object) -> Object:
    """When its job is deleted, it goes after all that `belongs_to` it: the garbage collector keeps to this finalizer,
    and takes it away itself. A deletion in the background, as the operator's are, does not wait for anything."""
    item["metadata"]["finalizers"] = ["foregroundDeletion"]
    return item


def belongs_to(item: Object, api_version: str, kind: str, name: str) -> Object:
    """One more owner, which `goes_last`. Its UID is not known before it exists: `apply.create_all` fills it in."""
    owner = {"apiVersion": api_version, "kind": kind, "name": name, "uid": "", "blockOwnerDeletion": True}
    item["metadata"]["ownerReferences"].append(owner)
    return item


def metadata(job: GRPOJob, name: str, *, owned: bool = True, more_labels: dict[str, str] | None = None) -> Object:
    result: Object = {"name": name, "namespace": job.namespace, "labels": {**labels(job), **(more_labels or {})}}
    if owned:
        result["ownerReferences"] = [owner(job)]
    return result
