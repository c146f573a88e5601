"""What the API server itself refuses, with the field, the value and the repair."""

import json
from pathlib import Path

import pytest

from grpo_api.crd import crd
from tests.apiserver.admission_support import verdicts
from tests.unit.api.bad_specs import ADMISSION, BAD_SPECS, VALID, changed

EXAMPLE = Path(__file__).parents[2] / "examples" / "arithmetic.yaml"
OTHER_VERSION = "api-version"
"""The case that kubectl refuses by itself, as the server knows no such kind."""
CHANGES = {
    "model": {"path": "/models/other"},
    "data": {"seed": 7},
    "reward": {"workers": 3},
    "algorithm": {"normAdvByStdInGrpo": False},
    "rollout": {"temperature": 0.5},
    "actor": {"clipRatio": 0.3},
    "ref": {"logProbMicroBatchSizePerGpu": 7},
    "trainer": {"saveFreq": 7},
    "gangScheduling": {"scheduleTimeoutSeconds": 61},
    "checkpoint": {"keep": 5},
    "template": {"shmSize": "9Gi"},
    "metrics": {"port": 9999},
}
STATUS_PATCH = ("patch", "grpojob", "sly", "--subresource=status", "--type=merge", "-p")
pytestmark = pytest.mark.apiserver


@pytest.fixture
def answers(plane, job):
    """Refusals by case, and the cases."""
    cases = [case for case in BAD_SPECS if case.name != OTHER_VERSION]
    objects = [
        changed(job(f"case-{index}", checkpoint={"claimTemplate": {}}), c.change) for index, c in enumerate(cases)
    ]
    return list(zip(cases, verdicts(plane, objects), strict=True))


def test_bad_specs_are_refused_with_field_value_and_repair(answers):
    refused = [(case, text) for case, text in answers if case.layer == ADMISSION]
    assert len(refused) >= 60
    for case, text in refused:
        assert all(words in text for words in case.admission), (case.name, text)
        field = case.admission_path or case.path
        assert f"{field}" in text, (case.name, text)


def test_what_only_the_operator_can_see_is_let_through(answers):
    """Else the case belongs to the earlier layer."""
    later = [(case, text) for case, text in answers if case.layer == VALID]
    assert later
    assert [(case.name, text) for case, text in later if text] == []


def test_another_version_is_named(plane, job):
    (case,) = [case for case in BAD_SPECS if case.name == OTHER_VERSION]
    with pytest.raises(AssertionError, match=r'no matches for kind "GRPOJob" in version "grpo\.dev/v1"'):
        plane.apply(changed(job("other"), case.change))


def test_bare_n_in_yaml_is_explained(plane):
    """kubectl's own reader makes a boolean of the key."""
    text = EXAMPLE.read_text()
    assert '"n": 8' in text
    with pytest.raises(AssertionError, match="put the key in quotes"):
        plane.kubectl("apply", "-f", "-", stdin=text.replace('"n": 8', "n: 8"))


def test_null_is_unset_and_whole_floats_are_numbers(plane, job):
    """As `parse_job` has it."""
    item = job("nulls", rollout={"temperature": None, "logProbMicroBatchSizePerGpu": None}, trainer={"totalSteps": 1e3})
    item["spec"]["metrics"] = None
    assert verdicts(plane, [item]) == [""]


def test_what_cannot_change_says_what_to_do_instead(plane, job):
    plane.apply(job("frozen"))
    try:
        with pytest.raises(AssertionError, match="delete the job and apply it again") as refusal:
            plane.apply(job("frozen", actor={"clipRatio": 0.3}))
        assert "spec.actor" in str(refusal.value)
        for policy in (
            {"suspend": True},
            {"maxRestarts": 7},
            {"ttlSecondsAfterFinished": 60},
            {"activeDeadlineSeconds": 9},
        ):
            plane.apply(job("frozen", runPolicy=policy))
        for policy in ({"managedBy": "grpo.dev/operator"}, {"managedBy": "example.com/dispatcher"}):
            with pytest.raises(AssertionError, match="managedBy cannot change after creation"):
                plane.apply(job("frozen", runPolicy=policy))
    finally:
        plane.kubectl("delete", "grpojob", "frozen", "--wait=false")


@pytest.mark.parametrize("before", [{}, {"lastUpdateTime": "2026-01-01T00:00:00Z", "state": "Running"}])
def test_no_section_changes_with_or_without_a_status(plane, job, before):
    """The rule passes writes of the status by. It knows them by `lastUpdateTime`, which no writer of a spec can set."""
    plane.apply(job("sly"))
    try:
        if before:
            plane.kubectl(*STATUS_PATCH, json.dumps({"status": before}))
        written = plane.get("grpojob", "sly")["spec"]
        assert set(CHANGES) == set(written) - {"runPolicy"}
        for name, change in CHANGES.items():
            item = plane.get("grpojob", "sly")
            item["spec"][name] = {**written[name], **change}
            item["status"] = {**item.get("status", {}), "lastUpdateTime": "2030-01-01T00:00:00Z"}
            with pytest.raises(AssertionError, match=rf"spec\.{name} cannot change after creation"):
                plane.kubectl("replace", "-f", "-", stdin=json.dumps(item))
        change = {"status": {"lastUpdateTime": "2030-01-01T00:00:00Z"}, "spec": {"rollout": {"temperature": 0.125}}}
        plane.kubectl(*STATUS_PATCH, json.dumps(change))
        made = plane.get("grpojob", "sly")
        assert (made["status"]["lastUpdateTime"], made["spec"]) == ("2030-01-01T00:00:00Z", written)
    finally:
        plane.kubectl("delete", "grpojob", "sly", "--wait=false")


def test_owner_of_a_section_is_who_made_it_and_another_may_own_the_policy(plane, job):
    """Server-side apply, as Argo CD and Flux do it: anew and without change, and beside a second manager."""
    item = json.dumps(job("owned"))
    try:
        plane.kubectl("apply", "--server-side", "--field-manager=team", "-f", "-", stdin=item)
        first = plane.get("grpojob", "owned")
        plane.kubectl("apply", "--server-side", "--field-manager=team", "-f", "-", stdin=item)
        assert plane.get("grpojob", "owned")["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        head = {key: first[key] for key in ("apiVersion", "kind")} | {"metadata": {"name": "owned"}}
        policy = json.dumps(head | {"spec": {"runPolicy": {"suspend": True}}})
        plane.kubectl("apply", "--server-side", "--field-manager=queue", "-f", "-", stdin=policy)
        plane.kubectl("apply", "--server-side", "--field-manager=team", "-f", "-", stdin=item)
        spec = plane.get("grpojob", "owned")["spec"]
        assert spec["runPolicy"]["suspend"] is True
        assert {**spec, "runPolicy": first["spec"]["runPolicy"]} == first["spec"]
    finally:
        plane.kubectl("delete", "grpojob", "owned", "--wait=false", "--ignore-not-found")


def schema(part):
    return crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part]


def test_learning_rate_in_scientific_notation(plane):
    """`lr: 1e-6` through kubectl's YAML reader."""
    text = EXAMPLE.read_text().replace("lr: 3e-5", "lr: 1e-6")
    said = plane.kubectl("create", "--dry-run=server", "-f", "-", "-o", "jsonpath={.spec.actor.optim.lr}", stdin=text)
    assert float(said) == 1e-6


def test_explain_reads_well(plane):
    said = plane.kubectl("explain", "grpojob.spec.rollout")
    section = schema("spec")["properties"]["rollout"]
    assert " ".join(section["description"].split()) in " ".join(said.split())
    for words in ("Responses a prompt", "GPUs of one node", "ratio from 0 to 1", "sglang is not in this API yet"):
        assert words in " ".join(said.split()), said
