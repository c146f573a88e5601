"""Whether training learns: the loop itself with its worker, engine and reward pool on one CPU process, on a task whose
best policy is known. Nothing is replaced but Ray, which would only carry the calls.
"""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from grpo_trainer.controller import Controller
from grpo_trainer.data import PromptLoader
from grpo_trainer.metrics import TrainerMetrics
from grpo_trainer.progress import ProgressServer
from grpo_trainer.rewards.pool import RewardPool
from grpo_trainer.workers.worker import Worker
from tests.unit.trainer.trainer_support import make_job

QUESTIONS, ANSWERS = "abcd", "wxyz"
LENGTH = 3
STEPS = 60
CHANCE = 1 / 9
"""Share of right tokens by a policy that knows nothing: 8 letters and the end."""
REWARD = f"""
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return SIGN * solution_str.count(ground_truth) / {LENGTH}
"""


class LocalGang:
    """One worker, called in this process."""

    size, head_address = 1, "127.0.0.1"

    def __init__(self, worker: Worker):
        self.worker = worker

    def all(self, method: str, *arguments: Any) -> list[Any]:
        if method == "connect":
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                arguments = (self.head_address, probe.getsockname()[1], None)
        return [getattr(self.worker, method)(*arguments)]

    def each(self, method: str, arguments: list[Any], **keywords: Any) -> list[Any]:
        return [getattr(self.worker, method)(one, **keywords) for one in arguments]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one letter a token, and four questions."""
    path = tmp_path_factory.mktemp("learning")
    vocabulary = {token: index for index, token in enumerate([*QUESTIONS, *ANSWERS, "<end>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer_files = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    tokenizer_files.save_pretrained(path / "model")
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=64,
        vocab_size=len(vocabulary),
        eos_token_id=len(vocabulary) - 1,
        bos_token_id=None,
        max_position_embeddings=32,
    )
    lm = LlamaForCausalLM(config)
    lm.save_pretrained(path / "model")
    with torch.no_grad():  # a head that adapters, which leave it as it is, can make sure answers with
        lm.lm_head.weight *= 12
    lm.save_pretrained(path / "large head")
    tokenizer_files.save_pretrained(path / "large head")
    rows = ({"prompt": q, "reward_model": {"ground_truth": a}} for q, a in zip(QUESTIONS, ANSWERS, strict=True))
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What `Worker.connect` sets in its own process is undone in this one."""
    for name in ("CUDA_VISIBLE_DEVICES", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def train(directory: Path, *, sign: int, steps: int = STEPS, **sections: dict[str, Any]) -> float:
    """The share of right tokens that the trained policy gives; 1 is the most there can be."""
    source = REWARD.replace("SIGN", str(sign))
    base: dict[str, dict[str, Any]] = {
        "data": {
            "train": {"files": [str(directory / "rows.jsonl")]},
            "applyChatTemplate": False,
            "trainBatchSize": 4,
            "maxPromptLength": 4,
            "maxResponseLength": LENGTH,
        },
        "reward": {"functions": [{"name": "right", "python": {"source": source}}]},
        "rollout": {"n": 16, "engine": "hf", "temperature": 1.0},
        "actor": {"ppoMiniBatchSize": 2, "optim": {"lr": 0.01}},
        "trainer": {"totalSteps": steps},
    }
    merged = {name: base.get(name, {}) | sections.get(name, {}) for name in base | sections}
    model = directory / ("large head" if "model" in sections else "model")
    job = make_job(model, **merged)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    gang = LocalGang(Worker(job.spec, 0, 1, 0))
    metrics = TrainerMetrics("team", "job")
    server = ProgressServer(0, metrics)
    pool = RewardPool(job.spec.reward, str(directory))
    try:
        Controller(
            job,
            gang,  # type: ignore[arg-type]
            loader=PromptLoader(job.spec.data, tokenizer),
            tokenizer=tokenizer,
            pool=pool,
            server=server,
            metrics=metrics,
            attempt=0,
        ).run()
        return right_share(gang.worker)
    finally:
        pool.close()
        server.close()
        dist.destroy_process_group()


def right_share(worker: Worker) -> float:
    """Exact, of the policy that the actor holds: the probability of a right token, summed over all that can be said.

    Three tokens after each question; a response that ends early has said fewer.
    """
    lm = LlamaForCausalLM.from_pretrained(worker._spec.model.path)
    lm.load_state_dict({name: tensor.clone() for name, tensor in worker._actor.full_parameters()})
    total = 0.0
    for question, answer in enumerate(range(len(QUESTIONS), len(QUESTIONS) + len(ANSWERS))):
        said = [[question]]
        chances = torch.ones(1)
        for _ in range(LENGTH):
            with torch.no_grad():
                every = torch.softmax(lm(torch.tensor(said)).logits[:, -1], dim=-1)
            joint = chances[:, None] * every
            total += joint[:, answer].sum().item() / LENGTH / len(QUESTIONS)
            said = [[*one, token] for one in said for token in range(every.shape[1] - 1)]
            chances = joint[:, :-1].flatten()
    return total


RECIPES: dict[str, dict[str, Any]] = {
    "grpo": {},
    "rloo": {"algorithm": {"advEstimator": "rloo"}},
    "remax": {"algorithm": {"advEstimator": "remax"}},
    "grpo, LoRA, KL": {
        "model": {"lora": {"rank": 8, "alpha": 16}},
        "actor": {"useKlLoss": True, "klLossCoef": 1e-3},
    },
    "dr_grpo": {"algorithm": {"advEstimator": "dr_grpo"}, "actor": {"lossAggMode": "seq-mean-token-sum-norm"}},
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_it_finds_the_best_policy(directory: Path, recipe: str) -> None:
    assert train(directory, sign=1, **RECIPES[recipe]) > 0.98


def test_with_the_reward_turned_around_it_finds_the_worst(directory: Path) -> None:
    assert train(directory, sign=-1) < CHANCE / 10


def test_without_differences_it_learns_nothing(directory: Path) -> None:
    """Weight decay alone moves the weights, and 10 updates of it by less than a hundredth."""
    assert train(directory, sign=0, steps=5) == pytest.approx(train(directory, sign=0, steps=1), rel=0.01)


def test_the_seed_decides_every_number(directory: Path) -> None:
    first = train(directory, sign=1, steps=5)
    assert train(directory, sign=1, steps=5) == first
    assert train(directory, sign=1, steps=5, rollout={"seed": 2}) != first
