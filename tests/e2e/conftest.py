"""The local cluster with the operator installed by its chart, and a thin kubectl."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e_support import NAMESPACE, OPERATOR_NAMESPACE, Cluster

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Operator installed with a fast progress interval; a namespace of our own that enforces the restricted profile."""
    cluster = Cluster()
    images = json.loads(
        subprocess.run(
            ["python3", "-m", "local_cluster.image_build", "references"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )
    cluster.delete_namespace(NAMESPACE)
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    # The demo's operator watches all namespaces: two would act on one job. `make demo` installs it again.
    cluster.uninstall_operator("grpo-system")
    cluster.install_operator(images)
    cluster.trainer_image = images["trainer"]
    yield cluster
    cluster.delete_namespace(NAMESPACE)


@pytest.fixture
def apply(cluster: Cluster) -> Iterator[Callable[[dict[str, Any]], str]]:
    """Apply a job and delete it afterwards."""
    names: list[str] = []

    def _apply(job: dict[str, Any]) -> str:
        name = job["metadata"]["name"]
        names.append(name)
        cluster.apply(job)
        return name

    yield _apply
    for name in names:
        cluster.kubectl("delete", "grpojob", name, "--ignore-not-found", "--wait=false")
    deadline = time.monotonic() + 60
    while names and time.monotonic() < deadline:
        if not cluster.get_list("pods", f"grpo.dev/job-name in ({','.join(names)})"):
            break
        time.sleep(1)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and report.when == "call":
        cluster = Cluster()
        print("\n--- state of the cluster at the failure ---")
        for arguments in (
            ["get", "grpojobs,pods,pvc", "-o", "wide"],
            ["get", "events", "--sort-by=.lastTimestamp"],
        ):
            print(cluster.kubectl(*arguments, check=False)[-6000:])
        print(cluster.kubectl("logs", "-n", OPERATOR_NAMESPACE, "deploy/grpo-operator", "--tail=60", check=False))
