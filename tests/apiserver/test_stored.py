"""v1alpha1 as the API server stores it: every valid job comes back as the job that it was, and the operator calls it
valid."""

import json
import random
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from grpo_api.errors import InvalidJobError
from grpo_api.job import parse_job
from tests.unit.api.mutations import VALUES, mutated, spec_paths

pytestmark = pytest.mark.apiserver
ROOT = Path(__file__).parents[2]
RANDOM_JOBS = 60
WORKED = {
    "data": {"trainBatchSize": 60, "train": {"reasoningGym": {"task": "chain_sum", "size": 6000}}},
    "rollout": {"n": 12, "tensorModelParallelSize": 2, "logProbMicroBatchSizePerGpu": 8},
    "actor": {"ppoMiniBatchSize": 60, "ppoMicroBatchSizePerGpu": 8, "optim": {"lr": 1e-6, "betas": [0.9, 0.95]}},
    "ref": {"logProbMicroBatchSizePerGpu": 8},
    "trainer": {"nnodes": 1, "nGpusPerNode": 6},
}


def random_jobs(job, count):
    """The example with one field changed to a value that it takes."""
    chance = random.Random(6)
    found = []
    while len(found) < count:
        made = mutated(job(f"random-{len(found)}"), chance.choice(spec_paths()), chance.choice(VALUES))
        try:
            parse_job(made)
        except InvalidJobError:
            continue
        found.append(made)
    return found


def test_what_is_stored_is_read_as_the_same_job(rig, job):
    examples = [YAML(typ="safe").load(path.read_text()) for path in sorted((ROOT / "examples").glob("*.yaml"))]
    jobs = [*examples, job("worked", **WORKED), *random_jobs(job, RANDOM_JOBS)]
    for item in jobs:  # so that none gets pods
        item["spec"]["runPolicy"] = {**(item["spec"].get("runPolicy") or {}), "suspend": True}
    given = {item["metadata"]["name"]: item for item in jobs}
    assert len(given) == len(jobs) >= RANDOM_JOBS + 4
    rig.kubectl("create", "-f", "-", stdin="\n---\n".join(map(json.dumps, jobs)))

    def judged():
        found = json.loads(rig.kubectl("get", "grpojobs", "-o", "json"))["items"]
        return found if all((item.get("status") or {}).get("conditions") for item in found) else None

    stored = rig.wait("a look of the operator at every job", judged)
    assert {item["metadata"]["name"] for item in stored} == set(given)
    for item in stored:
        name = item["metadata"]["name"]
        (valid,) = [one for one in item["status"]["conditions"] if one["type"] == "Valid"]
        assert valid["status"] == "True", (name, valid)
        assert parse_job(item).spec == parse_job(given[name]).spec, name
    versions = json.loads(rig.kubectl("get", "crd", "grpojobs.grpo.dev", "-o", "jsonpath={.status.storedVersions}"))
    assert versions == ["v1alpha1"]
