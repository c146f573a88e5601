"""What the pods of a gang say: how one ended, and whether it is ready."""

import re
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from grpo_api import names
from grpo_api.status import TerminationReport
from grpo_operator.reasons import Cause

Object = dict[str, Any]

_DISRUPTIONS = {
    "PreemptionByScheduler": Cause.PREEMPTED,
    "EvictionByEvictionAPI": Cause.DRAINED,
    "TerminationByKubelet": Cause.EVICTED,
    "DeletionByTaintManager": Cause.NODE_LOST,
    "DeletionByPodGC": Cause.NODE_LOST,
}
_KUEUE = "TerminationTarget"
"""Kueue's condition on pods that it stops; the reason is such as WorkloadEvictedDueToPreempted."""
_REBOOTED = ("ContainerStatusUnknown", "Unknown")
"""Reasons of a container that a kubelet or containerd does not find again after its node was restarted."""
_REJECTED = re.compile(r"UnexpectedAdmissionError|TopologyAffinityError|NodeAffinity|OutOf\S+")
"""`status.reason` of a pod that a kubelet did not take after all, mostly as GPUs were lost or taken between."""
_SECRETS = re.compile(
    r"\b(hf_|sk-|ghp_|github_pat_|glpat-|xox[abp]-|AKIA)[A-Za-z0-9_\-]{8,}"
    r"|(?<=://)[^\s/@:]+:[^\s/@]+(?=@)"
    r"|(?i:(?<=bearer )|(?<=authorization: basic ))[A-Za-z0-9._~+/=\-]{8,}"
    r"|(?i:\b[\w-]*(token|password|passwd|api[_-]?key|(access|secret|private)[_-]?key|secret)\b[\"']?\s*[=:]\s*[\"']?)"
    r"(?P<value>(?![\d.]+\b|[<\[])[^\s\"',;]{6,})"
)
"""Tokens of hubs and clouds, passwords in URLs and after words such as `token=`. What a pod says last goes into the
status, which more people may read than its log."""
LAST_WORDS = 1500
"""Characters of a failed container's log that are kept."""


def rank_of(pod: Object) -> int:
    return names.label_number(pod["metadata"], names.LABEL_NODE_RANK)


def attempt_of(pod: Object) -> int:
    return names.label_number(pod["metadata"], names.LABEL_ATTEMPT)


def condition(pod: Object, kind: str) -> Object:
    for item in pod.get("status", {}).get("conditions") or []:
        if item.get("type") == kind:
            return dict(item)
    return {}


def is_ready(pod: Object) -> bool:
    return condition(pod, "Ready").get("status") == "True"


def is_scheduled(pod: Object) -> bool:
    return bool(pod.get("spec", {}).get("nodeName"))


def terminated(pod: Object) -> Object | None:
    """The trainer container's `terminated` state."""
    for status in pod.get("status", {}).get("containerStatuses") or []:
        if status.get("name") == names.TRAINER_CONTAINER:
            found = status.get("state", {}).get("terminated")
            return dict(found) if found else None
    return None


def is_unreachable(pod: Object) -> bool:
    """Whether the pod's node has fallen silent. Then the node controller takes its pods' Ready away and leaves
    ContainersReady, which is the kubelet's to say; a kubelet sets both."""
    ready, containers = condition(pod, "Ready"), condition(pod, "ContainersReady")
    alone = ready.get("status") == "False" and containers.get("status") == "True"
    return alone and not pod["spec"].get("readinessGates") and not has_ended(pod)


def has_ended(pod: Object) -> bool:
    """Whether all containers have ended; the pod's phase says so a moment later than they do."""
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return True
    states = [item.get("state", {}) for item in pod.get("status", {}).get("containerStatuses") or []]
    return len(states) == len(pod["spec"]["containers"]) and all("terminated" in state for state in states)


def report(pod: Object) -> TerminationReport | None:
    """What the trainer left in its termination log; None where it was killed before it could."""
    ended = terminated(pod)
    if ended is None:
        return None
    try:
        return TerminationReport.model_validate_json(ended.get("message") or "")
    except ValidationError:
        return None


def cause(pod: Object) -> Cause | None:
    """Why this pod is lost, or None where it is not. Exit codes 0, 64 and 65 are no causes: they end the job."""
    status = pod.get("status", {})
    disruption = condition(pod, "DisruptionTarget")
    if disruption.get("status") == "True":
        return _DISRUPTIONS.get(disruption.get("reason", ""), Cause.EVICTED)
    if (queue := condition(pod, _KUEUE)).get("status") == "True":
        return Cause.PREEMPTED if "Preempted" in queue.get("reason", "") else Cause.EVICTED
    if status.get("reason") in ("Evicted", "NodeShutdown", "Terminated"):
        return Cause.EVICTED
    if status.get("reason") == "NodeLost" or status.get("phase") == "Unknown":
        return Cause.NODE_LOST
    ended = terminated(pod)
    code = ended.get("exitCode") if ended else None
    if code in (names.ExitCode.DONE, names.ExitCode.BAD_SPEC, names.ExitCode.BAD_INPUT):
        return None
    if pod["metadata"].get("deletionTimestamp"):
        return Cause.POD_DELETED
    if _REJECTED.fullmatch(status.get("reason") or "") and status.get("phase") == "Failed":
        return Cause.NODE_REJECTED
    if ended is not None:
        if ended.get("reason") in _REBOOTED:
            return Cause.NODE_LOST
        if ended.get("reason") == "OOMKilled":
            return Cause.OOM_KILLED
        return Cause.PEER_LOST if code == names.ExitCode.PEER_LOST else Cause.FAILED
    return Cause.FAILED if status.get("phase") == "Failed" else None


def without_secrets(text: str) -> str:
    """The text with `[hidden]` in place of what looks like a secret."""

    def hide(found: re.Match[str]) -> str:
        kept = found.start("value") - found.start() if found["value"] else 0
        return found[0][:kept] + "[hidden]"

    return _SECRETS.sub(hide, text.strip())


def _last_words(ended: Object) -> str:
    return without_secrets(ended.get("message") or "")[-LAST_WORDS:]


def describe(pod: Object) -> str:
    """How a pod ended, in a sentence. What took it tells more than how its trainer stopped on that."""
    name, code = pod["metadata"]["name"], (terminated(pod) or {}).get("exitCode")
    disruption = condition(pod, "DisruptionTarget") or condition(pod, _KUEUE)
    users = code in (names.ExitCode.BAD_SPEC, names.ExitCode.BAD_INPUT)
    if disruption.get("status") == "True" and not users:
        return f"{name}: {disruption.get('message') or disruption.get('reason')}"
    if (found := report(pod)) is not None:
        return f"{name}: {found.reason}: {without_secrets(found.message)}".rstrip(": ")
    if (ended := terminated(pod)) is not None:
        how = f"{name} ended with exit code {ended.get('exitCode')} ({ended.get('reason', 'Error')})"
        return f"{how}: {_last_words(ended)}".rstrip(": ")
    for init in pod.get("status", {}).get("initContainerStatuses") or []:
        if (ended := init.get("state", {}).get("terminated")) and ended.get("exitCode"):
            how = f"{name}: init container {init['name']} ended with exit code {ended['exitCode']}"
            return f"{how}: {_last_words(ended)}".rstrip(": ")
    if pod["metadata"].get("deletionTimestamp"):
        return f"{name} was deleted"
    return f"{name}: {pod.get('status', {}).get('message') or pod.get('status', {}).get('phase')}"


def seconds_since(timestamp: str | None, now: datetime) -> float:
    """Seconds from an RFC 3339 time to `now`; infinite for none."""
    if not timestamp:
        return float("inf")
    return (now - datetime.fromisoformat(timestamp)).total_seconds()
