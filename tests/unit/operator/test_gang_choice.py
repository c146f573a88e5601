"""Which backend a job gets: by what is asked for, what the cluster serves and what the operator's role allows."""

import json
from dataclasses import replace

import kubernetes_validate
import pytest

from grpo_api.job import parse_job
from grpo_operator.capabilities import discover
from grpo_operator.gang import native
from grpo_operator.gang.base import Capabilities
from grpo_operator.gang.choice import BACKENDS, KINDS, choose
from grpo_operator.gang.native import V1ALPHA1, V1ALPHA2, V1BETA1
from grpo_operator.kube import KubeError, resource_of
from tests.unit.operator.operator_support import (
    NATIVE,
    NOTHING,
    POD_GROUP,
    child,
    pod,
    raw_job,
    run,
    running,
    training,
    with_status,
)


def choice(asked, capabilities, in_use=None, **more):
    backend, why = choose(parse_job(raw_job(gangScheduling={"backend": asked, **more})), capabilities, in_use)
    return backend and backend.name, why


def test_attempt_keeps_the_backend_by_which_its_pods_were_made():
    """A pod that was made without a group cannot join one."""
    assert choice("auto", NATIVE)[0] == "native"
    assert choice("auto", NATIVE, in_use="none")[0] == "none"
    assert choice("auto", NATIVE, in_use="of a later release")[0] == "native"
    backend, why = choice("auto", NOTHING, in_use="native")
    assert backend is None, "half a gang is not completed by another backend"
    assert "made by the backend native" in why
    assert "suspend the job and resume it" in why


OF_BACKEND = {
    "native": (NATIVE, {}),
    "kueue": (Capabilities(reads=frozenset({"Workload.v1beta2.kueue.x-k8s.io"})), {"queue": "team-a"}),
    "gated": (Capabilities(sees_cluster=True), {}),
    "volcano": (Capabilities(kinds=frozenset({"PodGroup.v1beta1.scheduling.volcano.sh"})), {}),
    "coscheduling": (Capabilities(kinds=frozenset({"PodGroup.v1alpha1.scheduling.x-k8s.io"})), {}),
    "kai": (Capabilities(kinds=frozenset({"PodGroup.v2alpha2.scheduling.run.ai"})), {"queue": "team-a"}),
}


def began_by(backend, asked):
    """(a job whose gang is whole, all else that was made for it, its pods by state)."""
    capabilities, scheduling = OF_BACKEND[backend]
    made = run(raw_job(gangScheduling={"backend": backend, **scheduling}), capabilities=capabilities)
    status = made.status | {"attempt": 0, "createdAttempt": 0, "failures": 0}
    job = raw_job(gangScheduling={"backend": asked, **scheduling}, status=status)
    specs = [item["spec"] for item in made.create if item["kind"] == "Pod"]
    waiting = [{**pod(rank), "spec": spec} for rank, spec in enumerate(specs)]
    return job, [item for item in made.create if item["kind"] != "Pod"], waiting


AUTOMATIC = [name for name, backend in BACKENDS.items() if backend.automatic and name != "none"]


@pytest.mark.parametrize(
    ("backend", "asked"), [*((name, name) for name in OF_BACKEND), *((name, "auto") for name in AUTOMATIC)]
)
def test_gang_outlives_the_api_or_the_right_by_which_it_was_made(backend, asked):
    """A running gang runs on and shows it; one that waits says why, and what brings it on."""
    job, objects, pods = began_by(backend, asked)
    waits = run(job, *pods, capabilities=NOTHING, children=objects)
    assert (waits.status["state"], waits.status["reason"]) == ("Pending", "Unschedulable")
    assert BACKENDS[backend](NOTHING).refusal(parse_job(job)) in waits.status["message"]
    assert waits.status["gang"]["backend"] == backend
    gang = running(0), running(1)
    runs = run(with_status(job, waits), *gang, capabilities=NOTHING, children=objects, head_report=training())
    assert runs.status["state"] == "Running"
    for made in (waits, runs):
        assert (made.create, made.delete) == ([], []), "what the gang has stays as it is"
        assert made.consult is None


def test_objects_of_running_pods_stay_when_another_backend_would_be_taken_now():
    job, objects, pods = began_by("native", "auto")
    job["spec"]["gangScheduling"]["topologyKey"] = "rack"
    drops = replace(NATIVE, native_topology=False, sees_cluster=True)
    assert choice("auto", drops, topologyKey="rack")[0] == "gated"
    for gang in (pods, [running(0), running(1)]):
        assert run(job, *gang, capabilities=drops, children=objects).delete == []


@pytest.mark.parametrize("asked", ["auto", "none"])
def test_topology_that_nothing_can_keep_is_refused_and_a_preferred_one_is_not(asked):
    backend, why = choice(asked, NOTHING, topologyKey="rack")
    assert backend is None
    assert f"gangScheduling.backend is {asked}" in why
    assert "rack" in why
    assert "topologyMode" in why
    assert choice(asked, NOTHING, topologyKey="rack", topologyMode="Preferred")[0] == "none"


@pytest.mark.parametrize("backend", ["native", "none"])
def test_preferred_topology_adds_to_the_affinity_that_the_job_has(backend):
    own = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "a"}]}}
    scheduling = {"backend": backend, "topologyKey": "rack", "topologyMode": "Preferred"}
    raw = raw_job(gangScheduling=scheduling, template={"podOverlay": {"spec": {"affinity": own}}})
    pods = [item for item in run(raw, capabilities=NATIVE).create if item["kind"] == "Pod"]
    for made in pods:
        affinity = made["spec"]["affinity"]["podAffinity"]
        assert affinity["requiredDuringSchedulingIgnoredDuringExecution"] == [{"topologyKey": "a"}]
        (term,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
        assert term["podAffinityTerm"]["topologyKey"] == "rack"
        assert term["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= made["metadata"]["labels"].items()
        kubernetes_validate.validate(made, "1.37.0", strict=True)
    required = raw_job(gangScheduling={"backend": "native", "topologyKey": "rack"})
    assert not [item for item in run(required, capabilities=NATIVE).create if "affinity" in item.get("spec", {})], (
        "the PodGroup says it"
    )


class Cluster:
    """Serves and allows what it is told to."""

    def __init__(self, served, allowed):
        self._served, self._allowed = served, allowed
        self.asked, self.probed, self.keeps_topology = [], [], True

    async def served(self, api_version):
        return {resource_of(kind)[1] for kind in self._served if resource_of(kind)[0] == api_version}

    async def may(self, verb, kind, namespace=""):
        self.asked.append((verb, kind, namespace))
        return self._allowed(verb, kind, namespace)

    async def create(self, kind, body, dry_run=False):
        assert dry_run
        self.probed.append((kind, body["metadata"]["namespace"]))
        spec = dict(body["spec"])
        if not self.keeps_topology:
            del spec["schedulingConstraints"]  # as an API server does whose feature gate is off
        return {**body, "spec": spec}


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize(("namespaces", "probed"), [((), "d"), (("a", "b"), "a")])
async def test_discovery_asks_whether_a_topology_is_kept(keeps, namespaces, probed):
    cluster = Cluster(KINDS, lambda *_: True)
    cluster.keeps_topology = keeps
    assert (await discover(cluster, namespaces, "d")).native_topology is keeps
    assert cluster.probed == [("PodGroup.v1beta1.scheduling.k8s.io", probed)]


def test_topology_that_native_drops_goes_to_a_backend_that_keeps_it():
    drops = replace(NATIVE, native_topology=False)
    assert choice("native", drops, topologyKey="rack")[0] is None
    assert "TopologyAwareWorkloadScheduling" in choice("native", drops, topologyKey="rack")[1]
    assert choice("auto", replace(drops, sees_cluster=True), topologyKey="rack")[0] == "gated"
    assert choice("auto", drops, topologyKey="rack", topologyMode="Preferred")[0] == "native"


@pytest.mark.parametrize(("kubernetes", "version"), [("1.35.0", V1ALPHA1), ("1.36.0", V1ALPHA2), ("1.37.0", V1BETA1)])
def test_objects_of_each_release_match_its_schemas(kubernetes, version):
    capabilities = Capabilities(kinds=frozenset(native.KINDS[version]), native_topology=version != V1ALPHA1)
    scheduling = {"backend": "native"} | ({} if version == V1ALPHA1 else {"topologyKey": "rack"})
    raw = raw_job(gangScheduling=scheduling, template={"priorityClassName": "high"}, status={"attempt": 2})
    made = run(raw, capabilities=capabilities)
    assert made.status["gang"]["backend"] == "native"
    for item in made.create:
        kubernetes_validate.validate(item, kubernetes, strict=True)
    groups = [item for item in made.create if item["apiVersion"] == version]
    assert len(groups) == len(native.KINDS[version])
    pods = [item["spec"] for item in made.create if item["kind"] == "Pod"]
    if version == V1ALPHA1:
        assert {json.dumps(spec["workloadRef"]) for spec in pods} == {
            '{"name": "sums", "podGroup": "gang", "podGroupReplicaKey": "2"}'
        }
        assert groups[0]["spec"]["podGroups"] == [{"name": "gang", "policy": {"gang": {"minCount": 2}}}]
    else:
        assert {spec["schedulingGroup"]["podGroupName"] for spec in pods} == {"sums-2"}
        assert groups[1]["spec"]["schedulingConstraints"] == {"topology": [{"key": "rack"}]}
        assert groups[0]["metadata"]["finalizers"] == ["foregroundDeletion"], "it waits for the group"
        owner = {"apiVersion": version, "kind": "Workload", "name": "sums", "uid": "", "blockOwnerDeletion": True}
        assert groups[1]["metadata"]["ownerReferences"][1] == owner


def test_newest_version_is_used():
    every = Capabilities(kinds=frozenset(native.NativeGang.kinds))
    assert {
        item["apiVersion"]
        for item in run(raw_job(gangScheduling={"backend": "native"}), capabilities=every).create
        if item["apiVersion"].startswith("scheduling")
    } == {V1BETA1}


def test_scheduler_word_on_the_group_is_told_with_what_the_gang_needs():
    group = child(POD_GROUP, "sums-0")
    told = {"type": "PodGroupInitiallyScheduled", "status": "False", "reason": "Unschedulable"}
    group["status"] = {"conditions": [{**told, "message": "minCount (2) cannot be satisfied"}]}
    status = run(
        raw_job(gangScheduling={"backend": "native"}), pod(0), pod(1), capabilities=NATIVE, children=[group]
    ).status
    assert (status["state"], status["reason"]) == ("Scheduling", "Unschedulable")
    assert status["message"] == "needs 2 x 1 nvidia.com/gpu; the scheduler: minCount (2) cannot be satisfied"


async def test_discovery_finds_what_is_served_and_allowed():
    assert (await discover(Cluster(KINDS, lambda *_: True), (), "d")).kinds == KINDS
    assert (await discover(Cluster(set(), lambda *_: True), (), "d")).kinds == frozenset()
    assert (await discover(Cluster(KINDS, lambda *_: False), (), "d")).kinds == frozenset()


async def test_each_watched_namespace_must_allow_it():
    found = await discover(Cluster(KINDS, lambda verb, kind, namespace: namespace != "b"), ("a", "b"), "d")
    assert found.kinds == frozenset()


async def test_discovery_does_not_take_trouble_for_absence():
    """Else a hiccup of the API server would have jobs placed pod by pod."""

    class Troubled(Cluster):
        async def served(self, api_version):
            raise KubeError(503, "", "later")

    with pytest.raises(KubeError):
        await discover(Troubled(KINDS, lambda *_: True), (), "d")


def test_kinds_are_named_in_full():
    """Several APIs call a kind PodGroup; the name must not depend on which of them is installed."""
    for kind in KINDS:
        api_version, plural = resource_of(kind)
        group, _, version = api_version.partition("/")
        assert group
        assert kind == f"{kind.split('.')[0]}.{version}.{group}"
        assert plural == f"{kind.split('.')[0].lower()}s"


def test_backends_are_those_of_the_api():
    field = type(parse_job(raw_job()).spec.gang_scheduling).model_fields["backend"]
    assert {"auto", *BACKENDS} == set(field.annotation.__args__)
