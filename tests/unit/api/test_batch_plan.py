"""The batch plan against worked cases from verl's documentation and from an article that many newcomers start from."""

import pytest

from grpo_api.batch_plan import batch_faults, make_batch_plan
from grpo_api.errors import InvalidJobError
from grpo_api.job import GRPOJobSpec


def make_spec(
    train=8, n=8, mini=8, nodes=1, gpus=1, tp=1, micro=None, log_prob=None, ref=None, budget=None, **trainer
) -> GRPOJobSpec:
    return GRPOJobSpec.model_validate(
        {
            "model": {"path": "/models/m"},
            "data": {
                "train": {"reasoningGym": {"task": "basic_arithmetic", "size": max(1000, train)}},
                "trainBatchSize": train,
            },
            "reward": {"functions": [{"name": "correct", "builtin": {"rule": "numeric"}}]},
            "rollout": {"n": n, "tensorModelParallelSize": tp, "logProbMicroBatchSizePerGpu": log_prob},
            "actor": {
                "ppoMiniBatchSize": mini,
                "ppoMicroBatchSizePerGpu": micro,
                "ppoMaxTokenLenPerGpu": budget,
            },
            "ref": {"logProbMicroBatchSizePerGpu": ref},
            "trainer": {"nnodes": nodes, "nGpusPerNode": gpus, **(trainer or {"totalSteps": 5})},
        }
    )


def test_article_case():
    """60 prompts, n 12, 6 GPUs, TP 2, log-prob micro 8, mini 60, micro 8."""
    plan = make_batch_plan(make_spec(train=60, n=12, mini=60, gpus=6, tp=2, micro=8, log_prob=8))
    assert plan.responses_per_step == 720
    assert (plan.rollout_workers, plan.responses_per_rollout_worker) == (3, 240)
    assert (plan.responses_per_gpu, plan.log_prob_rounds_per_gpu) == (120, 15)
    assert (plan.mini_batch_responses, plan.mini_batch_responses_per_gpu) == (720, 120)
    assert (plan.accumulation_steps, plan.updates_per_step) == (15, 1)


def test_verl_case():
    """1024 prompts, n 5, mini 256, 8 GPUs, micro 4."""
    plan = make_batch_plan(make_spec(train=1024, n=5, mini=256, gpus=8, micro=4))
    assert plan.responses_per_step == 5120
    assert (plan.updates_per_step, plan.mini_batch_responses) == (4, 1280)
    assert (plan.mini_batch_responses_per_gpu, plan.accumulation_steps) == (160, 40)


def test_epochs_give_steps_where_rows_are_known():
    plan = make_batch_plan(make_spec(totalEpochs=2))
    assert (plan.steps_per_epoch, plan.total_steps) == (125, 250)


@pytest.mark.parametrize(
    ("sizes", "path", "words"),
    [
        ({"gpus": 6, "tp": 4, "n": 12}, "spec.rollout.tensorModelParallelSize", "try 3 or 6"),
        ({"train": 60, "mini": 7}, "spec.actor.ppoMiniBatchSize", "try 6 or 10"),
        ({"train": 6, "mini": 3, "n": 3, "gpus": 2}, "spec.actor.ppoMiniBatchSize", "3 x 3 = 9 responses"),
        ({"micro": 5}, "spec.actor.ppoMicroBatchSizePerGpu", "64 / 1 GPUs = 64; try 4 or 8"),
        ({"log_prob": 7}, "spec.rollout.logProbMicroBatchSizePerGpu", "try 4 or 8"),
        ({"ref": 7}, "spec.ref.logProbMicroBatchSizePerGpu", "try 4 or 8"),
        ({"budget": 1000}, "spec.actor.ppoMaxTokenLenPerGpu", "1024 or more"),
    ],
)
def test_faults_name_field_numbers_and_repair(sizes, path, words):
    faults = batch_faults(make_spec(**sizes))
    assert [fault.path for fault in faults] == [path]
    assert words in str(faults[0])
    with pytest.raises(InvalidJobError, match=path.replace(".", r"\.")):
        make_batch_plan(make_spec(**sizes))


def test_every_advised_value_works():
    """What the message advises must itself pass, over a grid of sizes."""
    for gpus in (1, 2, 3, 4, 6, 8):
        for train in (6, 8, 12, 60):
            for micro in (2, 3, 5, 7):
                for fault in batch_faults(make_spec(train=train, mini=train, gpus=gpus, n=4, micro=micro)):
                    for advised in fault.message.rsplit("try ", 1)[1].removeprefix("ppoMiniBatchSize ").split(" or "):
                        sizes = {"train": train, "mini": train, "gpus": gpus, "n": 4, "micro": micro}
                        if "Micro" in fault.path:
                            sizes["micro"] = int(advised)
                        else:
                            sizes |= {"mini": int(advised), "train": int(advised), "micro": None}
                        assert not batch_faults(make_spec(**sizes)), (fault, advised)
