"""The chart's roles against what the operator asks of a real API server, as the server's audit log tells it."""

import json
import subprocess

import pytest
from ruamel.yaml import YAML

from grpo_api.job import parse_job
from grpo_operator.children_of import wanted
from grpo_operator.gang.base import Capabilities
from grpo_operator.gang.native import NativeGang
from grpo_operator.observe import Observed
from local_cluster import paths
from tests.apiserver.conftest import AUDIT_LOG, AUDITED_USER, ROOT
from tests.apiserver.operator_process import Operator, impatient
from tests.apiserver.test_operator import head, report  # noqa: F401

pytestmark = pytest.mark.apiserver
NAMESPACE = "grpo-system"
OF_ALL_ACCOUNTS = {("create", "authorization.k8s.io", "selfsubjectaccessreviews")}
"""Kubernetes' own role system:basic-user lets every account ask what it may do."""
OF_ADMISSION = {("update", "scheduling.k8s.io", "workloads/finalizers")}
"""What OwnerReferencesPermissionEnforcement looks for in the role; no request tells (gangs are tested under it)."""
CONFLICTS = ("PersistentVolumeClaim", "ConfigMap", "Service", "Workload", "PodGroup", "Pod")


def roles_and_bindings(backend="native"):
    command = [str(paths.binary("helm")), "template", "grpo-operator", str(ROOT / "charts" / "grpo-operator")]
    # What the cluster does not serve is not asked for.
    command += ["-n", NAMESPACE, "-s", "templates/rbac.yaml", "--set", f"rbac.gangBackends={{{backend}}}"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    mine = [item for item in YAML(typ="safe").load_all(text) if "aggregate" not in json.dumps(item)]
    for item in mine:
        if "subjects" in item:
            item["subjects"] = [{"kind": "User", "name": AUDITED_USER, "apiGroup": "rbac.authorization.k8s.io"}]
    return mine


def granted(items):
    """{(verb, API group, resource)} of all roles."""
    return {
        (verb, group, resource)
        for item in items
        for rule in item.get("rules", [])
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def asked(log):
    """{(verb, API group, resource)} of what the operator's user has asked for."""
    found = set()
    for line in log.read_text().splitlines():
        event = json.loads(line)
        place = event.get("objectRef") or {}
        if place.get("resource"):
            resource = "/".join(filter(None, (place["resource"], place.get("subresource"))))
            found.add((event["verb"], place.get("apiGroup", ""), resource))
    return found


def test_roles_allow_what_the_operator_asks_for_and_nothing_more(plane, job, head, tmp_path):  # noqa: F811
    """A life of a job with all that makes the operator ask for something rare, under the chart's own roles."""
    rig, (reports, port) = plane, head
    mine = roles_and_bindings()
    rig.kubectl("create", "namespace", NAMESPACE)
    for item in mine:
        rig.apply(item)
    kubeconfig = tmp_path / "kubeconfig"
    rig.plane.authority.kubeconfig(kubeconfig, AUDITED_USER, f"/CN={AUDITED_USER}", rig.plane.url)
    # What has a child's name and is another's makes the operator look at it.
    for kind in CONFLICTS:
        made = job(f"role-{kind.lower()}", checkpoint={"claimTemplate": {"size": "1Gi", "storageClassName": "none"}})
        parsed = parse_job({**made, "metadata": {**made["metadata"], "namespace": "default", "uid": "none"}})
        everything = Capabilities(kinds=frozenset(NativeGang.kinds))
        manifests = wanted(parsed, 0, Observed(job=made, capabilities=everything, default_image="i")).manifests
        foreign = next(item for item in manifests if item["kind"] == kind)
        rig.apply({**foreign, "metadata": {"name": foreign["metadata"]["name"]}})
        rig.apply(made)
    rig.apply(job("role", metrics={"port": port}, runPolicy={"ttlSecondsAfterFinished": 5}))
    rig.apply(job("role-stuck"))
    # The garbage collector finds no owner of a version that is not served, and so leaves this one.
    earlier = {"apiVersion": "grpo.dev/v0", "kind": "GRPOJob", "name": "role-left", "uid": "gone", "controller": True}
    labels = {"app.kubernetes.io/managed-by": "grpo-operator", "grpo.dev/job-name": "role-left"}
    metadata = {"name": "role-left-config", "labels": labels, "ownerReferences": [earlier]}
    rig.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    rig.apply(job("role-gated", gangScheduling={"backend": "gated"}))
    operator = Operator(rig.plane, rig.directory / "role-operator.log")
    operator.program = impatient(5)
    operator.start(KUBECONFIG=str(kubeconfig), GRPO_LEASE_NAMESPACE=NAMESPACE)
    log = rig.directory / AUDIT_LOG
    try:
        rig.run_pods("role")
        rig.wait_state("role", "Running")
        for step in (5, 10):  # the second Event of a checkpoint counts the first one up
            reports["checkpoint"] = {"step": step, "path": "/checkpoints/step"}
            rig.wait("checkpoint", lambda: (rig.status("role").get("checkpoint") or {}).get("step") == step)  # noqa: B023
        before = rig.get("service", "role")["metadata"]["uid"]
        rig.kubectl("patch", "service", "role", "--type=merge", "-p", '{"spec": {"selector": {"a": "b"}}}')

        def made_anew():
            services = rig.items("services", "role")
            return "role" in services and services["role"]["metadata"]["uid"] != before

        rig.wait("a new Service", made_anew)
        for kind in CONFLICTS:
            name = f"role-{kind.lower()}"
            rig.wait(f"conflict of {kind}", lambda: rig.status(name).get("reason") == "NameConflict")  # noqa: B023
        rig.end_pod("role-0", 0, report(0, "Completed", step=20))

        def ended():
            rig.confirm_deletions("role")
            return "grpojob.grpo.dev/role" not in rig.kubectl("get", "grpojobs", "-o", "name").splitlines()

        rig.wait("end and TTL", ended)
        rig.wait("an earlier job's ConfigMap gone", lambda: ("delete", "", "configmaps") in asked(log), 60)
        rig.wait("a look at the stuck pod's Events", lambda: ("list", "", "events") in asked(log), 60)
        assert asked(log) | OF_ADMISSION == granted(mine) | OF_ALL_ACCOUNTS
        assert "orbidden" not in operator.log.read_text()
    finally:
        operator.stop()
        gang = ("workloads.scheduling.k8s.io", "podgroups.scheduling.k8s.io")
        for kind in ("grpojobs", "pods", "pvc", "configmaps", "services", *gang):
            rig.kubectl("delete", kind, "--all", "--force", "--grace-period=0", check=False)
