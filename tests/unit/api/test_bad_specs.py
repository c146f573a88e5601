"""Every bad spec is refused by a message that names field, value and repair. The API server's part: tests/apiserver."""

import copy
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from grpo_api.errors import InvalidJobError
from grpo_api.job import parse_job
from tests.unit.api.bad_specs import BAD_SPECS, BadSpec, changed
from tests.unit.api.mutations import VALUES, mutated, spec_paths

EXAMPLE = YAML(typ="safe").load((Path(__file__).parents[3] / "examples" / "arithmetic.yaml").read_text())
PYDANTICS_WORDS = re.compile(r"Input should|Extra inputs|Field required|valid dictionary|instance of|String should")


@pytest.mark.parametrize("case", BAD_SPECS, ids=lambda case: case.name)
def test_message_names_field_value_and_repair(case: BadSpec):
    with pytest.raises(InvalidJobError) as error:
        parse_job(changed(copy.deepcopy(EXAMPLE), case.change))
    messages = [str(fault) for fault in error.value.faults]
    about = [message for message in messages if message.startswith(f"{case.path}: ")]
    assert about, messages
    assert any(all(word in message for word in case.words) for message in about), messages


@pytest.mark.parametrize("case", BAD_SPECS, ids=lambda case: case.name)
def test_one_mistake_gives_one_short_message_in_our_words(case: BadSpec):
    """A second message about the same mistake would hide the first one."""
    with pytest.raises(InvalidJobError) as error:
        parse_job(changed(copy.deepcopy(EXAMPLE), case.change))
    paths = Counter(fault.path for fault in error.value.faults)
    assert len(paths) == (2 if case.name == "same-name" else 1), str(error.value)
    for fault in error.value.faults:
        assert len(str(fault)) < 450, fault
        assert not PYDANTICS_WORDS.search(fault.message), fault


def test_the_example_itself_is_good():
    parse_job(copy.deepcopy(EXAMPLE))


def test_names_are_distinct():
    assert len({case.name for case in BAD_SPECS}) == len(BAD_SPECS) >= 60


@given(st.sampled_from(spec_paths()), st.sampled_from(VALUES))
@settings(deadline=None, max_examples=1500, derandomize=True)
def test_any_value_anywhere_is_taken_or_refused_in_our_words(path, value):
    job = mutated(copy.deepcopy(EXAMPLE), path, value)
    try:
        parsed = parse_job(job)
    except InvalidJobError as error:
        for fault in error.faults:
            assert fault.path, fault
            assert not PYDANTICS_WORDS.search(fault.message), fault
    else:
        assert parse_job(parsed.dump()) == parsed
