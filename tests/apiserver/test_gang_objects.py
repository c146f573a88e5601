"""Groups of Volcano, Coscheduling and KAI, and the pods in them, against an API server that knows their schemas.

Their schedulers are not here: no pod of theirs gets a node.
"""

import json

import pytest

from tests.apiserver.gang_crds import POD_GROUPS

pytestmark = pytest.mark.apiserver
TEMPLATE = {"priorityClassName": "system-cluster-critical", "resources": {"requests": {"cpu": "700m", "memory": "5Gi"}}}
SPECS = {
    "volcano": {
        "minMember": 2,
        "minResources": {"cpu": "1.4", "memory": "10737418240", "nvidia.com/gpu": "2"},
        "queue": "team-a",
        "priorityClassName": "system-cluster-critical",
    },
    "coscheduling": {"minMember": 2, "scheduleTimeoutSeconds": 600},
    "kai": {"minMember": 2, "queue": "team-a", "priorityClassName": "system-cluster-critical"},
}


@pytest.fixture(scope="module")
def served(plane):
    """The three CRDs, before an operator looks and until none does any longer."""
    crds = [f"crd/{crd['metadata']['name']}" for crd in POD_GROUPS.values()]
    plane.kubectl(
        "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(POD_GROUPS.values())})
    )
    for crd in POD_GROUPS:
        # Established is not yet served: the operator, which no kubelet starts again here, would end over that.
        plural = POD_GROUPS[crd]["metadata"]["name"]
        plane.wait("the API", lambda: "No resources found" in plane.kubectl("get", plural, check=False))  # noqa: B023
    yield
    plane.kubectl("delete", *crds, "--timeout=50s")


@pytest.fixture
def plain_rig(served, rig):
    """The operator starts after the CRDs are there."""
    return rig


@pytest.mark.parametrize("backend", POD_GROUPS)
def test_group_and_pods_are_taken_as_they_are_and_the_group_goes_after_the_pods(plain_rig, job, backend):
    rig, name = plain_rig, f"of-{backend}"
    queue = {"queue": "team-a"} if "queue" in SPECS[backend] else {}
    rig.apply(job(name, gangScheduling={"backend": backend, **queue}, template=TEMPLATE))
    rig.wait("pods", lambda: len(rig.items("pods", name)) == 2)
    groups = POD_GROUPS[backend]["metadata"]["name"]
    (group,) = rig.items(groups, name).values()
    assert group["spec"] == SPECS[backend], "nothing was dropped, defaulted or refused"
    assert group["metadata"]["ownerReferences"][0]["name"] == name
    status = rig.wait_state(name, "Scheduling")
    assert status["gang"]["backend"] == backend
    for pod in rig.items("pods", name).values():
        assert pod["spec"]["schedulerName"] != "default-scheduler"
        assert "nodeName" not in pod["spec"]
    rig.kubectl("patch", "grpojob", name, "--type=merge", "-p", '{"spec":{"runPolicy":{"suspend":true}}}')
    rig.wait_state(name, "Suspended")
    assert not rig.items("pods", name)
    rig.wait("no group", lambda: not rig.items(groups, name))


@pytest.mark.parametrize("backend", POD_GROUPS)
def test_schema_refuses_what_the_project_does_not_know(served, plane, backend):
    """Else the test above would prove nothing."""
    group = POD_GROUPS[backend]["spec"]
    version = f"{group['group']}/{group['versions'][0]['name']}"
    made = {"apiVersion": version, "kind": "PodGroup", "metadata": {"name": "wrong"}, "spec": {"minMembers": 2}}
    said = plane.kubectl("create", "--validate=strict", "-f", "-", stdin=json.dumps(made), check=False)
    assert 'unknown field "spec.minMembers"' in said
