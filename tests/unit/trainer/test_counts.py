"""What the trainer does in a step is what the plan says, for random sizes that fit; and CEL takes those that the plan
takes (tests/apiserver/test_batch_agreement.py)."""

from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings

from grpo_api.batch_plan import make_batch_plan
from grpo_api.job import GRPOJob
from grpo_trainer.controller import Controller
from grpo_trainer.metrics import TrainerMetrics
from grpo_trainer.packing import pack_samples
from grpo_trainer.progress import ProgressServer
from grpo_trainer.prompts import Prompt
from grpo_trainer.rewards.result import RewardResult
from grpo_trainer.rollout.base import Response
from tests.unit.api.test_batch_properties import fitting, make_spec


class RecordingGang:
    """Ranks that answer at once and keep what they were given."""

    head_address = "localhost"

    def __init__(self, size: int):
        self.size = size
        self.given: dict[str, list[list[list[Any]]]] = {"generate": [], "log_probs": [], "update": []}

    def all(self, method: str, *_: Any) -> list[Any]:
        return [{}]

    def each(self, method: str, arguments: list[Any], **_: Any) -> list[Any]:
        self.given[method].append(arguments)
        if method == "generate":
            return [[Response(one.group, one.number, [1], [-1.0], False) for one in part] for part in arguments]
        if method == "log_probs":
            return [[torch.zeros(1)] * len(part) for part in arguments]
        return [{"lr": 0.1, "grad_norm": 0.0}] * self.size


def step_of(job: GRPOJob, server: ProgressServer) -> RecordingGang:
    """One step of the controller."""
    batch = [Prompt([1], "", "", "", {}, {}, None, index) for index in range(job.spec.data.train_batch_size)]
    gang = RecordingGang(job.batch_plan.gpus)
    Controller(
        job,
        gang,  # type: ignore[arg-type]
        loader=SimpleNamespace(steps_per_epoch=1, overlong=0, next_batch=lambda: batch),  # type: ignore[arg-type]
        tokenizer=SimpleNamespace(decode=lambda ids, skip_special_tokens: "x"),
        pool=SimpleNamespace(score=lambda rows: RewardResult([1.0] * len(rows), {})),  # type: ignore[arg-type]
        server=server,
        metrics=TrainerMetrics("team", "job"),
        attempt=0,
    ).run()
    return gang


def lengths(calls: list[list[list[Any]]]) -> set[int]:
    """Of what each rank was given in each call."""
    return {len(part) for by_rank in calls for part in by_rank}


def test_a_step_has_the_plans_counts() -> None:
    server = ProgressServer(0, TrainerMetrics("team", "job"))

    @given(fitting().filter(lambda sizes: sizes["train"] * sizes["n"] <= 1500))
    @settings(deadline=None, max_examples=40, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])
    def check(sizes: dict[str, Any]) -> None:
        job = GRPOJob(metadata={"name": "job", "namespace": "team"}, spec=make_spec(sizes))
        plan = make_batch_plan(job.spec)
        given_to = step_of(job, server).given
        (engines,) = given_to["generate"]
        assert len(engines) == plan.gpus
        assert lengths([engines]) == {plan.responses_per_rollout_worker}
        assert len({id(part) for part in engines}) == plan.rollout_workers
        assert len(given_to["update"]) == plan.updates_per_step
        assert lengths(given_to["update"]) == {plan.mini_batch_responses_per_gpu}
        assert all(sum(map(len, by_rank)) == plan.mini_batch_responses for by_rank in given_to["update"])
        if plan.accumulation_steps is not None:
            packs = pack_samples(given_to["update"][0][0], max_samples=sizes["micro"])
            assert len(packs) == plan.accumulation_steps
        for by_rank in given_to["log_probs"]:  # with one update a step the update's own serve
            assert lengths([by_rank]) == {plan.responses_per_gpu}
            if plan.log_prob_rounds_per_gpu is not None:
                packs = pack_samples(by_rank[-1], max_samples=sizes["log_prob"])
                assert len(packs) == plan.log_prob_rounds_per_gpu

    try:
        check()
    finally:
        server.close()
