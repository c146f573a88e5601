"""A gang of two pods that trains: what people see, and what survives."""

import json
import time

import pytest

from e2e_support import OPERATOR_NAMESPACE, condition, step, tiny_job

pytestmark = pytest.mark.e2e

START_SECONDS = 300
"""From apply to the first step: two pods on two cores import torch and vLLM and start Ray."""


GET = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())"


def head_metrics(cluster, job: str) -> str:
    """From inside the head pod, as Prometheus would."""
    url = "http://localhost:9464/metrics"
    return cluster.kubectl("exec", f"{job}-0", "-c", "trainer", "--", "python3", "-c", GET, url)


def operator_metrics(cluster) -> str:
    url = "http://localhost:8080/metrics"
    return cluster.kubectl("exec", "-n", OPERATOR_NAMESPACE, "deploy/grpo-operator", "--", "python3", "-c", GET, url)


def first_steps_in_log(cluster, job: str) -> int:
    """The first step that the present head pod reports."""
    lines = cluster.kubectl("logs", f"{job}-0", "-c", "trainer").splitlines()
    return min(int(line.split("=", 1)[1].split("/")[0]) for line in lines if line.startswith("step="))


def test_job_trains_survives_faults_and_succeeds(cluster, apply):
    """One job, in the order of its life: progress, metrics, operator lost, worker lost, resumed, succeeded."""
    name = apply(tiny_job("life", trainer={"totalSteps": 40}))
    cluster.wait_status(name, lambda s: step(s) >= 2, START_SECONDS, "second step")

    table = cluster.kubectl("get", "grpojobs", name)
    header, row = table.splitlines()[:2]
    assert header.split()[:6] == ["NAME", "STATE", "STEP", "PROGRESS", "REWARD", "READY"]
    assert row.split()[1] == "Running"
    assert row.split()[5] == "2/2"

    metrics = head_metrics(cluster, name)
    for metric in (
        "grpo_reward_mean{",
        "grpo_throughput_tokens_per_second{",
        'phase="rollout"',
        'phase="update"',
        'phase="sync"',
        "grpo_host_memory_bytes{",
    ):
        assert metric in metrics, metric
    own = operator_metrics(cluster)
    assert 'state="Running"} 1.0' in own
    assert "grpo_operator_reconcile_seconds_count" in own

    # The operator dies: pods run on, and the status is taken up where it was.
    before = {pod: data["metadata"]["uid"] for pod, data in cluster.pods(name).items()}
    seen = step(cluster.status(name))
    cluster.kubectl("delete", "pod", "-n", OPERATOR_NAMESPACE, "-l", "app.kubernetes.io/name=grpo-operator", "--force")
    cluster.kubectl("rollout", "status", "-n", OPERATOR_NAMESPACE, "deploy/grpo-operator", "--timeout=120s")
    status = cluster.wait_status(name, lambda s: step(s) > seen, 120, "progress under the new operator")
    assert {pod: data["metadata"]["uid"] for pod, data in cluster.pods(name).items()} == before
    assert status.get("restarts", []) == []
    assert status["state"] == "Running"

    # A worker pod dies: the whole gang restarts once and goes on from the checkpoint.
    saved = cluster.wait_status(name, lambda s: (s.get("checkpoint") or {}).get("step", 0) >= 2, 60, "checkpoint")
    cluster.kubectl("delete", "pod", f"{name}-1", "--force", "--grace-period=0")
    cluster.wait_status(name, lambda s: s.get("attempt") == 1, 60, "second attempt")
    after = cluster.wait_status(
        name,
        lambda s: s.get("state") == "Running" and step(s) > s["restarts"][0].get("fromStep", 0),
        START_SECONDS,
        "progress after the restart",
    )
    assert len(after["restarts"]) == 1
    resumed = after["restarts"][0]["fromStep"]
    assert resumed >= saved["checkpoint"]["step"]
    assert first_steps_in_log(cluster, name) == resumed + 1
    assert not set(before.values()) & {data["metadata"]["uid"] for data in cluster.pods(name).values()}

    cluster.kubectl("wait", "--for=condition=Succeeded", f"grpojob/{name}", "--timeout=170s")
    status = cluster.status(name)
    assert (status["state"], step(status), status["checkpoint"]["step"]) == ("Succeeded", 40, 40)
    assert len(status["restarts"]) == 1
    assert condition(status, "Failed").get("status") != "True"
    story = cluster.kubectl("describe", "grpojob", name).split("Events:")[1]
    for word in ("Restart", "Succeeded"):
        assert word in story


def test_delete_with_the_operator_down_leaves_only_a_retained_claim(cluster, apply):
    name = apply(tiny_job("orphan", checkpoint={"claimTemplate": {"size": "1Gi"}, "whenDeleted": "Retain"}))
    deadline = time.monotonic() + 60
    while len(cluster.pods(name)) < 2:
        assert time.monotonic() < deadline, "pods were not made"
        time.sleep(0.5)
    cluster.kubectl("scale", "-n", OPERATOR_NAMESPACE, "deploy/grpo-operator", "--replicas=0")
    try:
        cluster.kubectl("delete", "grpojob", name, "--timeout=60s")
        selector = f"grpo.dev/job-name={name}"
        deadline = time.monotonic() + 90
        while left := [
            f"{item['kind']}/{item['metadata']['name']}"
            for item in json.loads(cluster.kubectl("get", "pods,services,configmaps", "-l", selector, "-o", "json"))[
                "items"
            ]
        ]:
            assert time.monotonic() < deadline, f"still there: {left}"
            time.sleep(1)
        claims = cluster.get_list("pvc", selector)
        assert [claim["metadata"]["name"] for claim in claims] == [f"{name}-checkpoints"]
    finally:
        cluster.kubectl("scale", "-n", OPERATOR_NAMESPACE, "deploy/grpo-operator", "--replicas=1")
        cluster.kubectl("rollout", "status", "-n", OPERATOR_NAMESPACE, "deploy/grpo-operator", "--timeout=120s")
        cluster.kubectl("delete", "pvc", f"{name}-checkpoints", "--ignore-not-found", "--wait=false")


def test_reward_that_fails_on_import_is_the_users_fault_and_is_not_retried(cluster, apply):
    source = "import not_a_module\n\ndef compute_score(data_source, solution_str, ground_truth):\n    return 1.0\n"
    name = apply(tiny_job("bad-import", reward={"functions": [{"name": "mine", "python": {"source": source}}]}))
    cluster.kubectl("wait", "--for=condition=Failed", f"grpojob/{name}", "--timeout=170s")
    status = cluster.status(name)
    assert "mine.py, line 1" in status["message"]
    assert "not_a_module" in status["message"]
    assert status.get("restarts", []) == []
