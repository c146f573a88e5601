"""`parse_job` sees all that the API server sees: the batch rules field by field, and any value in any field."""

import random
import re

import pytest

from grpo_api.errors import InvalidJobError
from grpo_api.job import parse_job
from tests.apiserver.admission_support import verdicts
from tests.unit.api.mutations import VALUES, mutated, spec_paths

pytestmark = pytest.mark.apiserver
SAMPLE, MUTATIONS = 120, 400


def random_sections(chance: random.Random) -> dict:
    """Sizes of which some fit and some do not; small ones, so that both happen often."""
    size = [1, 2, 3, 4, 6, 8, 12]

    def maybe(*values: int) -> int | None:
        return chance.choice([None] * 4 * len(values) + list(values))

    return {
        "data": {
            "trainBatchSize": chance.choice([4, 8, 12, 24, 24]),
            "train": {"reasoningGym": {"task": "chain_sum", "size": chance.choice([5, 100, 100, 100])}},
            "maxPromptLength": 50,
            "maxResponseLength": 50,
        },
        "rollout": {
            "n": chance.choice([2, 3, 4, 8]),
            "engine": chance.choice(["vllm", "vllm", "vllm", "hf"]),
            "tensorModelParallelSize": chance.choice([1, 1, 1, 2, 3, 4]),
            "logProbMicroBatchSizePerGpu": maybe(*size),
            "logProbMaxTokenLenPerGpu": maybe(99, 100),
        },
        "actor": {
            "ppoMiniBatchSize": chance.choice([2, 3, 4, 4, 4, 6]),
            "ppoMicroBatchSizePerGpu": maybe(*size),
            "ppoMaxTokenLenPerGpu": maybe(99, 100),
        },
        "ref": {"logProbMicroBatchSizePerGpu": maybe(*size), "logProbMaxTokenLenPerGpu": maybe(99, 100)},
        "trainer": {"nnodes": chance.choice([1, 1, 1, 2, 3]), "nGpusPerNode": chance.choice([1, 2, 4, 6])},
    }


def test_cel_and_parse_job_agree(plane, job):
    chance = random.Random(4)
    objects = [job(f"sample-{index}", **random_sections(chance)) for index in range(SAMPLE)]
    accepted = 0
    for item, said in zip(objects, verdicts(plane, objects), strict=True):
        by_server = set(re.findall(r"(spec\.[A-Za-z.]+): Invalid value", said))
        try:
            parse_job(item)
            by_us = set()
        except InvalidJobError as error:
            by_us = {fault.path for fault in error.faults}
        assert by_server == by_us, (item["spec"], said)
        assert bool(said) == bool(by_us), said
        accepted += not said
    assert SAMPLE // 10 <= accepted <= SAMPLE - SAMPLE // 10, accepted


def test_what_the_server_refuses_is_refused_by_parse_job(plane, job):
    chance = random.Random(5)
    mutations = [(chance.choice(spec_paths()), chance.choice(VALUES)) for _ in range(MUTATIONS)]
    objects = [mutated(job(f"mutation-{index}"), *mutation) for index, mutation in enumerate(mutations)]
    refused = 0
    for (path, value), item, said in zip(mutations, objects, verdicts(plane, objects), strict=True):
        if said:
            refused += 1
            try:
                parse_job(item)
            except InvalidJobError:
                continue
            raise AssertionError(f"{path} = {value!r} passes parse_job, and the API server says: {said}")
    assert refused > MUTATIONS // 4
