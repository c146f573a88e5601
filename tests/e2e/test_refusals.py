"""What a user gets for a job that cannot run: at once, in words, and without a GPU held."""

import time

import pytest

from e2e_support import condition, tiny_job

pytestmark = pytest.mark.e2e


def test_batch_that_does_not_divide_is_refused_at_apply(cluster):
    with pytest.raises(AssertionError) as refusal:
        cluster.apply(tiny_job("indivisible", data={"trainBatchSize": 8}, actor={"ppoMiniBatchSize": 3}))
    assert "actor.ppoMiniBatchSize (3 prompts) must divide data.trainBatchSize (8 prompts)" in str(refusal.value)


def test_unknown_field_is_refused_at_apply(cluster):
    with pytest.raises(AssertionError, match="ppoMinibatchSize"):
        cluster.apply(tiny_job("misspelt", actor={"ppoMinibatchSize": 3}))


def test_immutable_section_says_what_to_do_instead(cluster, apply):
    name = apply(tiny_job("frozen", runPolicy={"suspend": True}))
    with pytest.raises(AssertionError, match="delete the job and apply it again"):
        cluster.apply(tiny_job(name, runPolicy={"suspend": True}, rollout={"n": 8}))


def test_reward_syntax_error_ends_in_failed_with_file_and_line(cluster, apply):
    source = "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return (1\n"
    name = apply(tiny_job("typo", reward={"functions": [{"name": "mine", "python": {"source": source}}]}))
    cluster.kubectl("wait", "--for=condition=Failed", f"grpojob/{name}", "--timeout=30s")
    status = cluster.status(name)
    assert status["state"] == "Failed"
    assert "mine.py, line 2" in status["message"]
    assert "SyntaxError" in status["message"]
    assert cluster.pods(name) == {}


def test_image_that_cannot_be_pulled_shows_its_reason_within_a_minute(cluster, apply):
    begin = time.monotonic()
    name = apply(
        tiny_job("no-image", template={"image": "registry.invalid/none:missing", "imagePullPolicy": "IfNotPresent"})
    )
    status = cluster.wait_status(
        name,
        lambda s: "Image" in (condition(s, "Running").get("reason") or ""),
        60,
        "image reason in condition Running",
    )
    assert time.monotonic() - begin < 60
    assert "registry.invalid/none:missing" in condition(status, "Running")["message"]
    assert "Image" in cluster.kubectl("describe", "grpojob", name).split("Events:")[1]
