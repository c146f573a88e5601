"""Each field of `data`, `reward`, `algorithm`, `rollout`, `actor` and `ref` changes what it should.

`ACTS` holds for each field a change of it and the probe that must see the change: batches of the data, advantages,
weights after updates, what the controller asks of the gang, what engines and reward processes are made with. What shows
only in pods or on GPUs is held by a test elsewhere, which must name the field. A new field without either fails.
"""

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from pydantic import create_model
from transformers import PreTrainedTokenizerFast

from grpo_api.fields import bare, inner, is_model
from grpo_api.job import GRPOJobSpec
from grpo_api.spec.training import OptimSpec
from grpo_trainer.data_mix import make_loader
from grpo_trainer.errors import UserInputError
from grpo_trainer.metrics import TrainerMetrics
from grpo_trainer.rewards.result import RewardResult
from grpo_trainer.rollout.base import Request, Response
from grpo_trainer.validation import Validator
from tests.unit.api.test_fields_are_read import ROOT, models_below
from tests.unit.trainer.field_changes import ACTS, ELSEWHERE, Change
from tests.unit.trainer.field_probes import PURE, Probe, SilentServer
from tests.unit.trainer.test_data import tokenizer  # noqa: F401
from tests.unit.trainer.trainer_support import make_model

SECTIONS = ("data", "reward", "algorithm", "rollout", "actor", "ref")


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
