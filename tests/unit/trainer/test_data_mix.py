"""Datasets mixed by weight: shares, order, passes, exact resumption; and validation on several."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from grpo_api.spec.model_data import DataSource, DataSpec
from grpo_trainer.data import PromptLoader
from grpo_trainer.data_mix import MixedLoader, make_loader
from grpo_trainer.errors import UserInputError
from grpo_trainer.metrics import TrainerMetrics
from grpo_trainer.progress import ProgressServer
from grpo_trainer.rewards.result import RewardResult
from grpo_trainer.rollout.base import Request, Response
from grpo_trainer.validation import Validator
from tests.unit.trainer.test_data import tokenizer  # noqa: F401
from tests.unit.trainer.trainer_support import make_spec

SIZES = {"a": 7, "b": 40, "c": 23}
WEIGHTS = {"a": 1.0, "b": 3.0, "c": None}


@pytest.fixture
def loader_of(tmp_path, tokenizer):  # noqa: F811
    """Makes loaders of datasets `a`, `b` and `c`, whose rows say where they stand."""

    def make(sizes=SIZES, weights=WEIGHTS, long=(), **spec) -> MixedLoader | PromptLoader:
        mix = []
        for name, size in sizes.items():
            file = tmp_path / f"{name}.jsonl"
            rows = [
                {"prompt": f"{name}{i}" + ("x" * 100 if f"{name}{i}" in long else ""), "data_source": name}
                for i in range(size)
            ]
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            mix.append({"files": [str(file)], "weight": weights[name]})
        spec = {"trainBatchSize": 10, "applyChatTemplate": False} | spec
        return make_loader(DataSpec.model_validate({"train": {"mix": mix}} | spec), tokenizer)

    return make


def names(loader, batches: int) -> list[list[str]]:
    return [[prompt.text for prompt in loader.next_batch()] for _ in range(batches)]


def test_every_batch_has_the_weights_shares(loader_of):
    """1 : 3 : 1 of 10 is 2, 6 and 2; over all prompts, far within the bounds of a draw by chance."""
    batches = names(loader_of(), 60)
    assert all(Counter(text[0] for text in batch) == {"a": 2, "b": 6, "c": 2} for batch in batches)


@pytest.mark.parametrize(
    "weights", [{"a": 0.1, "b": 7.3, "c": 2.9}, {"a": 1, "b": 1, "c": 1}, {"a": 9, "b": 1, "c": 2}]
)
def test_uneven_weights_are_honoured_at_every_moment(loader_of, weights):
    """Within three standard deviations of the binomial at the end, and never two prompts behind before."""
    seen: Counter[str] = Counter()
    for count, text in enumerate((text for batch in names(loader_of(weights=weights), 50) for text in batch), 1):
        seen[text[0]] += 1
        for name, weight in weights.items():
            assert abs(seen[name] - count * weight / sum(weights.values())) < 2
    for name, weight in weights.items():
        share = weight / sum(weights.values())
        assert abs(seen[name] - 500 * share) < 3 * math.sqrt(500 * share * (1 - share))


def test_each_dataset_is_gone_through_before_any_row_comes_again(loader_of):
    drawn = [text for batch in names(loader_of(), 30) for text in batch]
    for name, size in SIZES.items():
        own = [text for text in drawn if text[0] == name]
        passes = [own[start : start + size] for start in range(0, len(own) - size + 1, size)]
        assert len(passes) >= 2
        assert all(sorted(one) == sorted(f"{name}{i}" for i in range(size)) for one in passes)
        assert passes[0] != passes[1]


def test_order_without_shuffling_and_with_another_seed(loader_of):
    plain = [text for text in names(loader_of(shuffle=False), 3) for text in text if text[0] == "a"]
    assert plain == ["a0", "a1", "a2", "a3", "a4", "a5"]
    assert names(loader_of(seed=2), 3) != names(loader_of(), 3) == names(loader_of(), 3)


@pytest.mark.parametrize("steps", [0, 1, 3, 4, 7, 23])
def test_the_order_after_a_resume_is_the_order_without_one(loader_of, steps):
    """In the middle of a pass of each dataset, at its end, and many passes on."""
    loader = loader_of()
    names(loader, steps)
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = loader_of()
    resumed.load_state_dict(state)
    assert [resumed.next_batch() for _ in range(12)] == [loader.next_batch() for _ in range(12)]
    assert resumed.state_dict() == loader.state_dict()


def test_a_resume_after_rows_were_dropped_late(loader_of, monkeypatch):
    """Rows that the preflight has not seen are dropped where they are met; the state counts them."""
    monkeypatch.setattr("grpo_trainer.dataset.PREFLIGHT_ROWS", 1)
    more = {"long": ("a2", "a3", "b7"), "overlongPrompts": "Drop", "maxPromptLength": 20}
    loader = loader_of(**more)
    names(loader, 5)
    resumed = loader_of(**more)
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert names(resumed, 6) == names(loader, 6)
    drawn = {text for batch in names(loader, 10) for text in batch}
    assert not {text for text in drawn if len(text) > 20}
    assert loader.overlong == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": {"a": 2, "b": 3, "c": 1}}, "weights .* then, .* now"),
        ({"sizes": SIZES | {"a": 8}}, r"rows \[7, 40, 23\] then, \[8, 40, 23\] now"),
        ({"seed": 3}, "seed 1 then, 3 now"),
    ],
)
def test_another_mix_is_refused_on_resume(loader_of, change, message):
    state = loader_of().state_dict()
    with pytest.raises(UserInputError, match=message) as caught:
        loader_of(**change).load_state_dict(state)
    assert caught.value.reason == "DataChanged"


def test_an_epoch_has_as_many_prompts_as_all_rows(loader_of):
    assert loader_of().steps_per_epoch == 7
    assert loader_of(trainBatchSize=35).steps_per_epoch == 2
    with pytest.raises(UserInputError, match=r"data.train.mix has 70 usable rows, fewer than data.trainBatchSize .71."):
        loader_of(trainBatchSize=71)


def test_a_dataset_smaller_than_its_share_of_a_batch_comes_around(loader_of):
    batch = names(loader_of({"a": 2, "b": 40}, {"a": 1, "b": 1}), 1)[0]
    assert Counter(text for text in batch if text[0] == "a") == {"a0": 3, "a1": 2} or Counter(
        text for text in batch if text[0] == "a"
    ) == {"a0": 2, "a1": 3}


def test_overlong_rows_are_counted_over_all_datasets(loader_of):
    loader = loader_of(long=("a0", "c5"), overlongPrompts="TruncateRight", maxPromptLength=20)
    assert loader.overlong == 2
    assert loader.steps_per_epoch == 7
    with pytest.raises(UserInputError, match=r"row 5 of .*c.jsonl: the prompt has 102 tokens"):
        loader_of(long=("c5",), maxPromptLength=20)


def test_a_dataset_none_of_whose_prompts_fit_is_named(loader_of):
    with pytest.raises(UserInputError, match=r"data.train.mix\[0\]: no prompt of .*a.jsonl fits data.maxPromptLength"):
        loader_of(long=[f"a{i}" for i in range(7)], overlongPrompts="Drop", maxPromptLength=20)


def test_columns_and_ground_truth_of_each_dataset(tmp_path, tokenizer):  # noqa: F811
    (tmp_path / "a.jsonl").write_text('{"question": "qa", "answer": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"prompt": "qb", "reward_model": {"ground_truth": 2}}\n')
    own = {"promptKey": "question", "groundTruthKey": "answer"}
    mix = [{"files": [str(tmp_path / "a.jsonl")], **own}, {"files": [str(tmp_path / "b.jsonl")]}]
    spec = DataSpec.model_validate({"train": {"mix": mix}, "trainBatchSize": 2, "applyChatTemplate": False})
    loader = make_loader(spec, tokenizer)
    assert [(prompt.text, prompt.ground_truth) for prompt in loader.next_batch()] == [("qa", 1), ("qb", 2)]
    assert [prompt.text for prompt in loader.samples()] == ["qa", "qb"]
    mix[1]["promptKey"] = "question"
    with pytest.raises(UserInputError, match=r"b.jsonl: has no value at 'question'.*set data.train.mix\[1\].promptKey"):
        make_loader(DataSpec.model_validate({"train": {"mix": mix}, "trainBatchSize": 2}), tokenizer)


def test_validation_takes_all_rows_of_each(tmp_path, tokenizer: PreTrainedTokenizerFast):  # noqa: F811
    """By batches that cut through the datasets; equal positions of two datasets do not share seeds."""
    for name, size in (("a", 3), ("b", 4)):
        rows = [{"prompt": f"{name}{i}", "data_source": name} for i in range(size)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    mix = [{"files": [str(tmp_path / f"{name}.jsonl")]} for name in "ab"]

    def requests(size: int, most: int | None = None) -> dict[str, list[int]]:
        data = {"val": {"mix": mix}, "valBatchSize": size, "valMaxSamples": most, "applyChatTemplate": False}
        spec = make_spec(Path("/m"), data=data, rollout={"valKwargs": {"n": 2, "temperature": 1.0}})
        seeds: dict[str, list[int]] = {}

        def generate(wanted: list[Request]) -> list[Response]:
            for one in wanted:
                seeds.setdefault(tokenizer.decode(one.prompt_ids), []).append(one.seed)
            return [Response(one.group, one.number, [1], [-1.0], False) for one in wanted]

        metrics = TrainerMetrics("team", "job")
        server = ProgressServer(0, metrics)
        Validator(spec, tokenizer).run(0, generate, lambda rows: RewardResult([0.5] * len(rows), {}), server, metrics)
        server.close()
        return seeds

    seeds = requests(2)
    assert list(seeds) == ["a0", "a1", "a2", "b0", "b1", "b2", "b3"]
    assert seeds == requests(5) == requests(100)
    assert len({seed for own in seeds.values() for seed in own}) == 14
    assert list(requests(3, most=4)) == ["a0", "a1", "b0", "b2"]


def test_one_source_needs_no_mix(tmp_path, tokenizer):  # noqa: F811
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"}\n')
    spec = DataSpec(train=DataSource(files=[str(tmp_path / "a.jsonl")]), train_batch_size=1)
    assert isinstance(make_loader(spec, tokenizer), PromptLoader)
