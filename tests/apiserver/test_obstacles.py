"""What keeps a job from running, as a real API server, its admission plugins and its scheduler say it."""

import json
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.apiserver.test_operator import head  # noqa: F401

pytestmark = pytest.mark.apiserver


@contextmanager
def there(rig, item):
    """An object of the cluster, for a while."""
    rig.apply(item)
    try:
        yield
    finally:
        rig.kubectl("delete", item["kind"], item["metadata"]["name"], "--ignore-not-found")


def policy(name, expression, message):
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
                ]
            },
            "validations": [{"expression": expression, "message": message}],
        },
    }


LIMITS = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "small"},
    "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]},
}
WEBHOOK = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingWebhookConfiguration",
    "metadata": {"name": "silent"},
    "webhooks": [
        {
            "name": "silent.example.com",
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 1,
        }
    ],
}
BINDING = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicyBinding",
    "metadata": {"name": "fridays"},
    "spec": {"policyName": "fridays", "validationActions": ["Deny"]},
}


def try_pod(rig, name):
    """What the API server says of a new pod; none is made."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
    text = json.dumps({**pod, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    return rig.kubectl("create", "--dry-run=server", "-f", "-", stdin=text, check=False)


def wait_reason(rig, job, reason, seconds=30):
    try:
        rig.wait(f"reason {reason}", lambda: rig.status(job).get("reason") == reason, seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}\nstatus: {json.dumps(rig.status(job), indent=1)}") from None
    return rig.status(job)


def test_each_refusal_is_told_by_who_refused_and_ends_with_its_repair(rig, job):
    """LimitRange, PodSecurity, a policy, a webhook that does not answer; then each job gets its pods."""
    big = {"resources": {"limits": {"cpu": "2"}}}
    with there(rig, LIMITS):
        rig.apply(job("limited", template=big))
        said = wait_reason(rig, "limited", "LimitRangeExceeded")["message"]
        assert "maximum cpu usage per Container is 1" in said
    rig.kubectl("label", "namespace", "default", "pod-security.kubernetes.io/enforce=restricted")
    try:
        rig.apply(job("insecure", template={"podOverlay": {"spec": {"hostNetwork": True}}}))
        assert "hostNetwork" in wait_reason(rig, "insecure", "PodSecurityViolation")["message"]
        rig.apply(job("secure"))
        rig.wait("pods that keep to the restricted profile", lambda: len(rig.items("pods", "secure")) == 2)
    finally:
        rig.kubectl("label", "namespace", "default", "pod-security.kubernetes.io/enforce-")
    rule = policy("fridays", "!object.metadata.name.startsWith('denied')", "no pods on Fridays")
    with there(rig, rule), there(rig, BINDING):
        rig.wait("the policy in force", lambda: "Fridays" in try_pod(rig, "denied-x"))
        rig.apply(job("denied"))
        assert "no pods on Fridays" in wait_reason(rig, "denied", "AdmissionDenied")["message"]
        rig.wait("event", lambda: "AdmissionDenied" in rig.kubectl("describe", "grpojob", "denied"))
    with there(rig, WEBHOOK):
        rig.wait("the webhook in force", lambda: "failed calling webhook" in try_pod(rig, "x"))
        rig.apply(job("mute"))
        assert "silent.example.com" in wait_reason(rig, "mute", "AdmissionUnavailable")["message"]
    for name in ("limited", "insecure", "denied", "mute"):
        rig.wait(f"pods of {name} after the repair", lambda name=name: len(rig.items("pods", name)) == 2)


def test_volumes_that_are_missing_or_cannot_be_bound_or_mounted_are_named(rig, job):
    """A claim's name in the spec, the scheduler's words on a claim, and a kubelet, which writes an Event alone."""
    rig.apply(job("lost", checkpoint={"claimName": "nowhere"}, gangScheduling={"backend": "none"}))
    rig.apply(job("mount"))
    said = wait_reason(rig, "lost", "ClaimMissing")["message"]
    assert "claim nowhere does not exist" in said
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "no"}
    rig.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "nowhere"}, "spec": claim})
    rig.wait("pods on nodes", lambda: rig.placed("mount"))
    rig.run_pod("mount-0")
    unmounted = mount_event(rig.get("pod", "mount-1"))
    rig.apply(unmounted)
    assert "kubectl describe pvc nowhere" in wait_reason(rig, "lost", "ClaimNotBound", 40)["message"]
    assert unmounted["message"] in wait_reason(rig, "mount", "FailedMount", 60)["message"]
    rig.run_pod("mount-1")
    wait_reason(rig, "mount", "Starting")


def mount_event(pod):
    metadata = pod["metadata"]
    about = {key: metadata[key] for key in ("name", "namespace", "uid")}
    return {
        **{"apiVersion": "v1", "kind": "Event", "metadata": {"name": "mount-1.1", "namespace": metadata["namespace"]}},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", **about},
        **{"type": "Warning", "reason": "FailedMount", "source": {"component": "kubelet"}, "count": 1},
        "message": 'MountVolume.SetUp failed for volume "keys" : secret "absent" not found',
        **dict.fromkeys(("firstTimestamp", "lastTimestamp"), metadata["creationTimestamp"]),
    }


def test_checkpoints_count_one_event_up(rig, job, head):  # noqa: F811
    reports, port = head
    rig.apply(job("saver", metrics={"port": port}))
    rig.run_pods("saver")
    rig.wait_state("saver", "Running")
    for step in (1, 2, 3):
        reports["checkpoint"] = {"step": step, "path": f"/checkpoints/default.saver/step-{step:08d}"}
        rig.wait("checkpoint", lambda step=step: (rig.status("saver").get("checkpoint") or {}).get("step") == step)

    def told():
        found = json.loads(rig.kubectl("get", "events", "--field-selector", "reason=Checkpoint", "-o", "json"))
        return [item for item in found["items"] if item["involvedObject"]["name"] == "saver"]

    rig.wait("count", lambda: [item["count"] for item in told()] == [3])
    assert "step 3" in told()[0]["message"]


def test_job_of_another_controller_is_left_alone(rig, job):
    rig.apply(job("theirs", runPolicy={"managedBy": "example.com/dispatcher"}))
    rig.apply(job("ours"))
    rig.wait("the operator at work", lambda: len(rig.items("pods", "ours")) == 2)
    assert (rig.status("theirs"), rig.items("pods", "theirs"), rig.items("configmaps", "theirs")) == ({}, {}, {})


def ordinary_user(rig):
    """A kubeconfig with the built-in role `edit` on one namespace, and with GRPOJobs as the chart adds them to it."""
    rig.kubectl("create", "serviceaccount", "engineer")
    rig.kubectl("create", "rolebinding", "engineer", "--clusterrole=edit", "--serviceaccount=default:engineer")
    rig.kubectl("create", "role", "grpo", "--verb=get,list,watch,create,delete,patch", "--resource=grpojobs.grpo.dev")
    rig.kubectl("create", "rolebinding", "engineer-grpo", "--role=grpo", "--serviceaccount=default:engineer")
    made = json.loads(rig.kubectl("config", "view", "--raw", "-o", "json"))
    made["users"] = [{"name": made["users"][0]["name"], "user": {"token": rig.kubectl("create", "token", "engineer")}}]
    path = rig.directory / "engineer.json"
    path.write_text(json.dumps(made))
    return path


def test_why_with_all_rights_and_with_those_of_one_namespace(rig, job):
    rig.apply(job("huge", trainer={"nGpusPerNode": 16}))
    wait_reason(rig, "huge", "Unschedulable")
    said = why("huge", rig.plane.kubeconfig)
    assert said.startswith("huge does not run: it is Scheduling (Unschedulable: needs 2 x 16 nvidia.com/gpu")
    assert "It needs 2 pods of 16 nvidia.com/gpu; free are: node-0 8 of 8, node-1 8 of 8." in said
    assert "That holds 0 of its 2 pods." in said
    limited = why("huge", ordinary_user(rig))
    assert limited.startswith("huge does not run: it is Scheduling (Unschedulable: needs 2 x 16 nvidia.com/gpu")
    assert limited.endswith("You may not list nodes, so they are not looked at.\n")


def why(job, kubeconfig):
    command = [sys.executable, "-m", "grpoctl.main", "why", job, "--kubeconfig", str(kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
