"""GRPOJob, and how a raw object becomes one."""

import re
from typing import Any, Literal

from pydantic import ConfigDict, ValidationError

from grpo_api.base import ApiModel, FreeObject, cel
from grpo_api.batch_plan import BatchPlan, make_batch_plan
from grpo_api.errors import FieldError, InvalidJobError
from grpo_api.explain import explain, similar
from grpo_api.fields import as_admitted, fields
from grpo_api.names import CONTROLLER, MAX_JOB_NAME_LENGTH
from grpo_api.spec.root import GRPOJobSpec
from grpo_api.validation import validate_spec

__all__ = ["JOB_NAME_RULE", "GRPOJob", "GRPOJobSpec", "is_managed_elsewhere", "parse_job"]

JOB_NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
JOB_NAME_RULE = cel(
    f"self.metadata.name.size() <= {MAX_JOB_NAME_LENGTH} && self.metadata.name.matches('{JOB_NAME_PATTERN}')",
    f"metadata.name must start with a letter, hold only lower-case letters, digits and '-', and have at most "
    f"{MAX_JOB_NAME_LENGTH} characters: pods and their DNS names are made from it",
)


class GRPOJob(ApiModel):
    """One training job."""

    model_config = ConfigDict(extra="ignore")

    api_version: Literal["grpo.dev/v1alpha1"] = "grpo.dev/v1alpha1"
    kind: Literal["GRPOJob"] = "GRPOJob"
    metadata: FreeObject
    spec: GRPOJobSpec

    @property
    def name(self) -> str:
        return str(self.metadata["name"])

    @property
    def namespace(self) -> str:
        return str(self.metadata.get("namespace") or "default")

    @property
    def batch_plan(self) -> BatchPlan:
        """Derived batch numbers; `parse_job` has already refused a spec that has none."""
        return make_batch_plan(self.spec)

    def dump(self) -> dict[str, Any]:
        """As JSON-ready dict, camelCase, every default written out: the form of the trainer's job file."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def is_managed_elsewhere(raw: dict[str, Any]) -> bool:
    """Whether `runPolicy.managedBy` gives the job to another controller. Of a raw object, valid or not."""
    manager = (raw.get("spec", {}).get("runPolicy") or {}).get("managedBy")
    return manager not in (None, CONTROLLER)


def parse_job(raw: dict[str, Any]) -> GRPOJob:
    """Validate a GRPOJob object (as YAML or the API server gives it).

    Sees every fault that the API server sees at admission, and more. Raises InvalidJobError, which lists each fault by
    field path with its value and repair.
    """
    faults = [*_top_level_faults(raw), *_name_faults(raw.get("metadata"))]
    try:
        job = GRPOJob.model_validate(as_admitted(raw, GRPOJob), strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        raise InvalidJobError([*faults, *(explain(item, GRPOJob) for item in error.errors())]) from error
    if faults := [*faults, *validate_spec(job.spec)]:
        raise InvalidJobError(faults)
    return job


def _top_level_faults(raw: dict[str, Any]) -> list[FieldError]:
    known = [*fields(GRPOJob), "status"]
    faults = []
    for key, value in raw.items():
        if key not in known:
            meant = similar(str(key), known)
            below = fields(GRPOJobSpec)
            repair = f"did you mean {meant}?" if meant else "it belongs below spec" if key in below else "remove it"
            faults.append(FieldError(str(key), value, f"unknown field; {repair}"))
    return faults


def _name_faults(metadata: Any) -> list[FieldError]:
    """What the API server says of the name."""
    if not isinstance(metadata, dict):
        return []  # the models say so
    name = metadata.get("name")
    if name is None:
        return [FieldError("metadata.name", None, "is missing; give the job a name")]
    if not isinstance(name, str):
        return [FieldError("metadata.name", name, "must be text: put it in quotes")]
    if re.fullmatch(JOB_NAME_PATTERN, name) and len(name) <= MAX_JOB_NAME_LENGTH:
        return []
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower())
    better = re.sub(r"^[^a-z]+", "", plain)[:MAX_JOB_NAME_LENGTH].strip("-")
    advice = f"; try {better}" if better else ""
    return [FieldError("metadata.name", name, JOB_NAME_RULE["message"].removeprefix("metadata.name ") + advice)]
