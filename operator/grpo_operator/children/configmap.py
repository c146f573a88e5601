"""The ConfigMap with the trainer's job file and the sources of inline reward functions."""

import json

from grpo_api import names
from grpo_api.job import GRPOJob
from grpo_operator.children.meta import Object, metadata

JOB_KEY = names.JOB_FILE.rsplit("/", 1)[1]


def reward_key(function: str) -> str:
    return f"{function}.py"


def config_map(job: GRPOJob) -> Object:
    """Small enough for the API server where `validation.size_faults` finds nothing."""
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
