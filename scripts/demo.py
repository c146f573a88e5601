#!/usr/bin/env python3
"""Fresh machine to a running, learning GRPOJob. Standard library only; every stage may be run again."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from stages import ROOT, Runner, Stage, main_guard, require

sys.path.insert(0, str(ROOT))
from local_cluster import paths

EXAMPLE = ROOT / "examples" / "arithmetic.yaml"
CURVE = ROOT / ".local" / "reward-curve.png"
TABLE = ROOT / ".local" / "reward-curve.csv"
JOB = "arithmetic"
OPERATOR_NAMESPACE = "grpo-system"
JOB_TIMEOUT_SECONDS = 1800


def python_module(*arguments: str) -> list[str]:
    return [sys.executable, "-u", "-m", *arguments]


def cluster_stages() -> list[Stage]:
    """Binaries and images are built side by side; the cluster waits for the first, loading for both."""
    return [
        Stage("kubernetes", python_module("local_cluster", "build"), note="compiled once, then cached"),
        Stage("tools", ["make", "--no-print-directory", "setup"], note="uv, grpoctl", quiet=True),
        Stage(
            "images",
            python_module("local_cluster.image_build", "build"),
            note="operator and CPU trainer; built once, then cached",
        ),
        Stage("cluster", python_module("local_cluster", "up"), after=["kubernetes"]),
        Stage("load", python_module("local_cluster.image_build", "load"), after=["cluster", "images"]),
    ]


def main(runner: Runner) -> int:
    require("python3", "make")
    runner.run([Stage("check", python_module("local_cluster", "preflight")), *_after_check(cluster_stages())])
    kubeconfig = _output(*python_module("local_cluster", "kubeconfig"))
    images = json.loads(_output(*python_module("local_cluster.image_build", "references")))
    install = install_command(kubeconfig, images, OPERATOR_NAMESPACE, "progressIntervalSeconds=5")
    runner.run([Stage("install", install, note="helm upgrade --install grpo-operator")])

    runner.say("train", f"applies {EXAMPLE.relative_to(ROOT)} and follows it (Ctrl-C stops watching, not training)")
    environment = {**os.environ, "KUBECONFIG": kubeconfig}
    grpoctl = str(ROOT / ".venv" / "bin" / "grpoctl")
    begin = time.monotonic()
    code = subprocess.run(
        [
            *(grpoctl, "run", str(EXAMPLE), "--replace", "--timeout", str(JOB_TIMEOUT_SECONDS)),
            *("--curve", str(CURVE), "--csv", str(TABLE)),
        ],
        env=environment,
        check=False,
        cwd=ROOT,
    ).returncode
    runner.times["train"] = time.monotonic() - begin
    kubectl = str(paths.binary("kubectl"))
    subprocess.run([kubectl, "get", "grpojobs"], env=environment, check=False)
    print(f"\nTimes\n{runner.summary()}\n")
    if code == 0:
        print(_next_commands(kubeconfig, kubectl, grpoctl))
    else:
        print(f"The job did not succeed. Ask: KUBECONFIG={kubeconfig} {grpoctl} status {JOB}")
    return code


def install_command(kubeconfig: str, images: dict[str, str], namespace: str, *settings: str) -> list[str]:
    """`helm upgrade --install` of the chart with the images that were built here and `settings`, such as `a.b=c`."""
    operator, trainer = images["operator"].rsplit(":", 1), images["trainer"].rsplit(":", 1)
    return [
        *(str(paths.binary("helm")), "--kubeconfig", kubeconfig, "upgrade", "--install", "grpo-operator"),
        "--take-ownership",  # of a CRD that an earlier release left, as it should
        *(str(ROOT / "charts" / "grpo-operator"), "--namespace", namespace, "--create-namespace"),
        *("--set", f"image.repository={operator[0]},image.tag={operator[1]}"),
        *("--set", f"trainerImage.repository={trainer[0]},trainerImage.tag={trainer[1]}"),
        *(argument for setting in settings for argument in ("--set", setting)),
        *("--wait", "--timeout", "180s"),
    ]


def _after_check(stages: list[Stage]) -> list[Stage]:
    for stage in stages:
        stage.after = [*stage.after, "check"]
    return stages


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _next_commands(kubeconfig: str, kubectl: str, grpoctl: str) -> str:
    def short(path: str) -> str:
        return str(Path(path).relative_to(ROOT)) if Path(path).is_relative_to(ROOT) else path

    return f"""The model learned. Reward curve: {short(str(CURVE))} (numbers: {short(str(TABLE))})

Next
  export KUBECONFIG={kubeconfig} PATH={Path(kubectl).parent}:{Path(grpoctl).parent}:$PATH
  kubectl get grpojobs                    state, step, progress, reward
  kubectl describe grpojob {JOB}     its story in Events
  grpoctl status {JOB}               batch plan, checkpoint, restarts on one screen
  grpoctl logs {JOB}                 a line a step
  grpoctl run examples/inline-reward.yaml your own reward function
  make cluster-down                       stop everything
"""


if __name__ == "__main__":
    main_guard(main)
