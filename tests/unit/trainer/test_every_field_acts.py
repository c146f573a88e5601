"""Each field of `data`, `reward`, `algorithm`, `rollout`, `actor` and `ref` changes what it should.

`ACTS` holds for each field a change of it and the probe that must see the change: batches of the data, advantages,
weights after updates, what the controller asks of the gang, what engines and reward processes are made with. What shows
only in pods or on GPUs is held by a test elsewhere, which must name the field. A new field without either fails.
"""

import ast
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pydantic import create_model
from transformers import PreTrainedTokenizerFast

from grpo_api.fields import bare, inner, is_model
from grpo_api.job import GRPOJobSpec, parse_job
from grpo_api.spec.training import AlgorithmSpec, OptimSpec
from grpo_trainer.advantages import compute_advantages
from grpo_trainer.algorithms.batch import RewardBatch
from grpo_trainer.controller import Controller
from grpo_trainer.data_mix import make_loader
from grpo_trainer.errors import UserInputError
from grpo_trainer.kl_control import KlInReward
from grpo_trainer.metrics import TrainerMetrics
from grpo_trainer.policy_losses import PolicyTokens, TokenLoss
from grpo_trainer.rewards.crew import Outcome, Task
from grpo_trainer.rewards.overlong import overlong_penalty
from grpo_trainer.rewards.pool import RewardPool
from grpo_trainer.rewards.result import RewardResult, combine
from grpo_trainer.rollout.base import Request, Response, Sampling
from grpo_trainer.rollout.vllm_arguments import vllm_arguments
from grpo_trainer.sample import Sample
from grpo_trainer.validation import Validator
from grpo_trainer.workers import fsdp
from grpo_trainer.workers.worker import Worker
from tests.unit.api.test_fields_are_read import ROOT, models_below
from tests.unit.trainer.test_controller import Encoder, FakeGang, Prompts
from tests.unit.trainer.test_data import tokenizer  # noqa: F401
from tests.unit.trainer.trainer_support import make_model, make_samples

SECTIONS = ("data", "reward", "algorithm", "rollout", "actor", "ref")
HERE = "tests.unit.trainer.test_every_field_acts"
Change = dict[str, Any]
Probe = Callable[[GRPOJobSpec], Any]


def mine_advantages(batch: RewardBatch, algorithm: AlgorithmSpec) -> torch.Tensor:
    return batch.scores * 7


def mine_loss(tokens: PolicyTokens, actor: Any) -> TokenLoss:
    none = torch.zeros_like(tokens.log_probs, dtype=torch.bool)
    return TokenLoss(-tokens.log_probs, none, none)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Path]:
    """Rows and a model of one layer, and a process group of this process alone."""
    place = tmp_path_factory.mktemp("fields")
    for name, size in (("a", 12), ("b", 9)):
        rows = [
            {"prompt": f"{name}{i}" + "x" * i, "q": f"q{i}", "t": i, "from": f"f{i}", "data_source": "s"}
            | {"reward_model": {"ground_truth": -i}}
            for i in range(size)
        ]
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    make_model(place / "model", hidden_size=16, num_hidden_layers=1, intermediate_size=16)
    dist.init_process_group("gloo", init_method=f"file://{place}/rendezvous", rank=0, world_size=1)
    yield place
    dist.destroy_process_group()


@pytest.fixture
def build(place) -> Callable[[Change], GRPOJobSpec]:
    """A spec with some values, by dotted path."""

    def make(change: Change) -> GRPOJobSpec:
        base: dict[str, Any] = {
            "model": {"path": str(place / "model"), "dtype": "float32"},
            "data": {
                "train": {"files": [str(place / "a.jsonl")]}, "val": {"files": [str(place / "b.jsonl")]},
                "trainBatchSize": 4, "maxResponseLength": 9, "maxPromptLength": 40,
            },
            "reward": {
                "functions": [
                    {"name": "one", "builtin": {"rule": "exact_match"}},
                    {"name": "two", "python": {"source": "def compute_score(solution_str):\n    return 1.0\n"}},
                ]
            },
            "rollout": {"n": 4},
            "actor": {"ppoMiniBatchSize": 4, "optim": {"lr": 1e-2}},
            "trainer": {"totalSteps": 2},
        }  # fmt: skip
        for path, value in change.items():
            *above, last = path.split(".")
            at: Any = base
            for name in above:
                at = at[int(name)] if name.isdigit() else at.setdefault(name, {})
            text = json.dumps(value).replace("PLACE", str(place))
            at[int(last) if last.isdigit() else last] = json.loads(text)
        return GRPOJobSpec.model_validate(base)

    return make


class SilentServer:
    """Takes what is told."""

    report = SimpleNamespace(progress=None)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **fields: None


# Probes


@pytest.fixture
def probes(tokenizer: PreTrainedTokenizerFast, monkeypatch) -> dict[str, Probe]:  # noqa: F811
    monkeypatch.setattr(tokenizer, "chat_template", "{{ style }}" + tokenizer.chat_template)

    def batches(spec: GRPOJobSpec) -> Any:
        """Prompts of three batches, or what is wrong with the rows."""
        try:
            loader = make_loader(spec.data, tokenizer)
            return [
                [(p.text, p.prompt_ids, p.ground_truth, p.data_source) for p in loader.next_batch()] for _ in range(3)
            ]
        except UserInputError as error:
            return error.message

    def hub(spec: GRPOJobSpec) -> Any:
        """What is asked of the hub."""
        import datasets

        asked: list[Any] = []

        def load(*args: Any, **more: Any) -> Any:
            asked.append((args, more))
            return datasets.Dataset.from_list([{"prompt": f"p{i}"} for i in range(8)])

        monkeypatch.setattr("datasets.load_dataset", load)
        make_loader(spec.data, tokenizer)
        return asked

    def validated(spec: GRPOJobSpec) -> list[list[Request]]:
        """The requests of a validation, by batch."""
        asked: list[list[Request]] = []

        def generate(requests: list[Request]) -> list[Response]:
            asked.append(requests)
            return [Response(one.group, one.number, [1], [], False) for one in requests]

        metrics = TrainerMetrics("team", "job")
        score = lambda rows: RewardResult([1.0] * len(rows), {})  # noqa: E731
        Validator(spec, tokenizer).run(0, generate, score, SilentServer(), metrics)  # type: ignore[arg-type]
        return asked

    return {"batches": batches, "hub": hub, "validated": validated} | PURE


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

# Fields

A, B = ["PLACE/a.jsonl"], ["PLACE/b.jsonl"]
TRAIN, ONE = "data.train", "reward.functions.0"
MIX = {TRAIN: {"mix": [{"files": A}, {"files": B}]}, "data.applyChatTemplate": False}
GYM = {TRAIN: {"reasoningGym": {"task": "chain_sum", "size": 20}}, "data.maxPromptLength": 4000}
HUB = {TRAIN: {"hub": {"path": "org/a"}}}
SHORT = {"data.maxPromptLength": 10}
VAL = {"rollout.valKwargs": {"n": 2, "temperature": 0.5}, "data.applyChatTemplate": False}
MODULE = {ONE: {"name": "one", "module": {"path": "a.b:c"}}}
HTTP = {ONE: {"name": "one", "http": {"url": "http://a/b"}}}
CLASSIFIER = {ONE: {"name": "one", "classifier": {"path": "org/a"}}}
CUT = {"data.maxPromptLength": 20, "data.overlongPrompts": "TruncateLeft"}
BUFFER = {"reward.overlongBuffer": {"enable": True, "len": 4}}
KL_LOSS = {"actor.useKlLoss": True, "actor.klLossCoef": 0.5}
ADAPTIVE = {"algorithm.klCtrl": {"type": "adaptive", "klCoef": 0.1, "horizon": 100}}
CORRECTION = "algorithm.rolloutCorrection."
MASKED = {CORRECTION + "rolloutIsThresholdLower": 0.6}
REJECTED = {CORRECTION + "rolloutRs": "token_k1"}
FILTER = {"algorithm.filterGroups.enable": True}


def loss(mode: str) -> Change:
    return {"actor.policyLoss.lossMode": mode}


ACTS: dict[str, tuple[str, Change, Change]] = {
    # field: probe, what the spec says besides, the change
    "DataSource.files": ("batches", {}, {TRAIN + ".files": B}),
    "HubSource.path": ("hub", HUB, {TRAIN + ".hub.path": "org/b"}),
    "HubSource.name": ("hub", HUB, {TRAIN + ".hub.name": "main"}),
    "HubSource.split": ("hub", HUB, {TRAIN + ".hub.split": "test"}),
    "HubSource.revision": ("hub", HUB, {TRAIN + ".hub.revision": "v1"}),
    "ReasoningGymSource.task": ("batches", GYM, {TRAIN + ".reasoningGym.task": "gcd"}),
    "ReasoningGymSource.size": ("batches", GYM, {TRAIN + ".reasoningGym.size": 21}),
    "ReasoningGymSource.seed": ("batches", GYM, {TRAIN + ".reasoningGym.seed": 2}),
    "ReasoningGymSource.params": ("batches", GYM, {TRAIN + ".reasoningGym.params": {"min_digits": 3}}),
    "MixedSource.files": ("batches", MIX, {TRAIN + ".mix.1.files": A}),
    "MixedSource.weight": ("batches", MIX, {TRAIN + ".mix.1.weight": 3}),
    "MixedSource.prompt_key": ("batches", MIX, {TRAIN + ".mix.1.promptKey": "q"}),
    "MixedSource.ground_truth_key": ("batches", MIX, {TRAIN + ".mix.1.groundTruthKey": "t"}),
    "DataSpec.val_batch_size": ("validated", VAL, {"data.valBatchSize": 2}),
    "DataSpec.val_max_samples": ("validated", VAL, {"data.valMaxSamples": 2}),
    "DataSpec.prompt_key": ("batches", {}, {"data.promptKey": "q"}),
    "DataSpec.ground_truth_key": ("batches", {}, {"data.groundTruthKey": "t"}),
    "DataSpec.data_source_key": ("batches", {}, {"data.dataSourceKey": "from"}),
    "DataSpec.system_prompt": ("batches", {"data.maxPromptLength": 99}, {"data.systemPrompt": "Be brief."}),
    "DataSpec.prompt_template": ("batches", {}, {"data.promptTemplate": "{prompt}?"}),
    "DataSpec.apply_chat_template": ("batches", {}, {"data.applyChatTemplate": False}),
    "DataSpec.chat_template_kwargs": ("batches", {}, {"data.chatTemplateKwargs": {"style": "loud"}}),
    "DataSpec.train_batch_size": ("batches", {}, {"data.trainBatchSize": 3, "actor.ppoMiniBatchSize": 3}),
    "DataSpec.max_prompt_length": ("batches", CUT, {"data.maxPromptLength": 10}),
    "DataSpec.max_response_length": (
        "weights", {"actor.lossAggMode": "seq-mean-token-sum-norm"}, {"data.maxResponseLength": 20},
    ),
    "DataSpec.overlong_prompts": ("batches", CUT, {"data.overlongPrompts": "TruncateRight"}),
    "DataSpec.shuffle": ("batches", {}, {"data.shuffle": False}),
    "DataSpec.seed": ("batches", {}, {"data.seed": 2}),
    # reward
    "RewardFunction.name": ("processes", {}, {ONE + ".name": "other"}),
    "RewardFunction.weight": ("rewards", {}, {ONE + ".weight": 2}),
    "ClipSpec.min": ("rewards", {}, {ONE + ".clip": {"min": -1}}),
    "ClipSpec.max": ("rewards", {}, {ONE + ".clip": {"max": 1}}),
    "BuiltinReward.rule": ("processes", {}, {ONE + ".builtin.rule": "gsm8k"}),
    "BuiltinReward.params": ("processes", {}, {ONE + ".builtin.params": {"ignore_case": True}}),
    "PythonReward.source": ("processes", {}, {"reward.functions.1.python.source": "def compute_score(batch): ..."}),
    "PythonReward.function": ("processes", {}, {"reward.functions.1.python.function": "other"}),
    "PythonReward.params": ("processes", {}, {"reward.functions.1.python.params": {"a": 1}}),
    "ModuleReward.path": ("processes", MODULE, {ONE + ".module.path": "a.b:d"}),
    "ModuleReward.directory": ("processes", MODULE, {ONE + ".module.directory": "/volume"}),
    "ModuleReward.params": ("processes", MODULE, {ONE + ".module.params": {"a": 1}}),
    "HttpReward.url": ("processes", HTTP, {ONE + ".http.url": "http://a/c"}),
    "HttpReward.batch_size": ("processes", HTTP, {ONE + ".http.batchSize": 2}),
    "HttpReward.concurrency": ("processes", HTTP, {ONE + ".http.concurrency": 2}),
    "HttpReward.timeout_seconds": ("processes", HTTP, {ONE + ".http.timeoutSeconds": 2}),
    "HttpReward.retries": ("processes", HTTP, {ONE + ".http.retries": 2}),
    "HttpReward.backoff_seconds": ("processes", HTTP, {ONE + ".http.backoffSeconds": 2}),
    "ClassifierReward.path": ("processes", CLASSIFIER, {ONE + ".classifier.path": "org/b"}),
    "ClassifierReward.revision": ("processes", CLASSIFIER, {ONE + ".classifier.revision": "v1"}),
    "ClassifierReward.label": ("processes", CLASSIFIER, {ONE + ".classifier.label": "good"}),
    "ClassifierReward.output": ("processes", CLASSIFIER, {ONE + ".classifier.output": "sigmoid"}),
    "ClassifierReward.input": ("processes", CLASSIFIER, {ONE + ".classifier.input": "pair"}),
    "ClassifierReward.max_length": ("processes", CLASSIFIER, {ONE + ".classifier.maxLength": 99}),
    "ClassifierReward.batch_size": ("processes", CLASSIFIER, {ONE + ".classifier.batchSize": 2}),
    "ClassifierReward.threads": ("processes", CLASSIFIER, {ONE + ".classifier.threads": 2}),
    "RewardSpec.timeout_seconds": ("processes", {}, {"reward.timeoutSeconds": 2}),
    "RewardSpec.workers": ("processes", {}, {"reward.workers": 3}),
    "RewardSpec.worker_memory": ("processes", {}, {"reward.workerMemory": "3Gi"}),
    "RewardSpec.on_error": ("rewards", {}, {"reward.onError": "Zero"}),
    "RewardSpec.on_none": ("rewards", {}, {"reward.onNone": "Error"}),
    "OverlongBufferSpec.enable": ("penalties", {}, BUFFER),
    "OverlongBufferSpec.len": ("penalties", BUFFER, {"reward.overlongBuffer.len": 2}),
    "OverlongBufferSpec.penalty_factor": ("penalties", BUFFER, {"reward.overlongBuffer.penaltyFactor": 2}),
    # algorithm
    "AlgorithmSpec.adv_estimator": ("advantages", {}, {"algorithm.advEstimator": "rloo"}),
    "AlgorithmSpec.adv_estimator_path": ("advantages", {}, {"algorithm.advEstimatorPath": f"{HERE}:mine_advantages"}),
    "AlgorithmSpec.norm_adv_by_std_in_grpo": ("advantages", {}, {"algorithm.normAdvByStdInGrpo": False}),
    "AlgorithmSpec.gamma": ("advantages", {"algorithm.advEstimator": "reinforce_plus_plus"}, {"algorithm.gamma": 0.5}),
    "AlgorithmSpec.lam": ("advantages", {"algorithm.advEstimator": "gae"}, {"algorithm.lam": 0.5}),
    "AlgorithmSpec.use_kl_in_reward": ("controlled", {}, {"algorithm.useKlInReward": True}),
    "AlgorithmSpec.kl_penalty": ("kl", {}, {"algorithm.klPenalty": "mse"}),
    "AlgorithmSpec.mask_truncated_responses": ("controlled", {}, {"algorithm.maskTruncatedResponses": True}),
    "KlCtrlSpec.type": ("kl", {}, {"algorithm.klCtrl.type": "adaptive"}),
    "KlCtrlSpec.kl_coef": ("kl", {}, {"algorithm.klCtrl.klCoef": 0.5}),
    "KlCtrlSpec.target_kl": ("kl", ADAPTIVE, {"algorithm.klCtrl.targetKl": 10}),
    "KlCtrlSpec.horizon": ("kl", ADAPTIVE, {"algorithm.klCtrl.horizon": 10}),
    "FilterGroupsSpec.enable": ("controlled", {}, FILTER),
    "FilterGroupsSpec.max_num_gen_batches": ("controlled", FILTER, {"algorithm.filterGroups.maxNumGenBatches": 2}),
    "RolloutCorrectionSpec.rollout_is": ("weights", {}, {CORRECTION + "rolloutIs": "sequence"}),
    "RolloutCorrectionSpec.rollout_is_threshold": ("weights", {}, {CORRECTION + "rolloutIsThreshold": 1.1}),
    "RolloutCorrectionSpec.rollout_is_threshold_lower": ("weights", {}, MASKED),
    "RolloutCorrectionSpec.rollout_rs": ("weights", {}, REJECTED),
    "RolloutCorrectionSpec.rollout_rs_threshold": ("weights", REJECTED, {CORRECTION + "rolloutRsThreshold": 1.3}),
    "RolloutCorrectionSpec.rollout_rs_threshold_lower": (
        "weights", REJECTED, {CORRECTION + "rolloutRsThresholdLower": 0.9},
    ),
    # rollout
    "RolloutSpec.engine": ("chosen_engine", {}, {"rollout.engine": "hf"}),
    "RolloutSpec.n": ("controlled", {}, {"rollout.n": 2}),
    "RolloutSpec.tensor_model_parallel_size": ("engine", {}, {"rollout.tensorModelParallelSize": 2}),
    "RolloutSpec.temperature": ("weights", {}, {"rollout.temperature": 0.5}),
    "RolloutSpec.top_p": ("drawn", {}, {"rollout.topP": 0.5}),
    "RolloutSpec.top_k": ("drawn", {}, {"rollout.topK": 2}),
    "RolloutSpec.min_p": ("drawn", {}, {"rollout.minP": 0.3}),
    "RolloutSpec.gpu_memory_utilization": ("engine", {}, {"rollout.gpuMemoryUtilization": 0.7}),
    "RolloutSpec.enforce_eager": ("engine", {}, {"rollout.enforceEager": True}),
    "RolloutSpec.log_prob_micro_batch_size_per_gpu": ("policy_rows", {}, {"rollout.logProbMicroBatchSizePerGpu": 2}),
    "RolloutSpec.log_prob_max_token_len_per_gpu": ("policy_rows", SHORT, {"rollout.logProbMaxTokenLenPerGpu": 19}),
    "RolloutSpec.seed": ("controlled", {}, {"rollout.seed": 2}),
    "RolloutSpec.engine_args": ("engine", {}, {"rollout.engineArgs": {"max_num_seqs": 3}}),
    "ValKwargsSpec.n": ("validated", VAL, {"rollout.valKwargs.n": 3}),
    "ValKwargsSpec.temperature": ("validated", VAL, {"rollout.valKwargs.temperature": 0.6}),
    "ValKwargsSpec.top_p": ("validated", VAL, {"rollout.valKwargs.topP": 0.6}),
    "ValKwargsSpec.top_k": ("validated", VAL, {"rollout.valKwargs.topK": 6}),
    # actor
    "ActorSpec.ppo_mini_batch_size": ("controlled", {}, {"actor.ppoMiniBatchSize": 2}),
    "ActorSpec.ppo_micro_batch_size_per_gpu": ("update_rows", {}, {"actor.ppoMicroBatchSizePerGpu": 2}),
    "ActorSpec.ppo_max_token_len_per_gpu": ("update_rows", SHORT, {"actor.ppoMaxTokenLenPerGpu": 19}),
    "ActorSpec.ppo_epochs": ("controlled", {}, {"actor.ppoEpochs": 2}),
    "PolicyLossSpec.loss_mode": ("weights", {}, loss("gspo")),
    "PolicyLossSpec.loss_path": ("weights", {}, {"actor.policyLoss.lossPath": f"{HERE}:mine_loss"}),
    "ActorSpec.clip_ratio": ("weights", {}, {"actor.clipRatio": 0.9}),
    "ActorSpec.clip_ratio_low": ("weights", {}, {"actor.clipRatioLow": 0.9}),
    "ActorSpec.clip_ratio_high": ("weights", {}, {"actor.clipRatioHigh": 0.9}),
    "ActorSpec.clip_ratio_c": ("weights", {}, {"actor.clipRatioC": 1.5}),
    "ActorSpec.tau_pos": ("weights", loss("sapo"), {"actor.tauPos": 2}),
    "ActorSpec.tau_neg": ("weights", loss("sapo"), {"actor.tauNeg": 2}),
    "ActorSpec.loss_agg_mode": ("weights", {}, {"actor.lossAggMode": "seq-mean-token-mean"}),
    "ActorSpec.use_kl_loss": ("weights", {"actor.klLossCoef": 0.5}, {"actor.useKlLoss": True}),
    "ActorSpec.kl_loss_coef": ("weights", KL_LOSS, {"actor.klLossCoef": 0.9}),
    "ActorSpec.kl_loss_type": ("weights", KL_LOSS, {"actor.klLossType": "mse"}),
    "ActorSpec.entropy_coeff": ("weights", {}, {"actor.entropyCoeff": 0.1}),
    "ActorSpec.grad_clip": ("weights", {}, {"actor.gradClip": 0.001}),
    "OptimSpec.lr": ("weights", {}, {"actor.optim.lr": 2e-2}),
    "OptimSpec.weight_decay": ("weights", {}, {"actor.optim.weightDecay": 0.5}),
    "OptimSpec.betas": ("weights", {}, {"actor.optim.betas": [0.5, 0.9]}),
    "OptimSpec.lr_warmup_steps": ("weights", {}, {"actor.optim.lrWarmupSteps": 2}),
    "OptimSpec.lr_scheduler_type": ("weights", {}, {"actor.optim.lrSchedulerType": "linear"}),
    "FsdpSpec.reshard_after_forward": ("sharding", {}, {"actor.fsdp.reshardAfterForward": False}),
    # ref
    "RefSpec.log_prob_micro_batch_size_per_gpu": ("reference_rows", KL_LOSS, {"ref.logProbMicroBatchSizePerGpu": 2}),
    "RefSpec.log_prob_max_token_len_per_gpu": ("reference_rows", KL_LOSS | SHORT, {"ref.logProbMaxTokenLenPerGpu": 19}),
}  # fmt: skip

ELSEWHERE = {
    "TokenSecret.name": (
        "tests/unit/operator/test_children.py",
        "test_a_reward_servers_token_is_a_file_of_the_head_pod_alone",
    ),
    "TokenSecret.key": (
        "tests/unit/operator/test_children.py",
        "test_a_reward_servers_token_is_a_file_of_the_head_pod_alone",
    ),
}
"""Tests that change the field in pods."""


SEEN: dict[tuple[str, str], Any] = {}
"""What probes saw before a change, which many changes share."""


def leaves() -> dict[str, str]:
    """Fields of the sections that hold values, by class and name, with the name of each in YAML."""
    found = {}
    for section in SECTIONS:
        for model, _ in models_below(bare(GRPOJobSpec.model_fields[section].annotation), section):
            for name, field in model.model_fields.items():
                below = bare(field.annotation)
                if not (is_model(below) or is_model(bare(inner(below)))):
                    found[f"{model.__name__}.{name}"] = str(field.alias or name)
    return found


def test_every_field_has_a_change_and_what_must_see_it():
    assert leaves().keys() == ACTS.keys() | ELSEWHERE.keys()
    assert not ACTS.keys() & ELSEWHERE.keys()


def test_a_new_field_would_be_missed():
    new = create_model("OptimSpec", __base__=OptimSpec, surprise=(float, 0.0))
    names = {f"{new.__name__}.{name}" for name in new.model_fields}
    assert names - ACTS.keys() == {"OptimSpec.surprise"}


@pytest.mark.parametrize("field", ACTS)
def test_a_change_is_seen(field: str, build, probes):
    """And nothing else is the cause: the same spec gives the same again."""
    name, besides, change = ACTS[field]
    assert any(leaves()[field] in path.split(".") or leaves()[field] in str(value) for path, value in change.items())
    probe = probes[name]
    base = name, json.dumps(besides)
    if base not in SEEN:
        SEEN[base] = probe(build(besides))
        assert SEEN[base] == probe(build(besides))
    assert SEEN[base] != probe(build(besides | change))


@pytest.mark.parametrize("field", ELSEWHERE)
def test_what_is_held_elsewhere_names_the_field(field: str):
    file, test = ELSEWHERE[field]
    tree = ast.parse((ROOT / file).read_text())
    (found,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == test]
    holder, name = field.split(".")
    text = ast.unparse(found)
    assert f"'{name}'" in text
    assert holder[0].lower() + holder[1:] in text
