"""The batch plan over random sizes: its parts multiply back to the whole, and faults are exactly what does not fit."""

from math import gcd
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_api.batch_plan import batch_faults, make_batch_plan
from grpo_api.errors import InvalidJobError
from grpo_api.job import GRPOJobSpec


def make_spec(sizes: dict[str, Any]) -> GRPOJobSpec:
    return GRPOJobSpec.model_validate(
        {
            "model": {"path": "/models/m"},
            "data": {
                "train": {"reasoningGym": {"task": "chain_sum", "size": sizes["rows"]}},
                "trainBatchSize": sizes["train"],
                "maxPromptLength": 100,
                "maxResponseLength": 100,
            },
            "reward": {"functions": [{"name": "correct", "builtin": {"rule": "numeric"}}]},
            "rollout": {
                "n": sizes["n"],
                "tensorModelParallelSize": sizes["tp"],
                "logProbMicroBatchSizePerGpu": sizes["log_prob"],
            },
            "actor": {
                "ppoMiniBatchSize": sizes["mini"],
                "ppoMicroBatchSizePerGpu": sizes["micro"],
                "ppoEpochs": sizes["epochs"],
            },
            "ref": {"logProbMicroBatchSizePerGpu": sizes["ref"]},
            "trainer": {"nnodes": sizes["nodes"], "nGpusPerNode": sizes["gpus"], "totalEpochs": 1},
        }
    )


def divisors(value: int) -> list[int]:
    return [size for size in range(1, value + 1) if value % size == 0]


@st.composite
def fitting(draw: st.DrawFn) -> dict[str, Any]:
    """Sizes that fit each other."""
    nodes, gpus, n = draw(st.integers(1, 8)), draw(st.integers(1, 8)), draw(st.integers(2, 24))
    whole = nodes * gpus
    mini = whole // gcd(whole, n) * draw(st.integers(1, 6))
    train = mini * draw(st.integers(1, 6))

    def cut(responses: int) -> int | None:
        return draw(st.one_of(st.none(), st.sampled_from(divisors(responses // whole))))

    return {
        "nodes": nodes,
        "gpus": gpus,
        "n": n,
        "mini": mini,
        "train": train,
        "tp": draw(st.sampled_from(divisors(gpus))),
        "micro": cut(mini * n),
        "log_prob": cut(train * n),
        "ref": cut(train * n),
        "epochs": draw(st.integers(1, 4)),
        "rows": draw(st.integers(train, 50 * train)),
    }


@given(fitting())
@settings(deadline=None)
def test_parts_multiply_back_to_the_whole(sizes):
    spec = make_spec(sizes)
    plan = make_batch_plan(spec)
    assert plan.gpus == plan.rollout_workers * sizes["tp"] == sizes["nodes"] * sizes["gpus"]
    assert plan.responses_per_step == sizes["train"] * sizes["n"]
    assert plan.rollout_workers * plan.responses_per_rollout_worker == plan.responses_per_step
    assert plan.gpus * plan.responses_per_gpu == plan.responses_per_step
    assert plan.gpus * plan.mini_batch_responses_per_gpu == plan.mini_batch_responses
    assert plan.updates_per_step * plan.mini_batch_responses == plan.responses_per_step * sizes["epochs"]
    if plan.log_prob_rounds_per_gpu is not None:
        assert plan.log_prob_rounds_per_gpu * sizes["log_prob"] == plan.responses_per_gpu
    if plan.accumulation_steps is not None:
        assert plan.accumulation_steps * sizes["micro"] == plan.mini_batch_responses_per_gpu
    assert plan.steps_per_epoch * sizes["train"] <= sizes["rows"] < (plan.steps_per_epoch + 1) * sizes["train"]


small = st.integers(1, 12)
some = st.one_of(st.none(), small)


@given(
    st.fixed_dictionaries(
        {
            **dict.fromkeys(("nodes", "gpus", "mini", "train", "tp", "epochs"), small),
            **dict.fromkeys(("micro", "log_prob", "ref"), some),
            "n": st.integers(2, 12),
            "rows": st.integers(1, 30),
        }
    )
)
@settings(deadline=None, max_examples=300)
def test_faults_are_exactly_what_does_not_fit(sizes):
    spec = make_spec(sizes)
    gpus, n = sizes["nodes"] * sizes["gpus"], sizes["n"]
    wanted = set()
    if sizes["gpus"] % sizes["tp"]:
        wanted.add("spec.rollout.tensorModelParallelSize")
    if sizes["train"] % sizes["mini"] or sizes["mini"] * n % gpus:
        wanted.add("spec.actor.ppoMiniBatchSize")
    if sizes["rows"] < sizes["train"]:
        wanted.add("spec.data.train.reasoningGym.size")
    for path, size, responses in (
        ("spec.actor.ppoMicroBatchSizePerGpu", sizes["micro"], sizes["mini"] * n),
        ("spec.rollout.logProbMicroBatchSizePerGpu", sizes["log_prob"], sizes["train"] * n),
        ("spec.ref.logProbMicroBatchSizePerGpu", sizes["ref"], sizes["train"] * n),
    ):
        if size is not None and responses % gpus == 0 and responses // gpus % size:
            wanted.add(path)
    assert {fault.path for fault in batch_faults(spec)} == wanted
    if wanted:
        with pytest.raises(InvalidJobError):
            make_batch_plan(spec)
    else:
        make_batch_plan(spec)
