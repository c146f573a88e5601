"""Parsing and refusing GRPOJobs."""

import copy
import inspect
from pathlib import Path
from typing import get_args

import pytest
from ruamel.yaml import YAML

from grpo_api.errors import InvalidJobError
from grpo_api.job import parse_job
from grpo_api.spec import reward_rules
from grpo_api.spec.reward import BuiltinReward
from grpo_trainer.rewards.rules import RULES

EXAMPLE = Path(__file__).parents[3] / "examples" / "arithmetic.yaml"


@pytest.fixture
def raw() -> dict:
    return YAML(typ="safe").load(EXAMPLE.read_text())


def faults(raw: dict) -> list[str]:
    with pytest.raises(InvalidJobError) as error:
        parse_job(raw)
    return [str(fault) for fault in error.value.faults]


def test_example_is_valid_and_numbers_are_numbers(raw):
    job = parse_job(raw)
    assert job.spec.actor.optim.lr == 3e-5
    assert job.batch_plan.responses_per_step == 64


def test_dump_parses_again_to_the_same_job(raw):
    job = parse_job(raw)
    assert parse_job(job.dump()) == job


def test_unknown_field_is_named(raw):
    raw["spec"]["actor"]["ppoMinibatchSize"] = 8
    assert any("spec.actor.ppoMinibatchSize" in fault and "unknown field" in fault for fault in faults(raw))


def test_all_faults_are_listed_at_once(raw):
    raw["spec"]["rollout"]["n"] = 1
    raw["spec"]["actor"]["optim"]["lr"] = -1
    found = faults(raw)
    assert any(fault.startswith("spec.rollout.n:") for fault in found)
    assert any(fault.startswith("spec.actor.optim.lr:") for fault in found)


def test_reward_syntax_error_has_file_and_line(raw):
    raw["spec"]["reward"]["functions"] = [
        {"name": "mine", "python": {"source": "def compute_score(a):\n    return (1\n"}}
    ]
    (found,) = faults(raw)
    assert "spec.reward.functions[0].python.source" in found
    assert "mine.py, line 2" in found
    assert "SyntaxError" in found


def test_reward_function_must_be_defined(raw):
    raw["spec"]["reward"]["functions"] = [{"name": "mine", "python": {"source": "def other(): pass"}}]
    (found,) = faults(raw)
    assert "is not defined" in found
    assert "other" in found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda spec: spec["trainer"].update(totalEpochs=1), "exactly one of totalSteps and totalEpochs"),
        (lambda spec: spec["trainer"].pop("totalSteps"), "exactly one of totalSteps and totalEpochs"),
        (
            lambda spec: spec["data"]["train"].update(files=["/a.jsonl"]),
            "exactly one of files, hub, reasoningGym and mix",
        ),
        (lambda spec: spec["checkpoint"].update(claimName="c"), "at most one of claimName and claimTemplate"),
        (
            lambda spec: spec["actor"].update(ppoMicroBatchSizePerGpu=8, ppoMaxTokenLenPerGpu=4096),
            "actor.ppoMaxTokenLenPerGpu",
        ),
        (lambda spec: spec["data"].update(promptTemplate="no place for it"), "{prompt}"),
        (
            lambda spec: spec["reward"]["functions"].append(copy.deepcopy(spec["reward"]["functions"][0])),
            "names must differ",
        ),
    ],
)
def test_choices(raw, change, words):
    change(raw["spec"])
    assert any(words in fault for fault in faults(raw))


def test_rules_take_the_parameters_that_are_checked_here():
    """The trainer binds them by name; what one takes and the other refuses would be found with the GPUs allocated."""
    taken = {
        rule: {p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY}
        for rule, function in RULES.items()
    }
    models = {rule: set(model.model_fields) - {"answer_tag"} for rule, model in reward_rules.RULES.items()}
    assert taken | {"verl": taken["code"]} == models  # `verl` hands its parameters on
    assert set(get_args(BuiltinReward.model_fields["rule"].annotation)) == RULES.keys()


def test_null_is_unset_and_a_whole_float_is_a_number(raw):
    """As the API server has it (tests/apiserver/test_admission.py)."""
    raw["spec"]["rollout"]["temperature"] = None
    raw["spec"]["metrics"] = None
    raw["spec"]["trainer"]["totalSteps"] = 1e3
    job = parse_job(raw)
    assert (job.spec.rollout.temperature, job.spec.metrics.port, job.spec.trainer.total_steps) == (1.0, 9464, 1000)


def test_status_and_server_fields_are_no_faults(raw):
    raw["status"] = {"state": "Running"}
    raw["metadata"] |= {"uid": "u", "resourceVersion": "1", "managedFields": []}
    parse_job(raw)
