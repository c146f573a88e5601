"""A GRPOJob from a YAML file."""

from typing import Any

from grpo_api.errors import FieldError, InvalidJobError
from grpo_api.job import GRPOJob, parse_job
from grpo_api.names import API_VERSION, KIND, ExitCode
from grpo_api.validation import size_faults
from grpoctl.errors import CliError
from grpoctl.yamlfile import read_yaml

__all__ = ["read_job", "read_yaml"]


def read_job(file: str) -> tuple[dict[str, Any], GRPOJob]:
    """The object as it stands in the file, and parsed. Raises CliError that lists every fault."""
    raw = read_yaml(file)
    _check_kind(file, raw)
    faults = [
        FieldError(key, None, f"is missing: add {key}: {value}")
        for key, value in (("apiVersion", API_VERSION), ("kind", KIND))
        if raw.get(key) is None
    ]
    try:
        job = parse_job(raw)
        faults += size_faults(job.spec)
    except InvalidJobError as error:
        faults += error.faults
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise CliError("\n  ".join([f"{file}: {count}", *map(str, faults)]), ExitCode.BAD_SPEC)
    return raw, job


def _check_kind(file: str, raw: dict[str, Any]) -> None:
    """One clear sentence for a file of another kind, instead of a fault for each of its fields."""
    kind = raw.get("kind")
    if kind == "List" and isinstance(raw.get("items"), list):
        raise CliError(f"{file} holds a List of {len(raw['items'])}; it must hold one {KIND}", ExitCode.BAD_SPEC)
    if isinstance(kind, str) and kind != KIND and "spec" not in raw:
        raise CliError(f"{file} holds a {kind}; it must hold one {KIND}", ExitCode.BAD_SPEC)
