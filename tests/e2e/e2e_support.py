"""kubectl, helm and waiting, for the end-to-end tests."""

import copy
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from demo import install_command
from local_cluster import paths

ROOT = Path(__file__).parents[2]
NAMESPACE = "grpo-e2e"
OPERATOR_NAMESPACE = "grpo-e2e-system"

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    # A random model earns something at once: the share of even byte values.
    data = solution_str.encode()
    return sum(1 for byte in data if byte % 2 == 0) / max(1, len(data))
"""

TINY_JOB: dict[str, Any] = {
    "apiVersion": "grpo.dev/v1alpha1",
    "kind": "GRPOJob",
    "metadata": {"name": "tiny", "namespace": NAMESPACE},
    "spec": {
        "model": {"path": "/models/tiny-llama", "dtype": "float32"},
        "data": {
            "train": {
                "reasoningGym": {
                    "task": "basic_arithmetic",
                    "size": 400,
                    "params": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
                }
            },
            "trainBatchSize": 2,
            "maxPromptLength": 128,
            "maxResponseLength": 8,
        },
        "reward": {"functions": [{"name": "even", "python": {"source": REWARD}}]},
        "rollout": {"n": 4},
        "actor": {"ppoMiniBatchSize": 2, "optim": {"lr": 1e-3}},
        "trainer": {"totalSteps": 4, "nnodes": 2, "nGpusPerNode": 1, "saveFreq": 1},
        "checkpoint": {"claimTemplate": {"size": "1Gi"}, "whenDeleted": "Delete"},
        "template": {
            "shmSize": "512Mi",
            "resources": {"requests": {"cpu": "300m", "memory": "2Gi"}, "limits": {"memory": "6Gi"}},
            "env": [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "1"}],
        },
    },
}


def tiny_job(name: str, **sections: dict[str, Any]) -> dict[str, Any]:
    """TINY_JOB under another name, with fields of sections replaced."""
    job = copy.deepcopy(TINY_JOB)
    job["metadata"]["name"] = name
    for section, fields in sections.items():
        job["spec"].setdefault(section, {}).update(fields)
    return job


class Cluster:
    """The local cluster, through kubectl and helm."""

    def __init__(self) -> None:
        self.kubeconfig = subprocess.run(
            ["python3", "-m", "local_cluster", "kubeconfig"], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.strip()
        self.trainer_image = ""

    def run(self, *command: str, stdin: str | None = None, check: bool = True) -> str:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=180, check=False, cwd=ROOT)
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
        return done.stdout + (done.stderr if not check else "")

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        namespace = [] if "-n" in arguments else ["-n", NAMESPACE]
        command = [str(paths.binary("kubectl")), "--kubeconfig", self.kubeconfig, *namespace, *arguments]
        return self.run(*command, stdin=stdin, check=check)

    def helm(self, *arguments: str) -> str:
        return self.run(str(paths.binary("helm")), "--kubeconfig", self.kubeconfig, *arguments)

    def uninstall_operator(self, namespace: str) -> None:
        self.helm("uninstall", "grpo-operator", "--namespace", namespace, "--ignore-not-found", "--wait")

    def install_operator(self, images: dict[str, str]) -> None:
        settings = ("progressIntervalSeconds=2", f"watchNamespaces={{{NAMESPACE}}}")
        self.run(*install_command(self.kubeconfig, images, OPERATOR_NAMESPACE, *settings))

    def apply(self, manifest: dict[str, Any]) -> str:
        return self.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def get(self, kind: str, name: str) -> dict[str, Any]:
        return json.loads(self.kubectl("get", kind, name, "-o", "json"))

    def get_list(self, kind: str, selector: str) -> list[dict[str, Any]]:
        return json.loads(self.kubectl("get", kind, "-l", selector, "-o", "json"))["items"]

    def status(self, job: str) -> dict[str, Any]:
        return self.get("grpojob", job).get("status") or {}

    def pods(self, job: str) -> dict[str, dict[str, Any]]:
        return {pod["metadata"]["name"]: pod for pod in self.get_list("pods", f"grpo.dev/job-name={job}")}

    def delete_namespace(self, name: str) -> None:
        self.kubectl("delete", "namespace", name, "--ignore-not-found", "--timeout=120s")

    def wait_status(
        self, job: str, ready: Callable[[dict[str, Any]], bool], seconds: float, what: str
    ) -> dict[str, Any]:
        """Poll the job's status until `ready` holds. Fails with the last status, at once where the job has Failed."""
        deadline = time.monotonic() + seconds
        while True:
            status = self.status(job)
            if ready(status):
                return status
            if status.get("state") == "Failed" or time.monotonic() > deadline:
                raise AssertionError(f"{job}: no {what}; status: {json.dumps(status, indent=1)}")
            time.sleep(1)


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    return next((item for item in status.get("conditions", []) if item["type"] == kind), {})


def step(status: dict[str, Any]) -> int:
    return (status.get("progress") or {}).get("step", 0)
