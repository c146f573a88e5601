"""docs/reference: the page names every field, and the editors' schema takes good jobs and refuses bad ones."""

import copy
import json
from pathlib import Path

import pytest
from jsonschema import Draft7Validator
from ruamel.yaml import YAML

from grpo_api.fields import every_field
from grpo_api.job import GRPOJobSpec
from tests.unit.api.bad_specs import ADMISSION, BAD_SPECS, changed

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "grpojob.md").read_text()
SCHEMA = json.loads((ROOT / "docs" / "reference" / "grpojob.schema.json").read_text())
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
# Rules across fields and reserved words, which only CEL and `parse_job` say.
ACROSS = 38


def load(path: Path) -> dict:
    return YAML(typ="safe", pure=True).load(path.read_text())


def test_schema_is_a_schema():
    Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_fit_the_schema(example):
    assert [error.message for error in Draft7Validator(SCHEMA).iter_errors(load(example))] == []


def test_an_editor_sees_what_one_field_alone_tells():
    missed = []
    for case in BAD_SPECS:
        job = changed(copy.deepcopy(load(ROOT / "examples" / "arithmetic.yaml")), case.change)
        if case.layer == ADMISSION and Draft7Validator(SCHEMA).is_valid(job):
            missed.append(case.name)
    assert not [name for name in missed if name.startswith(("quantity-g", "int", "slip", "snake", "name", "critic"))]
    assert len(missed) <= ACROSS, missed


def test_every_field_has_a_row_in_the_table_of_its_object():
    for name, path in every_field(GRPOJobSpec, "spec"):
        heading = f"## {path}\n"
        assert heading in PAGE, path
        section = PAGE.split(heading, 1)[1].split("\n## ")[0].split("\n### ")[0]
        assert f"| `{name}` |" in section, f"{path}.{name}"


def test_rows_hold_type_default_bounds_and_meaning():
    assert "| `n` | integer | `8` | >= 2, <= 4,096 | Responses a prompt" in PAGE
    assert "| `lr` | number | `1e-06` | > 0, <= 1 |" in PAGE
    assert '| `shmSize` | quantity | `"8Gi"` |' in PAGE
    assert "| `betas` | list of numbers | `[0.9, 0.999]` | 2 entries, each >= 0, < 1 |" in PAGE
    assert "| `trainBatchSize` | integer | required |" in PAGE


def test_reserved_names_are_no_fields():
    assert "`critic`" not in PAGE.replace("needs a critic", "")
    assert "critic" not in SCHEMA["properties"]["spec"]["properties"]
