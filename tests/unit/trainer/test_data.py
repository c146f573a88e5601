"""Rows from every source, their checks before training, and an order that resumes exactly."""

import json
import re
from pathlib import Path

import pyarrow
import pytest
from pyarrow import csv, parquet
from ruamel.yaml import YAML
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from grpo_api.job import parse_job
from grpo_api.spec.model_data import DataSource, DataSpec, HubSource, ReasoningGymSource
from grpo_trainer.data import PromptLoader
from grpo_trainer.errors import UserInputError

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "<{{ m.role }}> {{ m.content }} {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    """One token a byte."""
    bytes_ = Tokenizer(
        models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[])
    )
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.fixture
def loader_of(tmp_path, tokenizer):
    """Makes loaders of rows in a JSONL file."""

    def make(rows: list[dict], **spec: object) -> PromptLoader:
        file = tmp_path / "rows.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return PromptLoader(data_spec([str(file)], **spec), tokenizer)

    return make


def data_spec(files: list[str], **spec: object) -> DataSpec:
    return DataSpec(train=DataSource(files=files), **({"train_batch_size": 2} | spec))


def verl_row(number: int) -> dict:
    return {
        "prompt": [{"role": "user", "content": f"Say {number}"}],
        "data_source": "numbers",
        "reward_model": {"style": "rule", "ground_truth": str(number)},
        "extra_info": {"index": number},
        "split": "train",
    }


def test_verl_row(loader_of, tokenizer):
    prompt = loader_of([verl_row(1), verl_row(2)], shuffle=False).next_batch()[1]
    assert prompt.text == "<user> Say 2 <assistant>"
    assert tokenizer.decode(prompt.prompt_ids) == prompt.text
    assert (prompt.ground_truth, prompt.data_source, prompt.extra_info, prompt.index) == (
        "2",
        "numbers",
        {"index": 2},
        1,
    )
    assert set(prompt.columns) == {"data_source", "reward_model", "extra_info", "split"}


def test_the_greatest_token_is_known(loader_of, tokenizer):
    loader = loader_of([verl_row(1), {**verl_row(2), "prompt": "\u00fc"}])
    texts = [[{"role": "user", "content": text}] for text in ("Say 1", "\u00fc")]
    ids = [tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"] for messages in texts]
    assert loader.largest_token == max(map(max, ids))


def test_prompt_ids_are_those_of_the_chat_template(loader_of, tokenizer):
    prompt = loader_of([verl_row(1)], train_batch_size=1, system_prompt="Be brief.").samples()[0]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say 1"}]
    wanted = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    assert prompt.prompt_ids == list(wanted["input_ids"])
    assert prompt.reward_row("7", 1).messages == messages


def test_string_prompts_and_template(loader_of):
    rows = [{"question": "7 - {x}", "a": {"b": -2}}]
    spec = {
        "prompt_key": "question",
        "ground_truth_key": "a.b",
        "prompt_template": "Do {prompt} now",
        "train_batch_size": 1,
    }
    prompt = loader_of(rows, **spec).samples()[0]
    assert prompt.messages is None
    assert prompt.text == "<user> Do 7 - {x} now <assistant>"
    assert prompt.ground_truth == -2
    assert prompt.data_source.endswith("rows.jsonl")
    assert loader_of(rows, **spec, apply_chat_template=False).samples()[0].text == "Do 7 - {x} now"


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_file_kinds_and_several_files(tmp_path, tokenizer, kind):
    files = []
    for start in (0, 3):
        rows = [{"prompt": f"Say {i}", "truth": i} for i in range(start, start + 3)]
        files.append(str(tmp_path / f"{start}.{kind}"))
        match kind:
            case "parquet":
                parquet.write_table(pyarrow.Table.from_pylist(rows), files[-1])
            case "csv":
                csv.write_csv(pyarrow.Table.from_pylist(rows), files[-1])
            case "json":
                (tmp_path / f"{start}.json").write_text(json.dumps(rows))
    spec = data_spec(files, ground_truth_key="truth", shuffle=False, train_batch_size=6)
    batch = PromptLoader(spec, tokenizer).next_batch()
    assert [(p.text, p.ground_truth, p.index) for p in batch] == [
        (f"<user> Say {i} <assistant>", i, i) for i in range(6)
    ]
    shuffled = PromptLoader(spec.model_copy(update={"shuffle": True}), tokenizer).next_batch()
    assert [p.ground_truth for p in shuffled] == [p.index for p in shuffled] != list(range(6))


def test_verl_parquet(tmp_path, tokenizer):
    file = str(tmp_path / "train.parquet")
    parquet.write_table(pyarrow.Table.from_pylist([verl_row(i) for i in range(4)]), file)
    prompt = PromptLoader(data_spec([file], shuffle=False), tokenizer).next_batch()[1]
    assert (prompt.text, prompt.ground_truth, prompt.extra_info) == ("<user> Say 1 <assistant>", "1", {"index": 1})


def test_hub_dataset(tmp_path, tokenizer):
    # `datasets` loads a directory by the same call as a hub id.
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(verl_row(i)) + "\n" for i in range(4)))
    spec = DataSpec(train=DataSource(hub=HubSource(path=str(tmp_path))), train_batch_size=4)
    batch = PromptLoader(spec, tokenizer).next_batch()
    assert sorted((p.text, p.ground_truth) for p in batch) == [
        (f"<user> Say {i} <assistant>", str(i)) for i in range(4)
    ]
    spec.train.hub.split = "test"
    with pytest.raises(UserInputError, match="split test"):
        PromptLoader(spec, tokenizer)


def gym_spec(task: str = "chain_sum", **params: object) -> DataSpec:
    gym = ReasoningGymSource(task=task, size=200, params=params)
    return DataSpec(train=DataSource(reasoning_gym=gym), train_batch_size=100)


def test_reasoning_gym(tokenizer):
    spec = gym_spec(min_terms=2, max_terms=2, min_digits=1, max_digits=1)
    prompt = PromptLoader(spec, tokenizer).samples()[0]
    assert prompt.data_source == "reasoning_gym/chain_sum"
    assert prompt.extra_info["num_terms"] == 2
    assert prompt.text.startswith("<user> State the final answer")


def test_the_example_asks_for_one_digit_sums_and_differences(tokenizer):
    example = Path(__file__).parents[3] / "examples/arithmetic.yaml"
    spec = parse_job(YAML(typ="safe").load(example)).spec.data
    loader = PromptLoader(spec.model_copy(update={"max_prompt_length": 500}), tokenizer)
    assert loader.steps_per_epoch == 500
    for prompt in loader.next_batch() + loader.next_batch():
        found = re.fullmatch(
            r"<user> Calculate (\d) ([+-]) (\d)\. Reply with only the number\. <assistant>", prompt.text
        )
        a, sign, b = found.groups()
        assert int(prompt.ground_truth) == (int(a) + int(b) if sign == "+" else int(a) - int(b))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (gym_spec("chain_sums"), "'chain_sums' is unknown; nearest: .*chain_sum"),
        (gym_spec(min_term=2), "min_term"),
        (gym_spec(min_terms=3, max_terms=2), "max_terms must be >= min_terms"),
    ],
)
def test_reasoning_gym_faults(tokenizer, spec, message):
    with pytest.raises(UserInputError, match=message):
        PromptLoader(spec, tokenizer)


@pytest.mark.parametrize(
    ("rows", "spec", "message"),
    [
        ([], {}, "holds no rows"),
        ([verl_row(1)], {}, "1 usable rows, fewer than data.trainBatchSize .2."),
        ([{"question": "a", "answer": 1}], {}, "columns are question, answer: set data.groundTruthKey, such as answer"),
        (
            [{"question": "a"}],
            {},
            "row 0 of .*rows.jsonl: has no value at 'prompt' .data.promptKey.; its columns are question",
        ),
        ([verl_row(1), verl_row(2) | {"prompt": ""}], {}, "row 1 of .*non-empty string or a list of messages"),
        ([verl_row(1), verl_row(2) | {"prompt": [{"role": "user"}]}], {}, "row 1 of .*messages with role and content"),
        (
            [verl_row(1), verl_row(2) | {"reward_model": None}],
            {},
            "row 1 of .*'reward_model.ground_truth' .data.groundTruthKey",
        ),
        ([verl_row(1)], {"ground_truth_key": "solution"}, "row 0 .*'solution' .data.groundTruthKey"),
        ([verl_row(1)], {"data_source_key": "origin"}, "row 0 .*'origin' .data.dataSourceKey"),
        ([verl_row(1)], {"apply_chat_template": False}, "needs data.applyChatTemplate: true"),
        ([{"prompt": "a"}], {"apply_chat_template": False, "system_prompt": "x"}, "data.systemPrompt needs"),
        ([verl_row(1), verl_row(123456)], {"max_prompt_length": 28}, "row 1 of .*has 29 tokens.*maxPromptLength .28."),
    ],
)
def test_bad_data_is_refused_with_row_and_repair(loader_of, rows, spec, message):
    with pytest.raises(UserInputError, match=message) as caught:
        loader_of(rows, **spec)
    assert (caught.value.reason, caught.value.exit_code) == ("BadData", 65)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"prompt": "a"}\n{"prompt": \n', "a.jsonl, line 2: Expecting value"),
        ("a.jsonl", "[1]\n", "must hold one object a line"),
        ("a.json", '{"prompt": "a"}', "must hold a list of objects"),
        ("a.parquet", "no parquet", "a.parquet is not valid parquet"),
        ("a.txt", "a", "must end in .parquet, .jsonl, .json or .csv"),
        (None, "", "is not there"),
    ],
)
def test_unreadable_files(tmp_path, tokenizer, name, content, message):
    if name:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserInputError, match=message):
        PromptLoader(data_spec([str(tmp_path / (name or "absent.jsonl"))]), tokenizer)


def test_a_tokenizer_without_chat_template(tmp_path, tokenizer):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(verl_row(1)))
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    with pytest.raises(UserInputError, match=r"model\.chatTemplate"):
        PromptLoader(data_spec([str(file)]), bare)


def test_rows_without_ground_truth_serve_rewards_that_need_none(loader_of):
    assert loader_of([{"prompt": "a"}, {"prompt": "b"}]).samples()[0].ground_truth is None


def test_overlong_policies(loader_of, tokenizer):
    # `<user> Say N <assistant>` has 23 tokens and a digit each: rows 1 and 3 are too long.
    rows = [verl_row(number) for number in (1, 111111, 2, 222222, 3)]
    spec = {"max_prompt_length": 25, "shuffle": False}
    assert len(loader_of(rows[:1], max_prompt_length=24, train_batch_size=1).next_batch()[0].prompt_ids) == 24
    dropped = loader_of(rows, **spec, overlong_prompts="Drop", train_batch_size=3)
    assert dropped.steps_per_epoch == 1
    assert [p.index for p in dropped.next_batch()] == [0, 2, 4]
    left = loader_of(rows, **spec, overlong_prompts="TruncateLeft", train_batch_size=5).next_batch()[1]
    assert tokenizer.decode(left.prompt_ids) == "<user> Say 111111 <assistant>"[-25:]
    right = loader_of(rows, **spec, overlong_prompts="TruncateRight", train_batch_size=5).next_batch()[1]
    assert tokenizer.decode(right.prompt_ids) == "<user> Say 111111 <assistant>"[:25]


def test_overlong_rows_after_the_preflight(loader_of, monkeypatch):
    monkeypatch.setattr("grpo_trainer.dataset.PREFLIGHT_ROWS", 1)
    rows = [verl_row(number) for number in (1, 2, 111111, 3, 4, 5)]
    spec = {"max_prompt_length": 25, "shuffle": False}
    loader = loader_of(rows, **spec, overlong_prompts="Drop")
    assert [[p.index for p in loader.next_batch()] for _ in range(3)] == [[0, 1], [3, 4], [0, 1]]
    strict = loader_of(rows, **spec)
    strict.next_batch()
    with pytest.raises(UserInputError, match="row 2 of"):
        strict.next_batch()


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ('{"prompt": "c"}\n{"prompt": "d", "tru', "b.jsonl, line 2: Unterminated string"),
        (
            '{"question": "c", "truth": 3}\n{"prompt": "d", "truth": 4}\n',
            "row 0 of .*b.jsonl: has no value at 'prompt'",
        ),
        (
            '{"prompt": "c"}\n',
            "row 0 of .*b.jsonl: has no value at 'truth' .data.groundTruthKey.; its columns are prompt",
        ),
    ],
)
@pytest.mark.parametrize("checked", [200_000, 1])
def test_a_later_file_that_is_cut_off_or_lacks_a_column(tmp_path, tokenizer, monkeypatch, second, message, checked):
    """Before training, also where the rows are too many for all to be checked."""
    monkeypatch.setattr("grpo_trainer.dataset.PREFLIGHT_ROWS", checked)
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "truth": 1}\n{"prompt": "b", "truth": 2}\n')
    (tmp_path / "b.jsonl").write_text(second)
    with pytest.raises(UserInputError, match=message):
        PromptLoader(data_spec([str(tmp_path / "*.jsonl")], ground_truth_key="truth"), tokenizer)


def test_arguments_of_the_chat_template(loader_of, tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", "{% if loud %}LOUD {% endif %}" + TEMPLATE)
    spec = {"train_batch_size": 1}
    assert loader_of([verl_row(1)], **spec).samples()[0].text == "<user> Say 1 <assistant>"
    loud = loader_of([verl_row(1)], **spec, chat_template_kwargs={"loud": True}).samples()[0]
    assert loud.text == "LOUD <user> Say 1 <assistant>"
    assert tokenizer.decode(loud.prompt_ids) == loud.text


@pytest.mark.parametrize(
    ("more", "warned"),
    [
        ({}, False),
        ({"tools": [{"type": "function"}]}, True),
        ({"extra_info": {"tools_kwargs": {"calc": {}}}}, True),
        ({"tools": []}, False),
    ],
)
def test_tools_are_ignored_with_a_warning(loader_of, caplog, more, warned):
    prompt = loader_of([verl_row(1) | more], train_batch_size=1).samples()[0]
    assert prompt.text == "<user> Say 1 <assistant>"
    assert ("its tools are ignored" in caplog.text) == warned


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra_info": "x"}, "row 0 of .*extra_info must be an object, not 'x'"),
        (
            {"prompt": [{"role": "user", "content": [{"type": "image", "image": "a"}]}]},
            "row 0 of .*parts that are no text",
        ),
    ],
)
def test_rows_of_other_kinds(loader_of, change, message):
    with pytest.raises(UserInputError, match=message):
        loader_of([verl_row(1) | change], train_batch_size=1)


def test_overlong_rows_are_counted_once(loader_of, monkeypatch):
    rows = [verl_row(number) for number in (1, 111111, 2, 222222)]
    spec = {"max_prompt_length": 25, "overlong_prompts": "TruncateLeft", "train_batch_size": 2}
    assert loader_of(rows, **spec).overlong == 2
    monkeypatch.setattr("grpo_trainer.dataset.PREFLIGHT_ROWS", 1)
    loader = loader_of(rows, **spec, shuffle=False)
    counts = [loader.overlong]
    for _ in range(4):
        loader.next_batch()
        counts.append(loader.overlong)
    assert counts == [1, 2, 2, 2, 2]  # the last row at once, as the file's end; no row again in a later epoch


def test_rows_that_never_make_a_batch_end_the_job(loader_of, monkeypatch):
    monkeypatch.setattr("grpo_trainer.dataset.PREFLIGHT_ROWS", 1)
    loader = loader_of(
        [verl_row(number) for number in (1, 111111, 222222)], max_prompt_length=25, overlong_prompts="Drop"
    )
    with pytest.raises(UserInputError, match="fewer than data"):
        loader.next_batch()


def test_epochs_are_shuffled_and_leave_the_rest_out(loader_of):
    loader = loader_of([verl_row(i) for i in range(11)], train_batch_size=4)
    assert loader.steps_per_epoch == 2
    epochs = [[p.index for _ in range(2) for p in loader.next_batch()] for _ in range(3)]
    assert all(len(set(epoch)) == 8 for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    again = loader_of([verl_row(i) for i in range(11)], train_batch_size=4)
    assert [p.index for p in again.next_batch() + again.next_batch()] == epochs[0]
    other = loader_of([verl_row(i) for i in range(11)], train_batch_size=4, seed=2)
    assert [p.index for p in other.next_batch() + other.next_batch()] != epochs[0]


@pytest.mark.parametrize("steps", range(6))
def test_resume_is_exact(loader_of, steps):
    rows = [verl_row(i) for i in range(11)]
    loader = loader_of(rows, train_batch_size=4)
    for _ in range(steps):
        loader.next_batch()
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = loader_of(rows, train_batch_size=4)
    resumed.load_state_dict(state)
    assert [resumed.next_batch() for _ in range(5)] == [loader.next_batch() for _ in range(5)]


def test_resume_with_other_rows_is_refused(loader_of):
    state = loader_of([verl_row(i) for i in range(4)]).state_dict()
    with pytest.raises(UserInputError, match="rows 4 then, 5 now") as caught:
        loader_of([verl_row(i) for i in range(5)]).load_state_dict(state)
    assert caught.value.reason == "DataChanged"
