"""(job, what is observed, now) -> what to write. Pure: no I/O, no clock, no random.

The order of decisions, each of which ends the plan:

1. a job that is being deleted, or that another controller manages, gets nothing; a job that has ended gets clean-up
   only, and is deleted after its TTL;
2. an invalid spec fails the job (its sections cannot change);
3. a suspended job loses its pods and keeps its claim;
4. pods of earlier attempts are deleted, and the next attempt waits until they are gone;
5. success of rank 0, a fault of the user's, the deadline, or a loss of the gang ends the attempt. The decision is
   written to the status first; the pods are then of an earlier attempt, and point 4 deletes them. So what the operator
   deletes is never taken for a failure, and a crash in between repeats nothing;
6. missing children are made, after the pause that restarts ask for;
7. the state is computed from the pods and from what the head reports.
"""

import copy
import hashlib
import json
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from grpo_api import names
from grpo_api.batch_plan import make_batch_plan
from grpo_api.errors import InvalidJobError
from grpo_api.job import GRPOJob, is_managed_elsewhere, parse_job
from grpo_api.names import Condition, State
from grpo_api.validation import size_faults
from grpo_operator import children_of, status
from grpo_operator.gang.choice import KINDS as GANG_KINDS
from grpo_operator.kube import Object
from grpo_operator.observe import Observed
from grpo_operator.policies import limits, phase, placement, podstate, problems, restart
from grpo_operator.reasons import Cause, Reason

MAX_RESTART_ENTRIES = 20
MAX_REMEMBERED = 1024
_valid: OrderedDict[str, tuple[bytes, GRPOJob]] = OrderedDict()
"""By UID a digest of the spec, whose rewards may fill a MB, and what became of it; the last used at the end. It changes
no answer: parsing is a pure function."""


@dataclass
class Plan:
    """What to write, in this order: status, deletions, creations; then look again at `wake_after` seconds."""

    status: dict[str, Any]
    create: list[Object] = field(default_factory=list)
    delete: list[tuple[str, Object]] = field(default_factory=list)
    wake_after: float | None = None
    again: bool = False
    """Plan again as soon as the status is written."""
    stuck: Object | None = None
    """A pod that does not start: its Events may say why."""
    consult: tuple[str, str] | None = None
    """(kind, name) of an object that says why the gang waits."""

    @property
    def decides(self) -> bool:
        """The status holds a decision, on which what follows rests: it is written first and at once. Else it tells what
        is there, and children are made before it: a job then starts with one patch less."""
        return self.again or bool(self.delete)

    def wake(self, seconds: float | None) -> None:
        """Look again after `seconds`; of several times the earliest counts."""
        if seconds is not None:
            self.wake_after = seconds if self.wake_after is None else min(self.wake_after, seconds)


def plan(observed: Observed, now: datetime) -> Plan:
    job, old = observed.job, observed.job.get("status") or {}
    new = copy.deepcopy(old)
    made = Plan(status=new)
    if job["metadata"].get("deletionTimestamp") or is_managed_elsewhere(job):
        return made
    if old.get("state") in names.TERMINAL_STATES:
        _clean_up(made, observed)
        left = limits.expiry(old, job["spec"].get("runPolicy", {}).get("ttlSecondsAfterFinished"), now)
        if left is not None and left <= 0:
            made.delete = [(names.KIND, job)]  # its children go with it
        else:
            made.wake(left)
        return made
    new["observedGeneration"] = job["metadata"].get("generation", 0)
    try:
        parsed = _parse(job)
    except InvalidJobError as error:
        message = "\n".join(str(fault) for fault in error.faults)
        status.set_condition(new, Condition.VALID, "False", Reason.INVALID_SPEC, message, now)
        phase.end(new, State.FAILED, Reason.INVALID_SPEC, message, now)
        _clean_up(made, observed)
        return made
    status.set_condition(new, Condition.VALID, "True", Reason.SPEC_VALID, "", now)
    new["batchPlan"] = make_batch_plan(parsed.spec).model_dump(by_alias=True, exclude_none=True)
    new.setdefault("attempt", 0)
    new.setdefault("failures", 0)
    status.take_progress(new, observed, parsed)
    if parsed.spec.run_policy.suspend and not _head_succeeded(_present(observed, new["attempt"])):
        _suspend(made, observed, parsed, now)
    else:
        _go_on(made, observed, parsed, now)
    return made


def _parse(job: Object) -> GRPOJob:
    """The job, valid. A spec that was parsed before is not parsed anew: that would be half of a plan's time."""
    metadata = job["metadata"]
    digest = hashlib.sha256(json.dumps(job["spec"]).encode()).digest()
    held = _valid.get(metadata["uid"])
    if held is not None and held[0] == digest:
        _valid.move_to_end(metadata["uid"])
        return held[1].model_copy(update={"metadata": metadata})
    parsed = parse_job(job)
    if faults := size_faults(parsed.spec):
        raise InvalidJobError(faults)
    _valid[metadata["uid"]] = (digest, parsed)
    if len(_valid) > MAX_REMEMBERED:
        _valid.popitem(last=False)
    return parsed


def _suspend(made: Plan, observed: Observed, job: GRPOJob, now: datetime) -> None:
    new = made.status
    made.delete = [("Pod", pod) for pod in observed.pods if not pod["metadata"].get("deletionTimestamp")]
    made.delete += _gang_objects(observed) if not observed.pods else []
    gone = not observed.pods
    reason = Reason.SUSPENDED if gone else Reason.SUSPENDING
    message = "runPolicy.suspend is true; the claim is kept" if gone else "runPolicy.suspend is true; pods are going"
    status.set_nodes(new, 0, job.spec.trainer.nnodes)
    status.set_state(new, State.SUSPENDED if gone else State(new.get("state") or State.PENDING), reason, message)
    status.set_condition(new, Condition.SUSPENDED, "True" if gone else "False", reason, message, now)
    status.set_condition(new, Condition.RUNNING, "False", reason, message, now)
    status.set_condition(new, Condition.SCHEDULED, "False", reason, message, now)


def _go_on(made: Plan, observed: Observed, job: GRPOJob, now: datetime) -> None:
    new, old = made.status, observed.job.get("status") or {}
    suspended = old.get("reason") in (Reason.SUSPENDED, Reason.SUSPENDING)
    if suspended and not _head_succeeded(_present(observed, new["attempt"])):
        # A new attempt, so that pods which are still going are not taken for lost ones. No restart entry: none failed.
        new["attempt"] += 1 if "createdAttempt" in old or observed.pods else 0
        new.pop("createdAttempt", None)
        new.pop("startTime", None)
        status.set_condition(new, Condition.SUSPENDED, "False", Reason.RESUMED, "", now)
        status.set_state(new, State.PENDING, Reason.RESUMED, "resumes from the newest checkpoint")
        made.again = True
        return
    attempt, total = new["attempt"], job.spec.trainer.nnodes
    earlier = [pod for pod in observed.pods if podstate.attempt_of(pod) != attempt]
    pods = _present(observed, attempt)
    status.set_nodes(new, sum(map(podstate.is_ready, pods)), total)
    too_long, left = limits.deadline(new, job.spec.run_policy, now)
    if too_long is not None and not _head_succeeded(pods):
        phase.end(new, State.FAILED, Reason.DEADLINE, too_long, now)
        made.again = True
        return
    made.wake(left)
    if earlier:
        made.delete = [("Pod", pod) for pod in earlier if not pod["metadata"].get("deletionTimestamp")]
        last = (new.get("restarts") or [{}])[-1]
        restarting = last.get("attempt") == attempt - 1
        why = f"; {last['message']}" if restarting else ""
        state, reason = (State.RESTARTING, Reason.RESTARTING) if restarting else (State.PENDING, Reason.RESUMED)
        phase.not_running(new, state, reason, f"waits until the pods of attempt {attempt - 1} are gone{why}", now)
        return
    expected = [names.pod_name(job.name, rank) for rank in range(total)]
    if _head_succeeded(pods):
        message = f"rank 0 ended well after step {(new.get('progress') or {}).get('step', '?')}"
        phase.end(new, State.SUCCEEDED, Reason.SUCCEEDED, message, now)
        made.again = True
        return
    if fault := restart.user_fault(pods):
        phase.end(new, State.FAILED, fault.reason, fault.message, now)
        made.again = True
        return
    complete = new.get("createdAttempt") == attempt
    loss = restart.find_loss(pods, expected, complete, now)
    if loss is not None and loss.wait_seconds > 0:
        made.wake(loss.wait_seconds)
        message = f"{loss.message}; the gang restarts as soon as the peer's own state tells why"
        phase.not_running(new, State.RESTARTING, loss.cause, message, now)
        return
    if loss is None:
        timeout = job.spec.gang_scheduling.schedule_timeout_seconds
        loss, left = placement.placement_loss(pods, total, timeout, now)
        made.wake(left)
    if loss is None:
        loss, left = limits.stall(new, job.spec.run_policy, job.name, observed.head_quiet, now)
        made.wake(left)
    if loss is not None:
        _restart(made, loss, job, now)
        return
    if not complete:
        if {pod["metadata"]["name"] for pod in pods} == set(expected):
            new["createdAttempt"] = attempt
            new.setdefault("startTime", status.timestamp(now))
        elif (start := restart.next_start(new.get("restarts") or [], now)) is not None and start > now:
            made.wake((start - now).total_seconds())
            # The time and not the seconds left: the status is then written once.
            message = f"attempt {attempt} starts at {status.timestamp(start)}; {new['restarts'][-1]['message']}"
            phase.not_running(new, State.RESTARTING, Reason.BACKOFF, message, now)
            return
    if observed.create_fault and observed.create_fault.final:
        phase.end(new, State.FAILED, Reason.INVALID_SPEC, observed.create_fault.message, now)
        made.again = True
        return
    wanted = children_of.wanted(job, attempt, observed)
    if _make_children(made, observed, wanted, pods, now):
        made.wake(phase.compute(new, observed, pods, total, wanted.waiting, now))
        made.consult = wanted.consults
        made.stuck, left = problems.stuck_pod(pods, now)
        made.wake(left)


def _restart(made: Plan, loss: restart.Loss, job: GRPOJob, now: datetime) -> None:
    """Write the decision; the pods are deleted by the next plan, when they are those of an earlier attempt."""
    new = made.status
    failures = new["failures"] + (1 if loss.counted else 0)
    limit = job.spec.run_policy.max_restarts
    if failures > limit:
        new["failures"] = failures
        message = f"{loss.message}; that is failure {failures}, and runPolicy.maxRestarts is {limit}"
        phase.end(new, State.FAILED, Reason.MAX_RESTARTS, message, now)
        made.again = True
        return
    entry: dict[str, Any] = {
        "time": status.timestamp(now),
        "attempt": new["attempt"],
        "pod": loss.pod,
        "cause": str(loss.cause),
        "counted": loss.counted,
        "message": loss.message[:2000],
    }
    if (step := (new.get("checkpoint") or {}).get("step")) is not None:
        entry["fromStep"] = step
    new["restarts"] = [*new.get("restarts", []), entry][-MAX_RESTART_ENTRIES:]
    new["failures"] = failures
    new["attempt"] += 1
    new.pop("createdAttempt", None)
    origin = f"from step {step} or a newer one" if step is not None else "from the start, unless a checkpoint is found"
    phase.not_running(new, State.RESTARTING, str(loss.cause), f"{loss.message}; the gang restarts {origin}", now)
    made.again = True


def _make_children(
    made: Plan, observed: Observed, wanted: children_of.Wanted, pods: list[Object], now: datetime
) -> bool:
    """Returns False where the gang cannot be made at all; the state then says why."""
    made.status["gang"] = wanted.gang
    if wanted.fault is not None:
        phase.not_running(made.status, State.PENDING, Reason.UNSCHEDULABLE, wanted.fault, now)
        return False
    present = {*observed.children, *(("Pod", pod["metadata"]["name"]) for pod in pods)}
    made.create = [make() for child, make in wanted.makers.items() if child not in present]
    objects = [] if wanted.left_alone else _gang_objects(observed)
    made.delete += [(kind, item) for kind, item in objects if (kind, item["metadata"]["name"]) not in wanted.makers]
    made.delete += children_of.spoiled(wanted, observed)
    return True


def _present(observed: Observed, attempt: int) -> list[Object]:
    return [pod for pod in observed.pods if podstate.attempt_of(pod) == attempt]


def _head_succeeded(pods: list[Object]) -> bool:
    for pod in pods:
        ended = podstate.terminated(pod)
        if podstate.rank_of(pod) == 0 and ended and ended.get("exitCode") == names.ExitCode.DONE:
            return podstate.report(pod) is not None
    return False


def _clean_up(made: Plan, observed: Observed) -> None:
    """A job that has ended keeps or loses its pods by cleanPodPolicy; gang objects go after the last running pod."""
    policy = (observed.job["spec"].get("runPolicy") or {}).get("cleanPodPolicy", "Running")
    running = [pod for pod in observed.pods if not podstate.has_ended(pod)]
    # They have no logs to be kept for; and a queue would let them in one day, or a gate stay on them for ever.
    waiting = [pod for pod in running if not podstate.is_scheduled(pod)]
    doomed = {"All": observed.pods, "Running": running, "None": waiting}[policy]
    made.delete = [("Pod", pod) for pod in doomed if not pod["metadata"].get("deletionTimestamp")]
    if not running:
        made.delete += _gang_objects(observed)


def _gang_objects(observed: Observed) -> list[tuple[str, Object]]:
    return [
        (kind, item)
        for (kind, _), item in observed.children.items()
        if kind in GANG_KINDS and not item["metadata"].get("deletionTimestamp")
    ]


__all__ = ["Cause", "Plan", "plan"]
