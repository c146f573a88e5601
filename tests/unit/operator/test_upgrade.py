"""Jobs that the first release left behind: a newer operator goes on with them and costs none of them a pod.

`data/first_release.json` holds what that release's plans made, carried out in its own `World` of the same tests: a list
a situation, the job before its children. (The job file is shortened; no operator reads it.)
"""

import copy
import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from grpo_api.status import GRPOJobStatus
from grpo_operator.kube import kind_of
from tests.unit.operator.operator_support import NATIVE, World, training

STORED = json.loads((Path(__file__).parent / "data" / "first_release.json").read_text())


def left_behind(situation: str) -> World:
    """The world as that release left it, a minute later."""
    job, *children = copy.deepcopy(STORED[situation])
    world = World(job, capabilities=NATIVE)
    world.children = {(kind_of(item), item["metadata"]["name"]): item for item in children}
    latest = max(item["lastTransitionTime"] for item in job["status"]["conditions"])
    world.now = datetime.fromisoformat(latest) + timedelta(seconds=60)
    if job["status"]["state"] == "Running":
        world.head_report = training()
    return world


@pytest.mark.parametrize("situation", STORED)
def test_no_pod_and_no_state_changes(situation):
    world = left_behind(situation)
    before, state, pods = set(world.children), world.status["state"], copy.deepcopy(world.pods)
    made = world.reconcile()
    assert (made.create, made.delete) == ([], [])
    assert (set(world.children), world.pods, world.status["state"]) == (before, pods, state)
    GRPOJobStatus.model_validate(world.status)
    assert world.plan().status == world.status, "the next plan writes again"


@pytest.mark.parametrize(("situation", "attempt"), [("running", 1), ("running again", 2)])
def test_loss_restarts_the_whole_gang(situation, attempt):
    world = left_behind(situation)
    del world.children["Pod", "sums-1"]
    world.reconcile()
    world.confirm_deletions()
    world.reconcile()
    assert [item["metadata"]["labels"]["grpo.dev/attempt"] for item in world.pods] == [str(attempt)] * 2
    assert {name for kind, name in world.children if kind.startswith("PodGroup")} == {f"sums-{attempt}"}
    assert world.status["restarts"][-1]["cause"] == "PodDeleted"


def test_restart_that_had_begun_goes_on():
    world = left_behind("restarting")
    world.confirm_deletions()
    world.run_gang()
    assert (world.status["attempt"], world.status["failures"]) == (1, 1)


def test_suspended_job_resumes():
    world = left_behind("suspended")
    world.job["spec"]["runPolicy"]["suspend"] = False
    world.run_gang()
    assert (world.status["attempt"], world.status.get("restarts", [])) == (1, [])
