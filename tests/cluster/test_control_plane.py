"""A throwaway control plane on free ports: real etcd, API server, scheduler and controller-manager."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from local_cluster import paths
from local_cluster.control_plane import COMPONENTS, ControlPlane

pytestmark = [pytest.mark.apiserver, pytest.mark.usefixtures("needs_control_plane")]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory):
    made = ControlPlane(tmp_path_factory.mktemp("plane"))
    made.start()
    yield made
    made.stop()
    assert not any(made.processes.alive(component) for component in COMPONENTS)


def kubectl(plane: ControlPlane, *arguments: str, stdin: str | None = None) -> str:
    command = [str(paths.binary("kubectl")), f"--kubeconfig={plane.kubeconfig}", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True).stdout


def test_versions_are_those_of_a_release(plane: ControlPlane) -> None:
    version = json.loads(kubectl(plane, "version", "--output=json"))
    assert version["serverVersion"]["gitVersion"] == version["clientVersion"]["gitVersion"]
    assert version["serverVersion"]["minor"] == "37"


def test_gang_scheduling_is_served(plane: ControlPlane) -> None:
    kinds = kubectl(plane, "api-resources", "--api-group=scheduling.k8s.io", "--output=name").split()
    assert "podgroups.scheduling.k8s.io" in kinds


def test_controllers_run(plane: ControlPlane) -> None:
    kubectl(plane, "create", "namespace", "ours")
    for _ in range(100):
        accounts = json.loads(kubectl(plane, "get", "serviceaccounts", "--namespace=ours", "--output=json"))["items"]
        if accounts:
            break
        time.sleep(0.1)
    assert [account["metadata"]["name"] for account in accounts] == ["default"]


def test_a_killed_component_is_started_again_and_data_stay(plane: ControlPlane) -> None:
    kubectl(plane, "create", "configmap", "kept", "--from-literal=a=b")
    for component in ("kube-apiserver", "etcd"):
        plane.kill(component)
        assert not plane.alive()
    plane.start()
    assert plane.alive()
    assert "kept" in kubectl(plane, "get", "configmaps", "--output=name")


def test_two_planes_run_side_by_side(plane: ControlPlane, tmp_path: Path) -> None:
    other = ControlPlane(tmp_path)
    other.start()
    try:
        assert other.port != plane.port
        assert "kept" not in kubectl(other, "get", "configmaps", "--output=name")
        # A second object on the same directory is the same plane.
        assert ControlPlane(tmp_path).port == other.port
        assert ControlPlane(tmp_path).alive()
    finally:
        other.stop()
