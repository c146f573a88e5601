"""Clusters that are not built here: the user's own, and kind."""

import os
import shutil
import subprocess

from local_cluster import kubectl, mode, paths
from local_cluster.certificates import write_private

FAKE_GPUS = 8


def use_named() -> None:
    """Copy the context that the user names into our kubeconfig, and check that the cluster answers."""
    context = os.environ[mode.CONTEXT_VARIABLE]
    command = [str(paths.binary("kubectl")), "config", "view", "--minify", "--flatten", "--raw", f"--context={context}"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(
            f"{mode.CONTEXT_VARIABLE}={context}: {result.stderr.strip()}. "
            "`kubectl config get-contexts` lists the contexts of your kubeconfig (KUBECONFIG, or ~/.kube/config)."
        )
    write_private(paths.kubeconfig(), result.stdout)
    # --minify keeps the one context, but not as the current one.
    subprocess.run(
        [command[0], f"--kubeconfig={paths.kubeconfig()}", "config", "use-context", context],
        capture_output=True,
        check=True,
    )
    try:
        kubectl.kubectl("get", "--raw=/readyz", timeout_seconds=10)
    except kubectl.KubectlError as error:
        raise SystemExit(f"{mode.CONTEXT_VARIABLE}={context}: the cluster does not answer: {error}") from error


def up_kind() -> None:
    """Create the kind cluster unless it exists, with a kubeconfig of ours, and let its nodes offer GPUs."""
    if mode.KIND_NAME not in _kind("get", "clusters").split():
        print("Creating a kind cluster ...", flush=True)
        _kind("create", "cluster", "--name", mode.KIND_NAME, "--wait", "180s", "--kubeconfig", str(paths.kubeconfig()))
    else:
        write_private(paths.kubeconfig(), _kind("get", "kubeconfig", "--name", mode.KIND_NAME))
    for node in kubectl.get("nodes")["items"]:
        if node["status"]["allocatable"].get("nvidia.com/gpu") != str(FAKE_GPUS):
            kubectl.set_fake_gpus(node["metadata"]["name"], FAKE_GPUS)


def down(current: mode.Mode) -> None:
    if current == "kind":
        _kind("delete", "cluster", "--name", mode.KIND_NAME, "--kubeconfig", str(paths.kubeconfig()))
    shutil.rmtree(paths.state_dir(), ignore_errors=True)


def _kind(*arguments: str) -> str:
    result = subprocess.run(["kind", *arguments], capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"`kind {' '.join(arguments)}` failed:\n{result.stderr[-2000:]}")
    return result.stdout
