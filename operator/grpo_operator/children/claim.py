"""The checkpoint claim made from `checkpoint.claimTemplate`."""

from grpo_api import names
from grpo_api.job import GRPOJob
from grpo_operator.children.meta import Object, metadata


def claim(job: GRPOJob) -> Object | None:
    """The claim, or None where the spec has no template. Without an owner where it must outlive the job."""
    template = job.spec.checkpoint.claim_template
    if template is None:
        return None
    spec: Object = {
        "accessModes": list(template.access_modes),
        "resources": {"requests": {"storage": str(template.size)}},
    }
    if template.storage_class_name:
        spec["storageClassName"] = template.storage_class_name
    owned = job.spec.checkpoint.when_deleted == "Delete"
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(job, names.claim_name(job.name), owned=owned),
        "spec": spec,
    }


def mounted_claim(job: GRPOJob) -> str | None:
    """Name of the claim that the pods mount."""
    if job.spec.checkpoint.claim_template is not None:
        return names.claim_name(job.name)
    return job.spec.checkpoint.claim_name
