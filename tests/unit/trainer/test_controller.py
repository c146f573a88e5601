"""Whether and from where a run begins, and what ends it, on a gang that computes nothing."""

import json
import logging
import re
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grpo_trainer.checkpoint_files import CheckpointInfo
from grpo_trainer.controller import Controller
from grpo_trainer.errors import UserInputError
from grpo_trainer.metrics import TrainerMetrics
from grpo_trainer.progress import ProgressServer
from grpo_trainer.prompts import Prompt
from grpo_trainer.rewards.result import RewardResult
from grpo_trainer.rollout.base import Request, Response, Sampling
from grpo_trainer.sample import Sample
from grpo_trainer.validation import Validator
from tests.unit.trainer.trainer_support import make_job, make_spec

MODEL = {"path": "/models/a", "revision": None}


class FakeGang:
    """One rank that has a checkpoint."""

    size, head_address = 1, "localhost"

    def __init__(self, checkpoint: CheckpointInfo | None):
        self.checkpoint = checkpoint
        self.calls: list[str] = []
        self.updated: list[list[Sample]] = []
        self.on_policy: list[bool] = []
        self.saved: list[dict[str, Any]] = []
        self.state: dict[str, Any] = {"data": {}}
        self.requests: list[list[Request]] = []
        self.awake = True

    def all(self, method: str, *arguments: Any) -> list[Any]:
        self.calls.append(method)
        self.awake = method == "sync" or (self.awake and method != "rest")
        if method == "save":
            self.saved.append(arguments[1])
        return [self.state if method == "resume" else {}]

    def each(self, method: str, arguments: list[Any], **more: Any) -> list[Any]:
        self.calls.append(method)
        if method == "generate":
            assert self.awake, "an engine that sleeps has no weights"
            self.requests.append([one for part in arguments for one in part])
            return [
                [Response(one.group, one.number, [1], [-1.0], one.number == 1) for one in part] for part in arguments
            ]
        if method == "log_probs":
            ref = more["reference"]
            return [[torch.tensor([-3.0 * (s.group + 1) if ref else -1.0]) for s in part] for part in arguments]
        assert method == "generate" or not self.awake, "the engine holds memory that training needs"
        if method == "update":
            self.updated.append([copy(sample) for part in arguments for sample in part])
            self.on_policy.append(more["on_policy"])
        return [{"lr": 0.1, "grad_norm": 0.0}]

    def first(self, method: str, run: str | None = None) -> CheckpointInfo | None:
        return self.checkpoint if self.checkpoint and run in (None, self.checkpoint.run) else None


class Prompts:
    steps_per_epoch, overlong = 4, 0

    def next_batch(self) -> list[Prompt]:
        return [Prompt([1], "", "", "", {}, {}, None, index) for index in range(3)]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Pool:
    """Gives each step's responses the same reward."""

    def __init__(self, rewards: list[float | None]):
        self.rewards = iter(rewards)

    def score(self, rows: list[Any]) -> RewardResult:
        result = RewardResult([next(self.rewards)] * len(rows), {})
        result.errors.update({("exact", "none"): sum(one is None for one in result.rewards)})
        return result


@pytest.fixture
def server() -> Any:
    server = ProgressServer(0, TrainerMetrics("team", "job"))
    yield server
    server.close()


def make(
    server: ProgressServer,
    newest: CheckpointInfo | None = None,
    rewards: list[float | None] | None = None,
    attempt: int = 0,
    validator: Validator | None = None,
    **sections: dict[str, Any],
) -> tuple[Controller, FakeGang]:
    gang = FakeGang(newest)
    job = make_job(
        "/models/a", **{"checkpoint": {"claimName": "c"}, "trainer": {"totalSteps": 2, "saveFreq": -1}} | sections
    )
    controller = Controller(
        job,
        gang,  # type: ignore[arg-type]
        loader=Prompts(),  # type: ignore[arg-type]
        tokenizer=Encoder(),
        pool=Pool(rewards or [0.0] * 9),  # type: ignore[arg-type]
        server=server,
        metrics=TrainerMetrics("team", "job"),
        attempt=attempt,
        validator=validator,
    )
    return controller, gang


def saved(step: int, run: str = "old", model: dict[str, str | None] | None = MODEL) -> CheckpointInfo:
    path = Path(f"/checkpoints/team.job/step-{step:08d}")
    return CheckpointInfo(path, step, 10, 1, "other", run, 1000.0, 10, model)


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize(
    ("model", "what"),
    [
        ({"path": "/models/b", "revision": None}, "model.path /models/b, not /models/a"),
        ({"path": "/models/a", "revision": "v1"}, "model.revision v1, not unset"),
    ],
)
def test_another_models_checkpoint_is_refused(
    server: ProgressServer, step: int, model: dict[str, str | None], what: str
) -> None:
    controller, gang = make(server, saved(step, model=model))
    with pytest.raises(UserInputError) as caught:
        controller.run()
    assert (caught.value.reason, caught.value.exit_code) == ("CheckpointMismatch", 65)
    assert caught.value.message == (
        f"/checkpoints/team.job/step-0000000{step} (step {step}) was made with {what}: delete the directory "
        "/checkpoints/team.job or the claim that holds it, give the job another name, or set checkpoint.resume to Never"
    )
    assert gang.calls == ["connect"]


def test_never_passes_it_by(server: ProgressServer) -> None:
    other = saved(3, model={"path": "/models/b", "revision": None})
    controller, gang = make(server, other, checkpoint={"claimName": "c", "resume": "Never"})
    controller.run()
    assert gang.calls.count("update") == 2
    assert "resume" not in gang.calls


@pytest.mark.parametrize("model", [MODEL, None])
def test_another_spec_of_the_same_model_goes_on(
    server: ProgressServer, caplog: pytest.LogCaptureFixture, model: dict[str, str | None] | None
) -> None:
    caplog.set_level(logging.WARNING)
    controller, gang = make(server, saved(1, model=model))
    controller.run()
    assert "the spec differs from that of /checkpoints/team.job/step-00000001" in caplog.text
    assert (gang.calls.count("resume"), gang.calls.count("update")) == (1, 1)
    assert server.report.progress is not None
    assert server.report.progress.percent == "100%"


@pytest.mark.parametrize(
    ("trainer", "field"), [({"totalSteps": 2}, "trainer.totalSteps"), ({"totalEpochs": 1}, "trainer.totalEpochs")]
)
def test_an_earlier_jobs_end_is_no_success(server: ProgressServer, trainer: dict[str, int], field: str) -> None:
    controller, gang = make(server, saved(4), trainer=trainer)
    with pytest.raises(UserInputError) as caught:
        controller.run()
    assert (caught.value.reason, caught.value.exit_code) == ("NothingToTrain", 65)
    assert "step-00000004 of an earlier job of this name holds step 4" in caught.value.message
    assert f"raise {field} to go on from it; to begin anew, delete the directory" in caught.value.message
    assert gang.calls == ["connect"]


@pytest.mark.parametrize("step", [2, 3])
def test_a_runs_own_end_is_success(server: ProgressServer, step: int) -> None:
    controller, gang = make(server, saved(step, run="uid"), attempt=1)
    controller.run()
    assert gang.calls == ["connect"]
    progress = server.report.progress
    assert progress is not None
    assert (progress.step, progress.percent) == (2, "100%")


def test_three_steps_in_a_row_without_rewards_end_the_job(server: ProgressServer) -> None:
    trainer = {"totalSteps": 9, "saveFreq": -1}
    controller, gang = make(server, rewards=[None, None, 1.0, None, None, None, 1.0], trainer=trainer)
    with pytest.raises(
        UserInputError, match=r"3 steps in a row.* in step 6 12 samples failed \(exact: 12 none\)"
    ) as end:
        controller.run()
    assert (end.value.reason, end.value.exit_code) == ("RewardError", 65)
    assert gang.calls.count("update") == 5


def test_the_kl_in_the_reward_reaches_the_advantages(server: ProgressServer) -> None:
    """All rewards are equal, and the KL is 2 nats in the first group, 5 in the second, 8 in the third."""
    algorithm = {"advEstimator": "reinforce_plus_plus", "useKlInReward": True, "klPenalty": "abs"}
    ctrl = {"klCtrl": {"type": "adaptive", "klCoef": 0.5, "targetKl": 0.1, "horizon": 100}}
    controller, gang = make(server, algorithm=algorithm | ctrl)
    controller.run()
    assert gang.calls.count("log_probs") == 2 * 2
    (state,) = gang.saved
    assert state["kl_coef"] == pytest.approx(0.5 * (1 + 0.2 * 12 / 100) ** 2)
    assert gang.on_policy == [True] * 2  # one update a step
    for samples in gang.updated:
        advantages = [sample.advantage[0] for sample in samples]
        assert advantages == pytest.approx(
            [(12 - 1) ** 0.5 / 8**0.5] * 4 + [0.0] * 4 + [-((12 - 1) ** 0.5) / 8**0.5] * 4
        )


def test_only_a_steps_first_update_is_on_policy(server: ProgressServer) -> None:
    controller, gang = make(server, actor={"ppoMiniBatchSize": 1, "ppoEpochs": 2})
    controller.run()
    assert gang.on_policy == [True, False, False, False, False, False] * 2


def test_long_responses_lose_reward(server: ProgressServer) -> None:
    """Responses of one token, the longest there may be, so that all lose the whole factor."""
    controller, _ = make(
        server,
        rewards=[1.0] * 9,
        data={"maxResponseLength": 1},
        reward={"overlongBuffer": {"enable": True, "len": 1, "penaltyFactor": 0.75}},
    )
    controller.run()
    assert server.report.progress is not None
    assert server.report.progress.reward_mean == 0.25


def test_truncated_responses_leave_the_loss_where_the_spec_says_so(server: ProgressServer) -> None:
    for masked in (False, True):
        controller, gang = make(server, algorithm={"maskTruncatedResponses": masked})
        controller.run()
        assert [sample.mask for sample in gang.updated[0]] == [True, not masked, True, True] * 3


class Encoder:
    """A tokenizer that knows one text."""

    def __call__(self, texts: list[str], add_special_tokens: bool) -> dict[str, Any]:
        return {"input_ids": [[1, 2] for _ in texts]}

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return "x"


@pytest.fixture
def validator(tmp_path: Path) -> Any:
    """Of three prompts, one at a time, two responses each."""
    rows = tmp_path / "val.jsonl"
    rows.write_text(
        "".join(json.dumps({"prompt": f"p{index}", "data_source": "ab"[index // 2]}) + "\n" for index in range(3))
    )
    data = {"val": {"files": [str(rows)]}, "valBatchSize": 2, "applyChatTemplate": False}

    def make_validator(**trainer: Any) -> Validator:
        spec = make_spec(
            Path("/models/a"),
            data=data,
            rollout={"valKwargs": {"n": 2, "temperature": 0.5, "topP": 0.9, "topK": 7}},
            trainer={"totalSteps": 5} | trainer,
        )
        return Validator(spec, Encoder())

    return make_validator


@pytest.mark.parametrize(
    ("trainer", "steps"),
    [
        ({}, [0, 5]),
        ({"testFreq": 2}, [0, 2, 4, 5]),
        ({"testFreq": 5, "valBeforeTrain": False}, [5]),
        ({"testFreq": -1}, [0]),
        ({"testFreq": 0, "valBeforeTrain": False}, []),
    ],
)
def test_when_the_policy_is_validated(
    server: ProgressServer, validator: Any, capsys: pytest.CaptureFixture[str], trainer: Any, steps: list[int]
) -> None:
    controller, _ = make(server, rewards=[0.5] * 99, trainer={"totalSteps": 5}, validator=validator(**trainer))
    controller.run()
    heads = [line for line in capsys.readouterr().out.splitlines() if " prompts=" in line]
    assert [int(line.split()[1].removeprefix("step=")) for line in heads] == steps
    assert all("prompts=3 " in line and "val-core/a/reward/mean@2=0.5 " in line for line in heads)
    assert all("val-core/b/reward/mean@2=0.5" in line for line in heads)
    progress = server.report.progress
    assert progress is not None
    assert (progress.step, progress.val_step) == (5, steps[-1] if steps else None)
    assert progress.val_reward_mean == (0.5 if steps else None)


def test_engine_is_awake_for_all_rounds_of_the_group_filter(server: ProgressServer) -> None:
    controller, gang = make(server, trainer={"totalSteps": 1}, algorithm={"filterGroups": {"enable": True}})
    differ = iter([0, 1])  # nothing to learn from in the first round

    def score(rows: list[Any]) -> RewardResult:
        spread = next(differ)
        return RewardResult([float(number % 2 * spread) for number in range(len(rows))], {})

    controller._pool = SimpleNamespace(score=score)  # type: ignore[assignment]
    controller.run()
    assert (len(gang.requests), gang.calls.count("rest"), gang.calls.count("update")) == (2, 1, 1)


def test_what_has_no_reward_or_only_fills_the_batch_is_not_trained_on(server: ProgressServer) -> None:
    filter_groups = {"filterGroups": {"enable": True, "maxNumGenBatches": 2}}
    controller, gang = make(server, trainer={"totalSteps": 1}, algorithm=filter_groups)
    rounds = iter([[0.0, 1.0, None, 1.0], [0.5] * 4])

    def score(rows: list[Any]) -> RewardResult:
        return RewardResult(next(rounds) + [0.5] * 8, {})

    controller._pool = SimpleNamespace(score=score)  # type: ignore[assignment]
    controller.run()
    assert [sample.mask for sample in gang.updated[0]] == [True, True, False, True] + [False] * 8
    assert len({one.seed for asked in gang.requests for one in asked}) == 2 * 12  # no response comes twice


def test_validation_leaves_training_as_it_is(server: ProgressServer, validator: Any) -> None:
    plain, gang = make(server, trainer={"totalSteps": 5})
    plain.run()
    controller, other = make(server, rewards=[0.0] * 99, trainer={"totalSteps": 5}, validator=validator(testFreq=1))
    controller.run()
    assert other.updated == gang.updated
    trained = gang.requests
    assert [requests for requests in other.requests if requests[0].sampling is None] == trained
    validated = [requests for requests in other.requests if requests[0].sampling is not None]
    assert [len(requests) for requests in validated] == [4, 2] * 6  # in all validations the same
    assert validated == validated[:2] * 6
    assert all(one.sampling == Sampling(0.5, 0.9, 7) for requests in validated for one in requests)
    seeds = [one.seed for requests in validated[:2] for one in requests]
    assert len(set(seeds)) == 6
    assert not set(seeds) & {one.seed for requests in trained for one in requests}
    assert all(one.sampling is None for requests in trained for one in requests)


def test_what_was_interrupted_in_a_validation_does_it_again(
    server: ProgressServer, validator: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint of step 4 is there before the validation after step 4."""
    controller, gang = make(server, saved(4, run="uid"), trainer={"totalSteps": 5}, validator=validator(testFreq=4))
    controller.run()
    assert re.findall(r"validation step=(\d+) prompts", capsys.readouterr().out) == ["4", "5"]
    assert gang.calls.count("update") == 1


def test_an_interrupted_last_validation_is_made_up_for(
    server: ProgressServer, validator: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    controller, gang = make(server, saved(5, run="uid"), trainer={"totalSteps": 5}, validator=validator(), attempt=1)
    controller.run()
    assert re.findall(r"validation step=(\d+) prompts", capsys.readouterr().out) == ["5"]
    assert gang.calls.count("update") == 0
    assert "resume" in gang.calls


def test_a_resumed_job_keeps_its_last_validation(server: ProgressServer, validator: Any) -> None:
    first, gang = make(
        server, rewards=[0.25] * 99, trainer={"totalSteps": 3, "saveFreq": 3}, validator=validator(testFreq=2)
    )
    first.run()
    assert gang.saved[-1]["validated"] == {"val_step": 2, "val_reward_mean": 0.25}
    other = ProgressServer(0, TrainerMetrics("team", "job"))
    resumed, gang = make(other, saved(3, run="uid"), trainer={"totalSteps": 4}, validator=validator(testFreq=-1))
    gang.state = {"data": {}, "validated": {"val_step": 2, "val_reward_mean": 0.25}}
    resumed.run()
    other.close()
    assert other.report.progress is not None
    assert (other.report.progress.step, other.report.progress.val_step) == (4, 2)
    assert other.report.progress.val_reward_mean == 0.25


def test_failed_scores_are_told_and_in_no_statistic(
    server: ProgressServer, validator: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first batch of the validation fails, the second does not."""
    controller, _ = make(server, rewards=[None, 1.0, 0.5], trainer={"totalSteps": 1}, validator=validator(testFreq=-1))
    controller.run()
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("validation"))
    assert "reward_errors/exact/none=4" in line
    assert "val-core/b/reward/mean@2=1" in line
    assert "val-core/a" not in line
    assert server.report.progress is not None
    assert server.report.progress.val_reward_mean == 1.0


def test_many_data_sources_count_as_one(
    server: ProgressServer, validator: Any, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr("grpo_trainer.validation.MAX_SOURCES", 1)
    controller, _ = make(server, rewards=[0.0, 1.0, 0.0], trainer={"totalSteps": 1}, validator=validator(testFreq=-1))
    controller.run()
    out = capsys.readouterr().out
    assert "val-core/all/reward/mean@2=0.333" in out
    assert "val-core/a/" not in out
