"""The ConfigMap with the trainer's job file and the sources of inline reward functions."""

import json

from grpo_api import names
from grpo_api.errors import FieldError
from grpo_api.job import GRPOJob
from grpo_operator.children.meta import Object, metadata

MAX_BYTES = 1_000_000
"""The API server takes 1 MiB, metadata included."""

JOB_KEY = names.JOB_FILE.rsplit("/", 1)[1]


def reward_key(function: str) -> str:
    return f"{function}.py"


def config_map(job: GRPOJob) -> Object:
    document = job.dump()
    document["metadata"] = {key: job.metadata[key] for key in ("name", "namespace", "uid")}
    data = {JOB_KEY: json.dumps(document, sort_keys=True)}
    for function in job.spec.reward.functions:
        if function.python is not None:
            data[reward_key(function.name)] = function.python.source
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, names.config_map_name(job.name)),
        "immutable": True,
        "data": data,
    }


def size_fault(job: GRPOJob) -> FieldError | None:
    """A fault where the job file and the reward sources do not fit into a ConfigMap."""
    size = sum(len(key) + len(value.encode()) for key, value in config_map(job)["data"].items())
    if size <= MAX_BYTES:
        return None
    message = (
        f"the spec and the reward sources take {size} bytes, more than the {MAX_BYTES} of a ConfigMap: move large "
        "sources into the image"
    )
    return FieldError("spec.reward.functions", None, message)
