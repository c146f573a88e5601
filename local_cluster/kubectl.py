"""Calls of our own kubectl on our own kubeconfig."""

import json
import subprocess
from typing import Any

from local_cluster import paths


class KubectlError(RuntimeError):
    """The message is kubectl's."""


def kubectl(*arguments: str, stdin: str | None = None, timeout_seconds: float = 30) -> str:
    command = [
        str(paths.binary("kubectl")),
        f"--kubeconfig={paths.kubeconfig()}",
        f"--request-timeout={timeout_seconds:.0f}s",
        *arguments,
    ]
    result = subprocess.run(command, input=stdin, capture_output=True, text=True)
    if result.returncode:
        raise KubectlError(result.stderr.strip())
    return result.stdout


def get(*arguments: str) -> Any:
    """The parsed JSON of `kubectl get`."""
    return json.loads(kubectl("get", "--output=json", *arguments))


def set_fake_gpus(node: str, count: int) -> None:
    """Let a node offer ``count`` GPUs that it does not have, as an extended resource that the scheduler counts."""
    amounts = {"nvidia.com/gpu": str(count)}
    patch = {"status": {"capacity": amounts, "allocatable": amounts}}
    kubectl("patch", "node", node, "--subresource=status", "--type=merge", f"--patch={json.dumps(patch)}")
