#!/usr/bin/env python3
"""`make test`: builds what the tests need and runs every tier, side by side where two cores allow."""

from demo import _after_check, cluster_stages, python_module
from stages import Runner, Stage, main_guard, require


def make(target: str) -> list[str]:
    return ["make", "--no-print-directory", target]


def main(runner: Runner) -> int:
    require("python3", "make")
    builds = [Stage("check", python_module("local_cluster", "preflight")), *_after_check(cluster_stages())]
    tests = [
        Stage("lint", make("lint"), after=["tools"]),
        Stage("unit", make("unit"), after=["lint"]),
        Stage("trainer-env", make("setup-trainer"), after=["images"], note="torch, vLLM and Ray outside the image"),
        Stage("trainer", make("unit-trainer"), after=["trainer-env", "unit"]),
        Stage("conformance", make("conformance"), after=["trainer"]),
        # These mostly wait for control planes, so they go beside the trainer's arithmetic and beside each other.
        Stage("apiserver", make("apiserver"), after=["load", "unit"]),
        Stage("gangs", make("gangs"), after=["conformance"]),
        Stage("chaos", make("chaos-short"), after=["apiserver"]),
        # These start Ray and vLLM: one at a time.
        Stage("integration", make("integration"), after=["gangs", "chaos"]),
        Stage("e2e", make("e2e"), after=["integration"]),
    ]
    runner.run([*builds, *tests])
    print(f"\nTimes\n{runner.summary()}")
    return 0


if __name__ == "__main__":
    main_guard(main)
