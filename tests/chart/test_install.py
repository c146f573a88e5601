"""The chart installed on a real API server: the operator, under its own service account, may do all that it must."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chart_support import CHART, ROOT, Object, helm
from ruamel.yaml import YAML

from grpo_api import names
from local_cluster import builder, paths
from local_cluster.control_plane import ControlPlane, free_ports

pytestmark = pytest.mark.apiserver
SYSTEM, TEAM = "grpo-system", "team"
GROUPS = "podgroups.scheduling.k8s.io"


class Site:
    """A control plane without nodes, in which pods are admitted but never run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.plane = ControlPlane(directory / "plane")

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        command = [str(paths.binary("kubectl")), "--kubeconfig", str(self.plane.kubeconfig), *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stderr}"
        return done.stdout

    def helm(self, *arguments: str) -> str:
        return helm("--kubeconfig", str(self.plane.kubeconfig), "-n", SYSTEM, *arguments).stdout

    def items(self, kind: str, namespace: str = TEAM) -> list[Object]:
        return list(json.loads(self.kubectl("get", kind, "-n", namespace, "-o", "json"))["items"])

    def account_kubeconfig(self) -> Path:
        """The operator's identity as it has it in its pod: a token of the service account."""
        token = self.kubectl("create", "token", "grpo-operator", "-n", SYSTEM).strip()
        config = json.loads(self.kubectl("config", "view", "--raw", "-o", "json"))
        config["users"] = [{"name": "operator", "user": {"token": token}}]
        config["contexts"][0]["context"]["user"] = "operator"
        path = self.directory / "operator.kubeconfig"
        path.write_text(json.dumps(config))
        return path


def wait(what: str, ready: Callable[[], Any], seconds: float = 30) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := ready()):
        assert time.monotonic() < deadline, f"no {what} within {seconds} s"
        time.sleep(0.3)
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if missing := builder.missing(["control-plane", "tools"]):
        pytest.fail(f"{missing[0].name} is not built: run `make binaries`")
    site = Site(tmp_path_factory.mktemp("site"))
    site.plane.start()
    try:
        for namespace in (SYSTEM, TEAM):
            site.kubectl("create", "namespace", namespace)
            site.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
        yield site
    finally:
        site.plane.stop()


@pytest.fixture(params=[[], [TEAM]], ids=["all namespaces", "one namespace"])
def installed(request: pytest.FixtureRequest, site: Site) -> Iterator[list[str]]:
    arguments = ["--set", f"watchNamespaces={{{','.join(request.param)}}}"] if request.param else []
    site.helm("upgrade", "--install", "grpo-operator", str(CHART), *arguments)
    site.kubectl("wait", "--for=condition=Established", "crd/grpojobs.grpo.dev", "--timeout=20s")
    yield request.param
    site.kubectl("delete", "grpojobs", "-A", "--all", "--timeout=30s")
    site.helm("uninstall", "grpo-operator", "--wait", "--timeout", "60s")


@pytest.fixture
def operator(site: Site, installed: list[str]) -> Iterator[str]:
    """Address of the metrics of an operator that runs with the rights of the chart."""
    metrics_port, probe_port = free_ports(2)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GRPO_")} | {
        "KUBECONFIG": str(site.account_kubeconfig()),
        "GRPO_TRAINER_IMAGE": "localhost/trainer:test",
        "GRPO_WATCH_NAMESPACES": ",".join(installed),
        "GRPO_LEASE_NAMESPACE": SYSTEM,
        "GRPO_PROGRESS_INTERVAL_SECONDS": "0.5",
        "GRPO_METRICS_PORT": str(metrics_port),
        "GRPO_PROBE_PORT": str(probe_port),
    }
    log = (site.directory / "operator.log").open("wb")
    process = subprocess.Popen([sys.executable, "-m", "grpo_operator.main"], env=environment, stdout=log, stderr=log)
    yield f"http://127.0.0.1:{metrics_port}{names.METRICS_PATH}"
    process.terminate()
    process.wait(20)
    log.close()
    text = (site.directory / "operator.log").read_text()
    assert "forbidden" not in text.lower(), text


def job(name: str) -> str:
    made = YAML(typ="safe").load((ROOT / "examples" / "arithmetic.yaml").read_text())
    made["metadata"] = {"name": name, "namespace": TEAM}
    made["spec"]["checkpoint"] = {"claimTemplate": {"size": "1Gi"}, "whenDeleted": "Delete"}
    return json.dumps(made)


def test_rights_suffice_for_a_job_s_life(site: Site, operator: str, installed: list[str]):
    """Creates every kind of child, meets a name conflict, suspends and resumes; no request is refused."""
    life, taken = (f"{name}-{len(installed)}" for name in ("life", "taken"))  # the garbage collector takes its time

    def children(kind: str) -> list[Object]:
        return [i for i in site.items(kind) if (i["metadata"].get("labels") or {}).get(names.LABEL_JOB_NAME) == life]

    def reason(name: str) -> str:
        found = json.loads(site.kubectl("get", "grpojob", name, "-n", TEAM, "-o", "json"))
        return str(found.get("status", {}).get("reason", ""))

    def suspend(value: bool) -> None:
        patch = json.dumps({"spec": {"runPolicy": {"suspend": value}}})
        site.kubectl("patch", "grpojob", life, "-n", TEAM, "--type=merge", "-p", patch)

    site.kubectl("create", "configmap", names.config_map_name(taken), "-n", TEAM)
    site.kubectl("apply", "-f", "-", stdin=job(taken))
    site.kubectl("apply", "-f", "-", stdin=job(life))
    wait("two pods", lambda: len(children("pods")) == 2)
    for kind in ("services", "configmaps", "persistentvolumeclaims", "workloads", GROUPS):
        assert children(kind), kind
    wait("reason NameConflict", lambda: reason(taken) == "NameConflict")
    suspend(True)
    wait("end of pods and group", lambda: not children("pods") and not children(GROUPS))
    suspend(False)
    wait("pods again", lambda: len(children("pods")) == 2)
    assert [event for event in site.items("events") if event["involvedObject"]["name"] == life]
    with urllib.request.urlopen(operator, timeout=10) as answer:
        text = answer.read().decode()
    requests = re.findall(r'grpo_operator_api_requests_total{code="(\d+)",resource="(\w+)",verb="(\w+)"}', text)
    assert len(requests) > 10, text
    assert [request for request in requests if request[0] in ("401", "403")] == []


@pytest.mark.parametrize("installed", [[]], indirect=True, ids=["all namespaces"])
def test_operator_s_pod_is_admitted_under_the_restricted_profile(site: Site, installed: list[str]):
    (pod,) = wait("the operator's pod", lambda: site.items("pods", SYSTEM))
    assert pod["spec"]["serviceAccountName"] == "grpo-operator"


@pytest.mark.parametrize("installed", [[]], indirect=True, ids=["all namespaces"])
def test_editors_may_write_jobs_and_viewers_may_not(site: Site, installed: list[str]):
    for role in ("edit", "view"):
        binding = ("rolebinding", role, f"--clusterrole={role}", f"--user={role}", "-n", TEAM, "--dry-run=client")
        site.kubectl("apply", "-f", "-", stdin=site.kubectl("create", *binding, "-o", "json"))

    def allowed(user: str, verb: str) -> bool:
        attributes = {"namespace": TEAM, "group": names.GROUP, "resource": names.PLURAL, "verb": verb}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": attributes},
        }
        answer = site.kubectl("create", "-o", "json", "-f", "-", stdin=json.dumps(review))
        return bool(json.loads(answer)["status"]["allowed"])

    wait("aggregation", lambda: allowed("edit", "create") and allowed("view", "get"))
    assert not allowed("view", "create")


@pytest.mark.parametrize("installed", [[]], indirect=True, ids=["all namespaces"])
@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_kubectl_takes_the_examples(site: Site, installed: list[str], example: Path):
    """kubectl reads YAML 1.1, in which a bare `n` is a boolean: as a key it must be quoted."""
    site.kubectl("apply", "--dry-run=server", "-n", TEAM, "-f", str(example))


def test_uninstall_keeps_jobs_and_leaves_nothing_else(site: Site):
    """The CRD and its jobs stay; a reinstallation takes them over."""
    site.helm("install", "grpo-operator", str(CHART))
    site.kubectl("wait", "--for=condition=Established", "crd/grpojobs.grpo.dev", "--timeout=20s")
    site.kubectl("apply", "-f", "-", stdin=job("kept"))
    site.helm("uninstall", "grpo-operator", "--wait", "--timeout", "60s")
    kinds = (
        "deployments,services,serviceaccounts,configmaps,secrets,roles,rolebindings,clusterroles,clusterrolebindings"
    )
    left = json.loads(site.kubectl("get", kinds, "-A", "-l", "app.kubernetes.io/managed-by=Helm", "-o", "json"))
    assert left["items"] == []
    assert [item["metadata"]["name"] for item in site.items("grpojobs")] == ["kept"]
    site.helm("install", "grpo-operator", str(CHART))
    assert [item["metadata"]["name"] for item in site.items("grpojobs")] == ["kept"]
    site.kubectl("delete", "grpojob", "kept", "-n", TEAM, "--timeout=30s")
    site.helm("uninstall", "grpo-operator", "--wait", "--timeout", "60s")
    site.kubectl("delete", "crd", "grpojobs.grpo.dev", "--timeout=30s")
