"""What shows that a field of the spec acts: pure functions of a spec, each with a result that can be compared."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grpo_api.job import GRPOJobSpec, parse_job
from grpo_api.spec.training import AlgorithmSpec
from grpo_trainer.advantages import compute_advantages
from grpo_trainer.algorithms.batch import RewardBatch
from grpo_trainer.controller import Controller
from grpo_trainer.kl_control import KlInReward
from grpo_trainer.metrics import TrainerMetrics
from grpo_trainer.policy_losses import PolicyTokens, TokenLoss
from grpo_trainer.rewards.crew import Outcome, Task
from grpo_trainer.rewards.overlong import overlong_penalty
from grpo_trainer.rewards.pool import RewardPool
from grpo_trainer.rewards.result import RewardResult, combine
from grpo_trainer.rollout.base import Sampling
from grpo_trainer.rollout.vllm_arguments import vllm_arguments
from grpo_trainer.sample import Sample
from grpo_trainer.workers import fsdp
from grpo_trainer.workers.worker import Worker
from tests.unit.trainer.test_controller import Encoder, FakeGang, Prompts
from tests.unit.trainer.test_data import tokenizer  # noqa: F401
from tests.unit.trainer.trainer_support import make_samples

Probe = Callable[[GRPOJobSpec], Any]


def mine_advantages(batch: RewardBatch, algorithm: AlgorithmSpec) -> torch.Tensor:
    return batch.scores * 7


def mine_loss(tokens: PolicyTokens, actor: Any) -> TokenLoss:
    none = torch.zeros_like(tokens.log_probs, dtype=torch.bool)
    return TokenLoss(-tokens.log_probs, none, none)


class SilentServer:
    """Takes what is told."""

    report = SimpleNamespace(progress=None)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **fields: None


def advantages(spec: GRPOJobSpec) -> Any:
    """Of two groups of four, with token penalties and the scores of two functions."""
    scores = [[1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.5], [0.1, 0.9, 0.3, 0.2, 0.0, 0.7, 0.3, 0.1]]
    rewards = [a + b for a, b in zip(*scores, strict=True)]
    lengths = [3, 2, 4, 1, 2, 5, 3, 2]
    penalties = [torch.linspace(0.01, 0.1, length) for length in lengths]
    return compute_advantages(
        spec, rewards, [0] * 4 + [1] * 4, lengths, token_penalties=penalties, function_scores=scores
    )


def kl(spec: GRPOJobSpec) -> Any:
    """The KL's penalties in two steps, of which adaptive control may change the second."""
    samples = [
        Sample([1], [2, 3], group, old_log_probs=torch.tensor([-1.0, -2.0]), ref_log_probs=torch.tensor([-1.5, -2.4]))
        for group in range(4)
    ]
    control = KlInReward(spec.algorithm)
    return [[penalty.tolist() for penalty in control.penalties(samples)[0]] for _ in range(2)]


def _actor(spec: GRPOJobSpec) -> fsdp.FsdpActor:
    return fsdp.FsdpActor(spec, rank=0, world_size=1, device=torch.device("cpu"), total_updates=4)


def _samples() -> list[Sample]:
    samples = make_samples(off_policy=True, reference=True)
    for sample in samples:
        noise = torch.cos(torch.arange(len(sample.response_ids)) * 2.0)
        sample.rollout_log_probs = (sample.old_log_probs + noise).tolist()
    return samples


def weights(spec: GRPOJobSpec) -> Any:
    """Some weights after each of three updates."""
    actor, samples, found = _actor(spec), _samples(), []
    for _ in range(3):
        actor.update(samples)
        found.append([p.detach().full_tensor()[:4].tolist() for p in actor.model.parameters()])  # type: ignore[attr-defined]
    return found


@contextmanager
def _packs() -> Iterator[list[list[tuple[int, ...]]]]:
    """The samples of each row that is computed, by call."""
    made: list[list[tuple[int, ...]]] = []
    plain = fsdp.pack_samples

    def pack_samples(samples: Any, **more: Any) -> Any:
        packs = plain(samples, **more)
        made.append([tuple(pack.samples) for pack in packs])
        return packs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fsdp, "pack_samples", pack_samples)
        yield made


def update_rows(spec: GRPOJobSpec) -> Any:
    with _packs() as made:
        _actor(spec).update(_samples())
    return made


def policy_rows(spec: GRPOJobSpec) -> Any:
    with _packs() as made:
        _actor(spec).compute_log_probs(_samples())
    return made


def reference_rows(spec: GRPOJobSpec) -> Any:
    with _packs() as made:
        _actor(spec).compute_log_probs(_samples(), reference=True)
    return made


class _Pool:
    """Rewards that differ in the first group alone."""

    def score(self, rows: list[Any]) -> RewardResult:
        return RewardResult([float(number == 1) for number in range(len(rows))], {})


def controlled(spec: GRPOJobSpec) -> Any:
    """What the controller asks of the gang in two steps."""
    made = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    made["data"].pop("val")
    metadata = {"name": "job", "namespace": "team", "uid": "uid"}
    job = parse_job({"apiVersion": "grpo.dev/v1alpha1", "kind": "GRPOJob", "metadata": metadata, "spec": made})
    gang, prompts = FakeGang(None), Prompts()
    plain = prompts.next_batch
    prompts.next_batch = lambda: [*plain(), *plain()][: spec.data.train_batch_size]  # type: ignore[method-assign]
    controller = Controller(
        job, gang, loader=prompts, tokenizer=Encoder(), pool=_Pool(), server=SilentServer(),
        metrics=TrainerMetrics("team", "job"), attempt=0,
    )  # type: ignore[arg-type] # fmt: skip
    controller.run()
    updates = [[(s.group, s.advantage, s.mask) for s in part] for part in gang.updated]
    return gang.calls, gang.requests, updates, gang.on_policy


def drawn(spec: GRPOJobSpec) -> Any:
    """The distribution that training samples from."""
    return Sampling.of_training(spec.rollout).log_probs(torch.tensor([[2.0, 1.0, 0.5, 0.0, -1.0, -4.0]])).tolist()


def engine(spec: GRPOJobSpec) -> Any:
    return vllm_arguments(spec, cuda=True)


def chosen_engine(spec: GRPOJobSpec) -> Any:
    """The engine of a worker, of which neither is made."""
    with pytest.MonkeyPatch.context() as patch:
        for name, kind in (("hf", "HfEngine"), ("vllm", "VllmEngine")):
            module = SimpleNamespace(**{kind: lambda spec, device, name=name: name})
            patch.setitem(sys.modules, f"grpo_trainer.rollout.{name}", module)
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        worker = Worker(spec, 0, 1, 0)
        worker.load_engine()
        return worker._engine


def sharding(spec: GRPOJobSpec) -> Any:
    return fsdp.reshards(spec, torch.device("cuda"))


def penalties(spec: GRPOJobSpec) -> Any:
    longest = spec.data.max_response_length
    return [overlong_penalty(length, longest, spec.reward.overlong_buffer) for length in range(longest + 1)]


def processes(spec: GRPOJobSpec) -> Any:
    """What the reward pool's processes are made with; none is started."""
    crew = RewardPool(spec.reward, "/nowhere", "/tokens")._crew
    return [(lane.functions, lane.size, lane.config, lane.environment) for lane in crew.lanes], crew._timeout


def rewards(spec: GRPOJobSpec) -> Any:
    """Of scores of two functions, one of which fails once and answers None once."""
    outcomes = [
        (Task(0, [0, 1, 2]), Outcome([0.5, 2.0, -3.0])),
        (Task(0, [3]), Outcome(None, "exception", "text")),
        (Task(1, [0, 1, 2, 3]), Outcome([1.0, None, 0.25, 1.0])),
    ]
    return combine(spec.reward, outcomes, 4).rewards


PURE: dict[str, Probe] = {
    probe.__name__: probe
    for probe in (
        advantages, kl, weights, update_rows, policy_rows, reference_rows, controlled, drawn, engine, penalties,
        processes, rewards, chosen_engine, sharding,
    )
}  # fmt: skip
