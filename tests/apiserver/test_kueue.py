"""Gangs in the queues of a real Kueue: its manager, webhooks and roles from its own chart, on a control plane of its
own. Kubelets are a hand of ours; a node has room for all, so that quotas alone decide."""

import json
import random
from contextlib import ExitStack

import pytest

from grpo_api.crd import crd
from local_cluster.control_plane import ControlPlane
from tests.apiserver.chaos.api import FLAGS, Api, Record
from tests.apiserver.chaos.kubelet import Kubelet, ended, last_words
from tests.apiserver.conftest import AUDIT_LOG, AUDIT_POLICY, AUDITED_USER, Rig
from tests.apiserver.kueue import Kueue
from tests.apiserver.operator_process import Operator
from tests.apiserver.test_role import NAMESPACE, asked, granted, roles_and_bindings

pytestmark = pytest.mark.apiserver
GATE, MANAGED = "kueue.x-k8s.io/admission", "kueue.x-k8s.io/managed"
FLAVOR = {"pool": "reserved"}
WORKLOADS = "workloads.kueue.x-k8s.io"
WHOLE = 2
"""Pods of a gang, of one GPU each."""


class Thorough(random.Random):
    """Kubelets that always say how a pod ended before it is gone, as real ones do."""

    def random(self):
        return 0.0


class History:
    """When which gang got its quota and its nodes, from every change that etcd made."""

    def __init__(self):
        self.let_in, self.most_gpus, self._placed = [], 0, set()

    def see(self, revision, old, new):
        if (new or old)["kind"] != "Pod":
            return
        name = (new or old)["metadata"]["name"]
        if gated(old) and new is not None and not gated(new):
            self.let_in.append(name.rpartition("-")[0])
        uses = new is not None and new["spec"].get("nodeName") and new["status"]["phase"] in ("Pending", "Running")
        (self._placed.add if uses else self._placed.discard)(name)
        self.most_gpus = max(self.most_gpus, len(self._placed))


def gated(pod):
    return pod is not None and {"name": GATE} in (pod["spec"].get("schedulingGates") or [])


class KueueRig(Rig):
    nodes = ("node-0", "node-1")

    def __init__(self, plane, directory):
        super().__init__(plane, directory)
        self.history, self.queues = History(), []
        self.record = Record(plane, lambda *change: self.history.see(*change))
        self.api = Api(plane)
        self.kubelet = Kubelet(self.api, self.record, list(self.nodes), Thorough())
        self.kueue = Kueue(plane, directory)

    def queue(self, name, gpus, **spec):
        """A ClusterQueue with a LocalQueue of its name."""
        unlimited = [{"name": resource, "nominalQuota": "10k"} for resource in ("cpu", "memory")]
        unlimited[1]["nominalQuota"] = "100Ti"
        quotas = [{"name": "nvidia.com/gpu", "nominalQuota": gpus}, *unlimited]
        group = {"coveredResources": [quota["name"] for quota in quotas]}
        group["flavors"] = [{"name": "reserved", "resources": quotas}]
        made = {"namespaceSelector": {}, "queueingStrategy": "StrictFIFO", "resourceGroups": [group], **spec}
        self.apply(kueue("ClusterQueue", name, made))
        local = kueue("LocalQueue", name, {"clusterQueue": name})
        local["metadata"]["namespace"] = "default"
        self.apply(local)
        self.queues.append(name)

    def workloads(self):
        return json.loads(self.kubectl("get", WORKLOADS, "-o", "json"))["items"]

    def pods(self, job):
        return list(self.items("pods", job).values())

    def finish(self, job):
        """The trainer is done: both pods end well, rank 0 with its report."""
        for pod in self.pods(job):
            self.kubelet.end(pod, ended(0, "Completed", last_words(0, "Completed")))

    def nothing_is_left(self, job):
        held = {owner["name"] for item in self.workloads() for owner in item["metadata"].get("ownerReferences", [])}
        return not self.pods(job) and not any(name.rpartition("-")[0] == job for name in held)


def kueue(kind, name, spec):
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    directory = tmp_path_factory.mktemp("kueue")
    policy = directory / "audit.yaml"
    policy.write_text(json.dumps(AUDIT_POLICY))
    audit = [f"--audit-policy-file={policy}", f"--audit-log-path={directory / AUDIT_LOG}"]
    made = ControlPlane(directory, extra={**FLAGS, "kube-apiserver": [*FLAGS["kube-apiserver"], *audit]})
    with ExitStack() as stack:
        stack.callback(made.stop)
        made.start()
        rig = KueueRig(made, directory)
        rig.record.start()
        rig.kubelet.start()
        stack.callback(rig.kubelet.stop)
        stack.callback(rig.kueue.stop)
        rig.apply(crd())
        rig.kueue.install()
        rig.kueue.start()
        for node in rig.nodes:
            rig.kubectl("label", "node", node, "pool=reserved")
        rig.apply(kueue("ResourceFlavor", "reserved", {"nodeLabels": FLAVOR}))
        for name, value in (("low", 1), ("high", 100)):
            rig.apply({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": value,
                       "metadata": {"name": name}})  # fmt: skip
            rig.apply({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "value": value,
                       "metadata": {"name": name}})  # fmt: skip
        rig.kubectl("create", "namespace", NAMESPACE)
        for item in roles_and_bindings("kueue"):
            rig.apply(item)
        yield rig


@pytest.fixture
def rig(plane):
    """An operator with the chart's role, and neither a job nor a queue left over."""
    kubeconfig = plane.directory / "operator.kubeconfig"
    plane.plane.authority.kubeconfig(kubeconfig, AUDITED_USER, f"/CN={AUDITED_USER}", plane.plane.url)
    plane.history = History()
    plane.operator = Operator(plane.plane, plane.directory / "operator.log")
    plane.operator.start(KUBECONFIG=str(kubeconfig), GRPO_LEASE_NAMESPACE=NAMESPACE)
    yield plane
    try:
        plane.kubectl("delete", "grpojobs", "--all", "--wait=false")
        plane.kubectl("delete", WORKLOADS, "--all", "--wait=false")  # else pods that wait take half a minute
        plane.wait("no pods", lambda: plane.kubectl("get", "pods", "-o", "name") == "", 60)
        plane.wait("no Workloads", lambda: plane.workloads() == [], 60)
        assert plane.kubelet.errors == []
        assert plane.record.error is None
    finally:
        plane.operator.stop()
        while plane.queues:
            name = plane.queues.pop()
            plane.kubectl("delete", "localqueues,clusterqueues", name, check=False)


@pytest.fixture
def gang(rig, job):
    """A job of two pods in a queue."""

    def make(name, queue, **sections):
        sections.setdefault("template", {})
        made = job(name, metrics={"port": rig.kubelet.heads.port}, gangScheduling={"queue": queue}, **sections)
        rig.apply(made)
        return made

    return make


def test_second_gang_waits_whole_says_why_and_starts_when_the_first_ends(rig, gang):
    rig.queue("team-a", WHOLE)
    gang("first", "team-a")
    status = rig.wait_state("first", "Running", 60)
    assert status["gang"]["backend"] == "kueue"
    gang("second", "team-a")
    rig.wait("Kueue's words", lambda: "insufficient unused quota" in (rig.status("second").get("message") or ""))
    status = rig.status("second")
    assert (status["state"], status["reason"]) == ("Queued", "WaitingForQuota")
    assert status["message"].startswith("waits in queue team-a: ")
    assert [gated(pod) for pod in rig.pods("second")] == [True, True]
    head, row = rig.kubectl("get", "grpojob", "second", "-o", "wide").splitlines()
    assert row[head.index("QUEUE") :].split()[0] == "team-a"
    assert row[head.index("GANG") :].split()[0] == "kueue"
    for pod in rig.pods("first"):
        assert pod["spec"]["nodeSelector"] == FLAVOR
        assert MANAGED in pod["metadata"]["finalizers"]
    (waits,) = [item for item in rig.workloads() if "-".join(item["metadata"]["name"].split("-")[:-2]) == "second"]
    (pods,) = waits["spec"]["podSets"]
    assert pods["count"] == WHOLE
    assert "minCount" not in pods, "nothing is admitted in part"

    rig.finish("first")
    rig.wait_state("first", "Succeeded")
    rig.wait_state("second", "Running", 60)
    assert rig.history.most_gpus == WHOLE
    rig.wait("no finalizers", lambda: not any(pod["metadata"].get("finalizers") for pod in rig.pods("first")))
    rig.kubectl("delete", "grpojob", "first")
    rig.wait("nothing left", lambda: rig.nothing_is_left("first"))
    rig.kubectl("delete", "grpojob", "second")
    rig.wait("nothing left of a running gang", lambda: rig.nothing_is_left("second"), 60)


def test_gang_that_is_too_large_holds_nothing_and_can_be_suspended_and_deleted(rig, gang):
    rig.queue("small", WHOLE - 1)
    gang("large", "small")
    rig.wait("Kueue's words", lambda: "insufficient quota" in (rig.status("large").get("message") or ""))
    assert rig.status("large")["state"] == "Queued"
    gang("gone", "small")
    rig.wait("another one waits", lambda: rig.status("gone").get("state") == "Queued")
    rig.kubectl("patch", "grpojob", "large", "--type=merge", "-p", '{"spec":{"runPolicy":{"suspend":true}}}')
    rig.wait_state("large", "Suspended")
    rig.wait("nothing left of it", lambda: rig.nothing_is_left("large"))
    rig.kubectl("delete", "grpojob", "gone")
    rig.wait("nothing left of a deleted one", lambda: rig.nothing_is_left("gone"), 60)
    assert rig.history.most_gpus == 0
    rig.kubectl("patch", "grpojob", "large", "--type=merge", "-p", '{"spec":{"runPolicy":{"suspend":false}}}')
    rig.wait_state("large", "Queued")
    assert rig.status("large")["attempt"] == 1
    assert not rig.status("large").get("restarts")


def test_queue_that_is_missing_is_told(rig, gang):
    gang("lost", "no-such-queue")
    rig.wait("Kueue's words", lambda: "no-such-queue doesn't exist" in (rig.status("lost").get("message") or ""))


@pytest.mark.parametrize("by", ["PriorityClass", "WorkloadPriorityClass"])
def test_preempted_gang_goes_whole_and_comes_back_without_spending_its_budget(rig, gang, by):
    def of(priority):
        label = {"metadata": {"labels": {"kueue.x-k8s.io/priority-class": priority}}}
        return {"priorityClassName": priority} if by == "PriorityClass" else {"podOverlay": label}

    rig.queue("team-a", WHOLE, preemption={"withinClusterQueue": "LowerPriority"})
    gang("low", "team-a", template=of("low"), runPolicy={"maxRestarts": 0})
    rig.wait_state("low", "Running", 60)
    gang("high", "team-a", template=of("high"))
    rig.wait_state("high", "Running", 60)
    status = rig.wait_state("low", "Queued")
    assert [(entry["cause"], entry["counted"]) for entry in status["restarts"]] == [("Preempted", False)]
    assert "prioritization in the ClusterQueue" in status["restarts"][0]["message"]
    assert (status["attempt"], status["failures"]) == (1, 0)
    assert all(map(gated, rig.pods("low")))
    assert rig.history.most_gpus == WHOLE
    rig.finish("high")
    rig.wait_state("low", "Running", 60)
    assert rig.status("low")["failures"] == 0


def test_lent_quota_is_taken_back_from_one_whole_gang(rig, gang):
    for team in ("team-a", "team-b"):
        rig.queue(team, WHOLE, cohortName="research", preemption={"reclaimWithinCohort": "Any"})
    gang("own", "team-a")
    rig.wait_state("own", "Running", 60)
    gang("lent", "team-a")
    rig.wait_state("lent", "Running", 60)
    gang("owner", "team-b")
    rig.wait_state("owner", "Running", 60)
    states = rig.wait(
        "one of team-a's in the queue", lambda: sorted(rig.status(name)["state"] for name in ("own", "lent")) ==
        ["Queued", "Running"]
    )  # fmt: skip
    assert states
    assert rig.history.most_gpus == 2 * WHOLE


def test_lost_pod_takes_its_gang_along_and_the_next_attempt_asks_for_quota_anew(rig, gang):
    rig.queue("team-a", WHOLE)
    gang("hit", "team-a")
    rig.wait_state("hit", "Running", 60)
    before = {pod["metadata"]["uid"] for pod in rig.pods("hit")}
    lost = rig.get("pod", "hit-1")
    rig.kubelet.end(lost, ended(137, "OOMKilled"))

    def anew():
        status = rig.status("hit")
        return (status["attempt"], status["state"]) == (1, "Running")

    rig.wait("the second attempt", anew, 90)
    assert not before & {pod["metadata"]["uid"] for pod in rig.pods("hit")}
    assert [(entry["cause"], entry["counted"]) for entry in rig.status("hit")["restarts"]] == [("OOMKilled", True)]
    rig.wait("the first attempt's Workload gone", lambda: len(rig.workloads()) == 1)


def test_kueue_that_is_away_delays_and_breaks_nothing(rig, gang):
    rig.queue("team-a", WHOLE)
    gang("before", "team-a")
    rig.wait_state("before", "Running", 60)
    rig.kueue.stop()
    try:
        gang("meanwhile", "team-a")
        rig.wait("its webhook missed", lambda: rig.status("meanwhile").get("reason") == "AdmissionUnavailable")
        assert rig.status("before")["state"] == "Running"
    finally:
        rig.kueue.start()
    rig.wait("its place in the queue", lambda: rig.status("meanwhile").get("reason") == "WaitingForQuota", 60)
    rig.finish("before")
    rig.wait_state("meanwhile", "Running", 60)


def test_twelve_gangs_for_three_places_all_finish_in_order(rig, gang):
    rig.queue("team-a", 3 * WHOLE)
    jobs = [f"many-{number:02}" for number in range(12)]
    for name in jobs:
        gang(name, "team-a")

    def queued():
        found = {item["metadata"]["name"][: len(jobs[0])]: item for item in rig.workloads()}
        return found if set(found) == set(jobs) else None

    created = {name: item["metadata"]["creationTimestamp"] for name, item in rig.wait("all Workloads", queued).items()}

    def all_done():
        items = json.loads(rig.kubectl("get", "grpojobs", "-o", "json"))["items"]
        states = {item["metadata"]["name"]: (item.get("status") or {}).get("state") for item in items}
        for name, state in states.items():
            if state == "Running":
                rig.finish(name)
        return set(states.values()) == {"Succeeded"}

    rig.wait("the end of all", all_done, 180)
    assert rig.history.most_gpus <= 3 * WHOLE
    order = list(dict.fromkeys(rig.history.let_in))
    assert sorted(order) == jobs
    # Kueue's clock has seconds, and pods of gangs that are let in together lose their gates in any order.
    later = [(a, b) for place, a in enumerate(order) for b in order[place + 3 :] if created[a] > created[b]]
    assert later == [], (order, created)
    assert all(rig.history.let_in.count(name) == WHOLE for name in jobs)


def test_role_is_what_the_operator_asks_of_kueue(plane):
    """After the others: they make it ask for all of it."""

    def of_kueue(rules):
        return {rule for rule in rules if rule[1] == "kueue.x-k8s.io"}

    assert of_kueue(asked(plane.directory / AUDIT_LOG)) == of_kueue(granted(roles_and_bindings("kueue")))
    assert "orbidden" not in (plane.directory / "operator.log").read_text()
