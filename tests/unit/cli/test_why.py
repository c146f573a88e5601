"""`grpoctl why`: the paragraph for each state, and what it says where its user may read little."""

import copy
from datetime import UTC, datetime

import pytest

from grpoctl.errors import CliError, Forbidden
from grpoctl.why import Facts, explain, gather

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
GPU = "nvidia.com/gpu"


def ago(minutes):
    return f"2026-03-01T{11 - (minutes - 1) // 60:02d}:{(60 - minutes) % 60:02d}:00Z"


def job(state=None, reason="", message="", claim="shared", **more):
    made = {
        "metadata": {"name": "sums", "namespace": "team", "generation": 1, "creationTimestamp": ago(30)},
        "spec": {
            "trainer": {"nnodes": 2, "nGpusPerNode": 8},
            "checkpoint": {"claimName": claim} if claim else {},
            "runPolicy": more.pop("policy", {}),
            "template": more.pop("template", {}),
        },
    }
    if state:
        made["status"] = {"state": state, "reason": reason, "message": message, "observedGeneration": 1, **more}
    return made


def pod(rank, node=None, waiting=None, gpus=8, attempt="0", phase="Pending"):
    return {
        "metadata": {
            **{"name": f"sums-{rank}", "uid": f"pod-{rank}", "creationTimestamp": ago(5)},
            "labels": {"grpo.dev/attempt": attempt},
        },
        "spec": {
            "containers": [{"name": "trainer", "resources": {"requests": {GPU: str(gpus)}}}],
            **({"nodeName": node} if node else {}),
        },
        "status": {
            "phase": phase,
            "containerStatuses": [{"state": {"waiting": {"reason": waiting}}}] if waiting else [],
        },
    }


def node(name, gpus=8, resource=GPU, **spec):
    return {"metadata": {"name": name}, "spec": spec, "status": {"allocatable": {resource: str(gpus)} if gpus else {}}}


def warning(uid, reason, message):
    return {"involvedObject": {"uid": uid}, "reason": reason, "message": message, "lastTimestamp": ago(1)}


BOUND = {"metadata": {"name": "shared", "uid": "c"}, "spec": {}, "status": {"phase": "Bound"}}
SHORT = "sums-0 and 1 more: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
RESTART = {"time": ago(10), "cause": "Drained", "counted": False, "attempt": 0}
PROGRESS = {"step": 12, "totalSteps": 20, "etaSeconds": 250, "tokensPerSecond": 12345.6, "lastStepTime": ago(1)}
SAVED = {"step": 10, "time": ago(3)}
NO_NODES = "You may not list nodes, so they are not looked at."

CASES = {
    "runs": (
        Facts(job("Running", "Training", progress=PROGRESS, checkpoint=SAVED, restarts=[RESTART])),
        "sums runs: step 12 of 20, about 4:10 left, at 12,346 tokens/s; its last step ended 60s ago. Its newest "
        "checkpoint is of step 10, 3m ago. It has restarted once, the last time 10m ago (Drained, which does not count "
        "against runPolicy.maxRestarts).",
    ),
    "runs on a silent node, without a claim": (
        Facts(job("Running", "NodeUnreachable", "node b of sums-1 does not answer", claim=None, progress=PROGRESS)),
        "sums runs: step 12 of 20, about 4:10 left, at 12,346 tokens/s; its last step ended 60s ago. But node b of "
        "sums-1 does not answer. It has no claim for checkpoints, so a restart begins at step 0.",
    ),
    "succeeded": (
        Facts(job("Succeeded", progress={"step": 20, "totalSteps": 20}, completionTime=ago(2))),
        "sums succeeded 2m ago at step 20 of 20.",
    ),
    "failed": (
        Facts(job("Failed", "RewardError", "mine.py, line 3", completionTime=ago(2), batchPlan={"totalSteps": 9})),
        "sums failed 2m ago at step 0 of 9: RewardError: mine.py, line 3. A job that has ended stays as it is.",
    ),
    "suspended": (
        Facts(job("Suspended", "Suspended", policy={"suspend": True})),
        "sums is suspended: runPolicy.suspend is true. To let it go on from its checkpoint: `kubectl patch grpojob "
        'sums --type=merge -p \'{"spec":{"runPolicy":{"suspend":false}}}\'`.',
    ),
    "no operator": (
        Facts(job()),
        "sums is 30m old and no operator has looked at it. Either none runs, or it does not watch this namespace "
        "(`kubectl get deployments -A -l app.kubernetes.io/name=grpo-operator`, and watchNamespaces in the chart's "
        "values).",
    ),
    "another controller's": (
        Facts(job(policy={"managedBy": "example.com/dispatcher"})),
        "sums is given to another controller, example.com/dispatcher (runPolicy.managedBy). Look there.",
    ),
    "a quota": (
        Facts(job("Pending", "QuotaExceeded", "Pod sums-1: exceeded quota"), pods=[pod(0, "a", phase="Running")]),
        "sums does not run: it is Pending (QuotaExceeded: Pod sums-1: exceeded quota). 1 of its 2 pods exist.",
    ),
    "too few free GPUs": (
        Facts(
            job("Scheduling", "Unschedulable", SHORT),
            pods=[pod(0), pod(1)],
            events=[],
            claims=[BOUND],
            nodes=[node("a"), node("b"), node("c", unschedulable=True), node("cpu", 0)],
            placed=[pod(7, "a", gpus=3, phase="Running"), pod(8, "b", gpus=8, phase="Succeeded")],
        ),
        f"sums does not run: it is Scheduling (Unschedulable: {SHORT}). 0 of its 2 pods have a node. It needs 2 pods "
        "of 8 nvidia.com/gpu; free are: b 8 of 8, c 8 of 8 (cordoned), a 5 of 8. That holds 1 of its 2 pods.",
    ),
    "GPUs of another name": (
        Facts(
            job("Scheduling", "Unschedulable", "sums-0: no", claim=None),
            pods=[pod(0), pod(1)],
            nodes=[node("a", resource="amd.com/gpu")],
            placed=[],
        ),
        "sums does not run: it is Scheduling (Unschedulable: sums-0: no). 0 of its 2 pods have a node. None of the 1 "
        "nodes offers nvidia.com/gpu; they offer amd.com/gpu: set template.gpuResourceName.",
    ),
    "the same to a user of one namespace": (
        Facts(
            job("Scheduling", "Unschedulable", SHORT),
            pods=[pod(0), pod(1)],
            events=[],
            claims=[{**BOUND, "spec": {"storageClassName": "fast"}, "status": {"phase": "Pending"}}],
            unread=[NO_NODES],
        ),
        f"sums does not run: it is Scheduling (Unschedulable: {SHORT}). 0 of its 2 pods have a node. Its claim shared "
        f"(storage class fast) is Pending. {NO_NODES}",
    ),
    "a claim with the storage's own words": (
        Facts(
            job("Scheduling", "WaitingForScheduler", "0 of 2 pods are scheduled"),
            events=[warning("c", "ProvisioningFailed", "storageclass fast not found")],
            claims=[{**BOUND, "spec": {"storageClassName": "fast"}, "status": {"phase": "Pending"}}],
        ),
        "sums does not run: it is Scheduling (WaitingForScheduler: 0 of 2 pods are scheduled). Its claim shared "
        "(storage class fast) is Pending: ProvisioningFailed: storageclass fast not found.",
    ),
    "a volume, before the operator has told it": (
        Facts(
            job("Starting", "Starting", "1 of 2 pods are ready; head: starting"),
            pods=[pod(0, "a", phase="Running"), pod(1, "b", "ContainerCreating")],
            events=[warning("pod-1", "FailedMount", 'secret "absent" not found'), warning("x", "Other", "x")],
            claims=[BOUND],
        ),
        "sums does not run: it is Starting (Starting: 1 of 2 pods are ready; head: starting). sums-1 on b is "
        'ContainerCreating: FailedMount: secret "absent" not found.',
    ),
    "a pod of which nothing is said": (
        Facts(
            job("Starting", "Starting", "1 of 2 pods are ready"),
            pods=[pod(0, "a", phase="Running"), pod(1, "b", "ContainerCreating")],
            events=[],
            claims=[],
        ),
        "sums does not run: it is Starting (Starting: 1 of 2 pods are ready). sums-1 on b is ContainerCreating for 5m. "
        "Its claim shared does not exist.",
    ),
    "an image, as the status has it": (
        Facts(
            job("Starting", "ErrImagePull", "sums-1: image x ErrImagePull: no", claim=None),
            pods=[pod(0, "a", phase="Running"), pod(1, "b", "ErrImagePull")],
            events=[],
        ),
        "sums does not run: it is Starting (ErrImagePull: sums-1: image x ErrImagePull: no).",
    ),
    "the pause of a restart": (
        Facts(job("Restarting", "RestartBackoff", "attempt 1 starts at x", attempt=1, restarts=[RESTART] * 3)),
        "sums does not run: it is Restarting (RestartBackoff: attempt 1 starts at x). It has restarted 3 times, the "
        "last time 10m ago (Drained, which does not count against runPolicy.maxRestarts).",
    ),
}


@pytest.mark.parametrize(("facts", "paragraph"), CASES.values(), ids=CASES)
def test_paragraph(facts, paragraph):
    assert explain(facts, NOW) == paragraph


def test_change_that_the_operator_has_not_seen_is_told():
    found = job("Running", "Training", progress=PROGRESS)
    found["metadata"]["generation"] = 2
    assert explain(Facts(found), NOW).endswith("The operator has not seen the last change of the spec yet.")


class Namespace:
    """A cluster of whose kinds some may not be read."""

    namespace = "team"

    def __init__(self, found, forbidden=()):
        self.found, self.forbidden, self.asked = found, forbidden, []

    def command(self, *words):
        return " ".join(("grpoctl", *words))

    def get_job(self, name):
        return copy.deepcopy(self.found)

    def list_objects(self, kind, *, labels="", fields="", all_namespaces=False):
        what = f"{kind} of all" if all_namespaces else kind
        self.asked.append(what)
        if what in self.forbidden:
            raise Forbidden(f"cannot list {what}")
        return [pod(0)] if kind == "Pod" and not all_namespaces else []


def test_running_job_is_explained_by_its_status_alone():
    cluster = Namespace(job("Running"))
    gather(cluster, "sums")
    assert cluster.asked == []


def test_what_may_not_be_read_is_a_sentence_and_no_error():
    everything = ("Pod", "Event", "PersistentVolumeClaim", "Node")
    facts = gather(Namespace(job("Scheduling", "Unschedulable", SHORT), everything), "sums")
    said = explain(facts, NOW)
    assert said.startswith(f"sums does not run: it is Scheduling (Unschedulable: {SHORT}).")
    for what in ("pods", "events", "claims", "nodes"):
        assert f"You may not list {what}, so they are not looked at." in said


def test_nodes_are_told_without_the_use_that_may_not_be_read():
    facts = gather(Namespace(job("Scheduling", "Unschedulable", SHORT), ("Pod of all",)), "sums")
    facts.nodes = [node("a"), node("b")]
    assert "It needs 2 x 8 nvidia.com/gpu; nodes have, used or not: a 8, b 8." in explain(facts, NOW)


def test_api_server_that_does_not_answer_is_an_error():
    cluster = Namespace(job("Pending"))
    cluster.list_objects = fail
    with pytest.raises(CliError, match="does not answer"):
        gather(cluster, "sums")


def fail(*_, **__):
    raise CliError("the API server does not answer")
