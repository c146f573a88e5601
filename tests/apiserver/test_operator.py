"""The operator against a real API server, scheduler and controller-manager."""

import json
import threading
import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.request import urlopen

import pytest

pytestmark = pytest.mark.apiserver


def condition(status, kind):
    return next((item for item in status.get("conditions", []) if item["type"] == kind), {})


@pytest.fixture
def head():
    """A head pod's endpoint on this machine."""
    reports = {"phase": "training"}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps(reports).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield reports, server.server_port
    server.shutdown()


def report(exit_code, reason, message="", step=0):
    progress = {"step": step, "totalSteps": 20, "percent": f"{5 * step}%", "rewardMean": 0.5}
    return json.dumps({"exitCode": exit_code, "reason": reason, "message": message, "progress": progress})


def test_life_of_a_job(rig, job, head):
    """Made, scheduled as a gang, running, restarted once, succeeded; its story in Events and its state in metrics."""
    reports, port = head
    rig.apply(job("life", metrics={"port": port}))
    rig.wait("pods", lambda: len(rig.items("pods", "life")) == 2)
    assert set(rig.items("services", "life")) == {"life"}
    assert set(rig.items("configmaps", "life")) == {"life-config"}
    status = rig.status("life")
    assert status["batchPlan"]["responsesPerStep"] == 64
    assert status["gang"]["backend"] == "native"
    rig.run_pods("life")
    status = rig.wait_state("life", "Running")
    assert status["nodes"]["summary"] == "2/2"
    assert condition(status, "Scheduled")["status"] == "True"
    assert condition(status, "Running")["status"] == "True"

    reports |= {
        "progress": {"step": 7, "totalSteps": 20, "rewardMean": 0.25, "tokensPerSecond": 99.5},
        "checkpoint": {"step": 5, "path": "/checkpoints/default.life/step-00000005"},
    }
    rig.wait("progress", lambda: (rig.status("life").get("progress") or {}).get("step") == 7)
    row = rig.kubectl("get", "grpojob", "life").splitlines()[1].split()
    assert row[:6] == ["life", "Running", "7", "35%", "0.25", "2/2"]
    with urlopen(f"http://127.0.0.1:{rig.metrics_port}/metrics") as answer:
        assert b'grpo_operator_jobs{job_namespace="default",state="Running"} 1.0' in answer.read()

    before = {pod["metadata"]["uid"] for pod in rig.items("pods", "life").values()}
    rig.end_pod("life-1", 137, reason="OOMKilled")
    rig.wait("second attempt", lambda: rig.status("life").get("attempt") == 1)

    def second_gang():
        rig.confirm_deletions("life")
        pods = rig.items("pods", "life").values()
        return len(pods) == 2 and not before & {pod["metadata"]["uid"] for pod in pods}

    rig.wait("new pods after the backoff", second_gang)
    status = rig.status("life")
    assert [(r["cause"], r["counted"], r["fromStep"]) for r in status["restarts"]] == [("OOMKilled", True, 5)]
    rig.run_pods("life")
    rig.wait_state("life", "Running")
    assert set(rig.items("podgroups.scheduling.k8s.io", "life")) == {"life-1"}

    rig.end_pod("life-0", 0, report(0, "Completed", step=20))
    status = rig.wait_state("life", "Succeeded")
    assert status["progress"]["step"] == 20
    rig.kubectl("wait", "--for=condition=Succeeded", "grpojob/life", "--timeout=5s")
    rig.wait(
        "running pods deleted", lambda: rig.confirm_deletions("life") or set(rig.items("pods", "life")) == {"life-0"}
    )
    rig.wait("gang objects deleted", lambda: not rig.items("podgroups.scheduling.k8s.io", "life"))
    story = rig.kubectl("describe", "grpojob", "life").split("Events:")[1]
    for word in ("PodsCreated", "Training", "Checkpoint", "Restarting", "Succeeded"):
        assert word in story


def test_pod_deleted_by_somebody_restarts_the_gang_and_does_not_count(rig, job):
    rig.apply(job("taken"))
    rig.run_pods("taken")
    rig.wait("gang complete", lambda: rig.status("taken").get("createdAttempt") == 0)
    rig.kubectl("delete", "pod", "taken-1", "--force", "--grace-period=0")
    rig.wait("restart", lambda: rig.status("taken").get("attempt") == 1)

    def replaced():
        rig.confirm_deletions("taken")
        pods = rig.items("pods", "taken").values()
        return len(pods) == 2 and {pod["metadata"]["labels"]["grpo.dev/attempt"] for pod in pods} == {"1"}

    rig.wait("second gang", replaced)
    time.sleep(1)
    status = rig.status("taken")
    assert [(entry["cause"], entry["counted"], entry["pod"]) for entry in status["restarts"]] == [
        ("PodDeleted", False, "taken-1")
    ]
    assert status["failures"] == 0


def test_operator_killed_and_restarted_changes_no_pod(rig, job):
    rig.apply(job("steady"))
    rig.run_pods("steady")
    rig.wait("gang complete", lambda: rig.status("steady").get("createdAttempt") == 0)
    before = {name: pod["metadata"]["uid"] for name, pod in rig.items("pods", "steady").items()}
    rig.stop_operator(kill=True)
    rig.start_operator()
    # The killed operator's Lease must run out first; then another job shows that the new one acts.
    rig.apply(job("later"))
    rig.wait("the new operator at work", lambda: len(rig.items("pods", "later")) == 2, 40)
    assert {name: pod["metadata"]["uid"] for name, pod in rig.items("pods", "steady").items()} == before
    assert rig.status("steady").get("restarts", []) == []


def test_a_stop_is_quick(rig):
    """A rollout of the operator waits for it. kopf on its own gives tasks that are not its own 5 s to end."""
    rig.wait("the operator's lead", lambda: rig.operator.probe("readyz") == (200, "leads"))
    client = HTTPConnection("127.0.0.1", rig.operator.probe_port)
    client.request("GET", "/healthz")
    client.getresponse().read()  # the connection stays open, and with it a task
    began = time.monotonic()
    rig.stop_operator()
    assert time.monotonic() - began < 4.5


def test_delete_with_the_operator_down_leaves_only_a_retained_claim(rig, job):
    checkpoint = {"claimTemplate": {"size": "1Gi", "storageClassName": "none"}, "whenDeleted": "Retain"}
    rig.apply(job("gone", checkpoint=checkpoint))
    rig.wait("children", lambda: len(rig.items("pods", "gone")) == 2)
    rig.stop_operator()
    rig.kubectl("delete", "grpojob", "gone", "--timeout=20s")

    def empty():
        rig.confirm_deletions("gone")
        return not (rig.items("pods", "gone") or rig.items("services", "gone") or rig.items("configmaps", "gone"))

    rig.wait("children collected", empty, 60)
    assert set(rig.items("pvc", "gone")) == {"gone-checkpoints"}


def test_suspend_and_resume(rig, job):
    rig.apply(job("nap"))
    rig.run_pods("nap")
    rig.wait("gang complete", lambda: rig.status("nap").get("createdAttempt") == 0)
    rig.kubectl("patch", "grpojob", "nap", "--type=merge", "-p", '{"spec":{"runPolicy":{"suspend":true}}}')
    rig.wait("no pods", lambda: rig.confirm_deletions("nap") or not rig.items("pods", "nap"))
    assert condition(rig.wait_state("nap", "Suspended"), "Suspended")["status"] == "True"
    rig.kubectl("patch", "grpojob", "nap", "--type=merge", "-p", '{"spec":{"runPolicy":{"suspend":false}}}')
    rig.wait("pods again", lambda: len(rig.items("pods", "nap")) == 2)
    status = rig.status("nap")
    assert status["attempt"] == 1
    assert status.get("restarts", []) == []


def test_users_fault_fails_at_once_with_its_words(rig, job):
    rig.apply(job("fault"))
    rig.run_pods("fault")
    rig.end_pod("fault-0", 65, report(65, "RewardError", "mine.py, line 3, in compute_score: KeyError: 'x'"))
    status = rig.wait_state("fault", "Failed")
    assert (status["reason"], status.get("restarts", [])) == ("RewardError", [])
    assert "mine.py, line 3" in status["message"]


def test_failures_end_at_max_restarts_and_the_ended_job_goes_after_its_ttl(rig, job):
    rig.apply(job("worn", runPolicy={"maxRestarts": 0}))
    rig.run_pods("worn")
    rig.end_pod("worn-1", 1, "Traceback: boom")
    status = rig.wait_state("worn", "Failed")
    assert status["reason"] == "MaxRestartsReached"
    assert "boom" in status["message"]
    rig.kubectl(
        "patch", "grpojob", "worn", "--type=merge", "-p", '{"spec":{"runPolicy":{"ttlSecondsAfterFinished":1}}}'
    )
    rig.wait("the job deleted after its TTL", lambda: "worn" not in rig.kubectl("get", "grpojobs", "-o", "name"))


def test_image_problem_is_a_condition_and_an_event(rig, job):
    rig.apply(job("noimage"))
    rig.run_pods("noimage")
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    status = {"phase": "Pending", "containerStatuses": [{**_waiting(waiting)}]}
    rig.set_pod_status("noimage-1", {**status, "conditions": [{"type": "Ready", "status": "False"}]})
    rig.wait("reason", lambda: condition(rig.status("noimage"), "Running").get("reason") == "ImagePullBackOff")
    assert "template.imagePullSecrets" in condition(rig.status("noimage"), "Running")["message"]
    rig.wait("event", lambda: "ImagePullBackOff" in rig.kubectl("describe", "grpojob", "noimage"))


def _waiting(state):
    return {"name": "trainer", "state": state, "ready": False, "restartCount": 0, "image": "i", "imageID": ""}


def test_gang_that_does_not_fit_says_so_and_holds_nothing(rig, job):
    rig.apply(job("huge", trainer={"nGpusPerNode": 16}))
    status = rig.wait_state("huge", "Scheduling")
    rig.wait("reason", lambda: rig.status("huge")["reason"] == "Unschedulable")
    status = rig.status("huge")
    assert "nvidia.com/gpu" in status["message"] or "PodGroup" in status["message"] or "nodes" in status["message"]
    assert not any(pod["spec"].get("nodeName") for pod in rig.items("pods", "huge").values())


def test_foreign_object_of_our_name_is_reported_and_not_touched(rig, job):
    rig.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine-config"}, "data": {"a": "b"}})
    rig.apply(job("mine"))
    rig.wait("conflict", lambda: rig.status("mine").get("reason") == "NameConflict")
    assert rig.get("configmap", "mine-config")["data"] == {"a": "b"}
    assert not rig.items("pods", "mine")
    rig.kubectl("delete", "configmap", "mine-config")
    rig.wait("pods after the repair", lambda: len(rig.items("pods", "mine")) == 2)


def test_quota_is_told_in_the_status(rig, job):
    rig.kubectl("create", "quota", "tight", "--hard=pods=1")
    try:
        rig.wait("quota status", lambda: rig.get("quota", "tight").get("status", {}).get("hard"))
        rig.apply(job("quota"))
        rig.wait("reason", lambda: rig.status("quota").get("reason") == "QuotaExceeded")
        assert "tight" in rig.status("quota")["message"]
    finally:
        rig.kubectl("delete", "quota", "tight")
    rig.wait("pods after the repair", lambda: len(rig.items("pods", "quota")) == 2)


def test_idle_job_is_not_written_to(rig, job):
    rig.apply(job("idle"))
    rig.run_pods("idle")
    rig.wait("gang complete", lambda: rig.status("idle").get("createdAttempt") == 0)
    time.sleep(2)
    before = rig.get("grpojob", "idle")["metadata"]["resourceVersion"]
    time.sleep(5)
    assert rig.get("grpojob", "idle")["metadata"]["resourceVersion"] == before
