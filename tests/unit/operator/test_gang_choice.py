"""Which backend a job gets: by what is asked for, what the cluster serves and what the operator's role allows."""

import kubernetes_validate
import pytest

from grpo_api.job import parse_job
from grpo_operator.capabilities import discover
from grpo_operator.gang.choice import BACKENDS, KINDS, choose
from grpo_operator.kube import KubeError, resource_of
from tests.unit.operator.operator_support import NATIVE, NOTHING, raw_job, run


def choice(asked, capabilities, in_use=None, **more):
    backend, why = choose(parse_job(raw_job(gangScheduling={"backend": asked, **more})), capabilities, in_use)
    return backend and backend.name, why


def test_attempt_keeps_the_backend_by_which_its_pods_were_made():
    """A pod that was made without a group cannot join one."""
    assert choice("auto", NATIVE)[0] == "native"
    assert choice("auto", NATIVE, in_use="none")[0] == "none"
    assert choice("auto", NOTHING, in_use="native")[0] == "none", "what is gone can no longer be used"
    assert choice("auto", NATIVE, in_use="of a later release")[0] == "native"


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
    for pod in pods:
        affinity = pod["spec"]["affinity"]["podAffinity"]
        assert affinity["requiredDuringSchedulingIgnoredDuringExecution"] == [{"topologyKey": "a"}]
        (term,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
        assert term["podAffinityTerm"]["topologyKey"] == "rack"
        assert term["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        kubernetes_validate.validate(pod, "1.37.0", strict=True)
    required = raw_job(gangScheduling={"backend": "native", "topologyKey": "rack"})
    assert not [item for item in run(required, capabilities=NATIVE).create if "affinity" in item.get("spec", {})], (
        "the PodGroup says it"
    )


class Cluster:
    """Serves and allows what it is told to."""

    def __init__(self, served, allowed):
        self._served, self._allowed = served, allowed
        self.asked = []

    async def served(self, api_version):
        return {resource_of(kind)[1] for kind in self._served if resource_of(kind)[0] == api_version}

    async def may(self, verb, kind, namespace=""):
        self.asked.append((verb, kind, namespace))
        return self._allowed(verb, kind, namespace)


async def test_discovery_finds_what_is_served_and_allowed():
    assert (await discover(Cluster(KINDS, lambda *_: True), ())).kinds == KINDS
    assert (await discover(Cluster(set(), lambda *_: True), ())).kinds == frozenset()
    assert (await discover(Cluster(KINDS, lambda *_: False), ())).kinds == frozenset()


async def test_each_watched_namespace_must_allow_it():
    found = await discover(Cluster(KINDS, lambda verb, kind, namespace: namespace != "b"), ("a", "b"))
    assert found.kinds == frozenset()


async def test_discovery_does_not_take_trouble_for_absence():
    """Else a hiccup of the API server would have jobs placed pod by pod."""

    class Troubled(Cluster):
        async def served(self, api_version):
            raise KubeError(503, "", "later")

    with pytest.raises(KubeError):
        await discover(Troubled(KINDS, lambda *_: True), ())


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
