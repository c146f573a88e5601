"""A cluster that the user names is used, checked, and left as it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from local_cluster import paths
from local_cluster.control_plane import ControlPlane

pytestmark = [pytest.mark.apiserver, pytest.mark.usefixtures("needs_control_plane")]
ROOT = Path(__file__).parents[2]


def local_cluster(state: Path, command: str, *, kubeconfig: Path, context: str) -> "subprocess.CompletedProcess[str]":
    settings = {
        "GRPO_STATE_DIR": str(state),
        "GRPO_KUBE_CONTEXT": context,
        "KUBECONFIG": str(kubeconfig),
        "GRPO_CACHE_DIR": str(paths.cache_dir()),
    }
    return subprocess.run(
        [sys.executable, "-m", "local_cluster", command],
        cwd=ROOT,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
    )


def test_up_copies_the_context_and_down_leaves_the_cluster(tmp_path: Path) -> None:
    plane = ControlPlane(tmp_path / "plane")
    plane.start()
    state = tmp_path / "state"
    try:
        up = local_cluster(state, "up", kubeconfig=plane.kubeconfig, context="grpo-local")
        assert up.returncode == 0, up.stderr
        kubectl = [str(paths.binary("kubectl")), f"--kubeconfig={state / 'kubeconfig'}", "get", "--raw=/readyz"]
        assert subprocess.run(kubectl, capture_output=True, text=True, check=True).stdout == "ok"
        assert (state / "kubeconfig").stat().st_mode & 0o077 == 0
        wrong = local_cluster(tmp_path / "other", "up", kubeconfig=plane.kubeconfig, context="no-such")
        assert wrong.returncode == 1
        assert "GRPO_KUBE_CONTEXT=no-such" in wrong.stderr
        assert "get-contexts" in wrong.stderr
        assert local_cluster(state, "down", kubeconfig=plane.kubeconfig, context="grpo-local").returncode == 0
        assert not state.exists()
        assert plane.ready()
    finally:
        plane.stop()


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path) -> None:
    plane = ControlPlane(tmp_path / "plane")
    plane.start()
    plane.stop()
    up = local_cluster(tmp_path / "state", "up", kubeconfig=plane.kubeconfig, context="grpo-local")
    assert up.returncode == 1
    assert "GRPO_KUBE_CONTEXT=grpo-local: the cluster does not answer" in up.stderr
