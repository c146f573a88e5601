"""`grpoctl why`: a paragraph on why a job does not run, from all that its user may read.

`gather` asks the API server; what it may not read becomes a sentence. `explain` is pure.
"""

from dataclasses import dataclass, field
from datetime import datetime

from grpo_api import names
from grpo_api.job import is_managed_elsewhere
from grpo_api.names import State
from grpoctl.cluster import Cluster, Object
from grpoctl.display import duration
from grpoctl.errors import Forbidden
from grpoctl.screens import age

_MANY_NODES = 12


@dataclass
class Facts:
    """What is known. None: it may not be read."""

    job: Object
    command: str = ""
    """The command that leads to this user's `grpoctl status`."""
    pods: list[Object] | None = None
    events: list[Object] | None = None
    """Warnings of the namespace."""
    claims: list[Object] | None = None
    nodes: list[Object] | None = None
    placed: list[Object] | None = None
    """Pods of all namespaces."""
    unread: list[str] = field(default_factory=list)
    """Sentences on what may not be read."""


def gather(cluster: Cluster, name: str) -> Facts:
    """Raises CliError where the job itself cannot be read, or the API server does not answer."""
    facts = Facts(cluster.get_job(name), cluster.command("status", name))
    state = (facts.job.get("status") or {}).get("state")
    if state == State.RUNNING or state in names.TERMINAL_STATES:
        return facts

    def read(what: str, kind: str, **selection: str | bool) -> list[Object] | None:
        try:
            return cluster.list_objects(kind, **selection)  # type: ignore[arg-type]
        except Forbidden:
            facts.unread.append(f"You may not list {what}, so they are not looked at.")
            return None

    facts.pods = read("pods", "Pod", labels=f"{names.LABEL_JOB_NAME}={name}")
    facts.events = read("events", "Event", fields="type=Warning")
    facts.claims = read("claims", "PersistentVolumeClaim") if _claim(facts.job) else []
    if facts.pods is None or any(not pod["spec"].get("nodeName") for pod in facts.pods):
        facts.nodes = read("nodes", "Node")
        if facts.nodes is not None:
            facts.placed = read("the pods of all namespaces", "Pod", all_namespaces=True)
    return facts


def explain(facts: Facts, now: datetime) -> str:
    """The paragraph."""
    job = facts.job
    name, status = job["metadata"]["name"], job.get("status") or {}
    state = status.get("state")
    if is_managed_elsewhere(job):
        manager = job["spec"]["runPolicy"]["managedBy"]
        sentences = [f"{name} is given to another controller, {manager} (runPolicy.managedBy)", "Look there"]
    elif not state:
        sentences = [
            f"{name} is {age(job['metadata'].get('creationTimestamp'), now)} old and no operator has looked at it",
            "Either none runs, or it does not watch this namespace (`kubectl get deployments -A -l "
            "app.kubernetes.io/name=grpo-operator`, and watchNamespaces in the chart's values)",
        ]
    elif state == State.RUNNING:
        sentences = _running(job, now)
    elif state in names.TERMINAL_STATES:
        sentences = _ended(job, now)
    elif state == State.SUSPENDED or (job["spec"].get("runPolicy") or {}).get("suspend"):
        sentences = _suspended(job)
    else:
        sentences = [*_waiting(facts, now), *_restarts(status, now), *facts.unread]
    if state and (status.get("observedGeneration") or 0) < job["metadata"].get("generation", 0):
        sentences.append("The operator has not seen the last change of the spec yet")
    return " ".join(_whole(sentence) for sentence in sentences)


def _whole(sentence: str) -> str:
    text = " ".join(sentence.split())
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _progress(status: Object) -> str:
    done = status.get("progress") or {}
    total = done.get("totalSteps") or (status.get("batchPlan") or {}).get("totalSteps")
    return f"step {done.get('step', 0)} of {total or '?'}"


def _running(job: Object, now: datetime) -> list[str]:
    status = job["status"]
    done = status.get("progress") or {}
    said = f"{job['metadata']['name']} runs: {_progress(status)}"
    if (left := done.get("etaSeconds")) is not None:
        said += f", about {duration(left)} left"
    if (speed := done.get("tokensPerSecond")) is not None:
        said += f", at {speed:,.0f} tokens/s"
    if last := done.get("lastStepTime"):
        said += f"; its last step ended {age(last, now)} ago"
    warning = f"But {status['message']}" if status.get("message") else ""
    return [said, *([warning] if warning else []), *_checkpoint(job, now), *_restarts(status, now)]


def _ended(job: Object, now: datetime) -> list[str]:
    status = job["status"]
    how = "succeeded" if status["state"] == State.SUCCEEDED else "failed"
    said = f"{job['metadata']['name']} {how} {age(status.get('completionTime'), now)} ago at {_progress(status)}"
    cause = ": ".join(text for text in (status.get("reason"), status.get("message")) if text)
    if how == "succeeded":
        return [said]
    return [f"{said}: {cause}", *_checkpoint(job, now), *_restarts(status, now), "A job that has ended stays as it is"]


def _suspended(job: Object) -> list[str]:
    name, status = job["metadata"]["name"], job["status"]
    going = "" if status["state"] == State.SUSPENDED else "; its pods are still going"
    patch = f'kubectl patch grpojob {name} --type=merge -p \'{{"spec":{{"runPolicy":{{"suspend":false}}}}}}\''
    return [f"{name} is suspended: runPolicy.suspend is true{going}", f"To let it go on from its checkpoint: `{patch}`"]


def _checkpoint(job: Object, now: datetime) -> list[str]:
    saved = job["status"].get("checkpoint") or {}
    if saved.get("step") is None:
        return [] if _claim(job) else ["It has no claim for checkpoints, so a restart begins at step 0"]
    when = f", {age(saved['time'], now)} ago" if saved.get("time") else ""
    return [f"Its newest checkpoint is of step {saved['step']}{when}"]


def _restarts(status: Object, now: datetime) -> list[str]:
    entries = status.get("restarts") or []
    if not entries:
        return []
    last = entries[-1]
    count = "once" if len(entries) == 1 else f"{len(entries)} times"
    spent = "" if last.get("counted") else ", which does not count against runPolicy.maxRestarts"
    return [f"It has restarted {count}, the last time {age(last['time'], now)} ago ({last['cause']}{spent})"]


def _waiting(facts: Facts, now: datetime) -> list[str]:
    job, pods = facts.job, facts.pods or []
    status, name = job["status"], job["metadata"]["name"]
    cause = ": ".join(text for text in (status.get("reason"), status.get("message")) if text)
    sentences = [f"{name} does not run: it is {status['state']} ({cause})"]
    attempt = status.get("attempt", 0)
    present = [pod for pod in pods if names.label_number(pod["metadata"], names.LABEL_ATTEMPT) == attempt]
    total = job["spec"]["trainer"].get("nnodes", 1)
    if facts.pods is not None:
        unplaced = [pod for pod in present if not pod["spec"].get("nodeName")]
        placed = len(present) - len(unplaced)
        if len(present) < total:
            sentences.append(f"{len(present)} of its {total} pods exist")
        if unplaced:
            sentences.append(f"{placed} of its {total} pods have a node")
        sentences += [said for pod in present if (said := _unstarted(pod, facts.events or [], cause, now))]
    sentences += _claim_sentences(facts, cause)
    if facts.nodes is not None and len(present) - sum(bool(pod["spec"].get("nodeName")) for pod in present):
        sentences += _free(facts)
    return sentences


def _unstarted(pod: Object, events: list[Object], told: str, now: datetime) -> str | None:
    """What keeps a pod that has a node from running, where the status has not said it."""
    status, name = pod.get("status") or {}, pod["metadata"]["name"]
    waiting = [
        found
        for item in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
        if (found := item.get("state", {}).get("waiting"))
    ]
    newest = _newest(events, pod["metadata"].get("uid"))
    if not pod["spec"].get("nodeName") or not (waiting or status.get("phase") == "Pending"):
        return None
    reason = waiting[0].get("reason", "ContainerCreating") if waiting else "not seen by its node's kubelet yet"
    said = f"{name} on {pod['spec']['nodeName']} is {reason}"
    if newest is not None and newest not in told:
        return f"{said}: {newest}"
    return None if reason in told else f"{said} for {age(pod['metadata'].get('creationTimestamp'), now)}"


def _newest(events: list[Object], uid: str | None) -> str | None:
    """The newest warning about an object."""
    about = [event for event in events if event.get("involvedObject", {}).get("uid") == uid]
    found = max(about, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""), default=None)
    return None if found is None else f"{found.get('reason')}: {' '.join((found.get('message') or '').split())}"


def _claim(job: Object) -> str | None:
    section = job["spec"].get("checkpoint") or {}
    name: str | None = section.get("claimName")
    return names.claim_name(job["metadata"]["name"]) if section.get("claimTemplate") is not None else name


def _claim_sentences(facts: Facts, told: str) -> list[str]:
    name = _claim(facts.job)
    if name is None or facts.claims is None or f"claim {name}" in told:
        return []
    found = next((claim for claim in facts.claims if claim["metadata"]["name"] == name), None)
    if found is None:
        return [f"Its claim {name} does not exist"]
    phase = (found.get("status") or {}).get("phase", "Pending")
    if phase == "Bound":
        return []
    kind = found["spec"].get("storageClassName") or "none"
    newest = _newest(facts.events or [], found["metadata"].get("uid"))
    return [f"Its claim {name} (storage class {kind}) is {phase}" + (f": {newest}" if newest else "")]


def _free(facts: Facts) -> list[str]:
    """How many of the job's pods the nodes' free GPUs would hold."""
    assert facts.nodes is not None
    spec = facts.job["spec"]
    resource = (spec.get("template") or {}).get("gpuResourceName", names.GPU_RESOURCE)
    need, total = spec["trainer"].get("nGpusPerNode", 1), spec["trainer"].get("nnodes", 1)
    offers = {node["metadata"]["name"]: int(_allocatable(node).get(resource, 0)) for node in facts.nodes}
    offers = {node: count for node, count in offers.items() if count}
    if not offers:
        others = sorted({key for node in facts.nodes for key in _allocatable(node) if key.endswith(("/gpu", ".gpu"))})
        has = f"; they offer {', '.join(others)}: set template.gpuResourceName" if others else ""
        return [f"None of the {len(facts.nodes)} nodes offers {resource}{has}"]
    if facts.placed is None:
        listed = ", ".join(f"{node} {count}" for node, count in list(offers.items())[:_MANY_NODES])
        return [f"It needs {total} x {need} {resource}; nodes have, used or not: {listed}"]
    free = {node: count - _used(facts.placed, node, resource) for node, count in offers.items()}
    closed = {node["metadata"]["name"] for node in facts.nodes if node["spec"].get("unschedulable")}
    fits = sum(max(0, count) // need if need else total for node, count in free.items() if node not in closed)
    shown = sorted(free, key=lambda node: -free[node])[:_MANY_NODES]
    listed = ", ".join(
        f"{node} {free[node]} of {offers[node]}{' (cordoned)' if node in closed else ''}" for node in shown
    )
    more = f" and {len(free) - len(shown)} more nodes" if len(free) > len(shown) else ""
    return [
        f"It needs {total} pods of {need} {resource}; free are: {listed}{more}",
        f"That holds {min(fits, total)} of its {total} pods",
    ]


def _allocatable(node: Object) -> Object:
    return dict((node.get("status") or {}).get("allocatable") or {})


def _used(pods: list[Object], node: str, resource: str) -> int:
    return sum(
        int((container.get("resources") or {}).get("requests", {}).get(resource, 0))
        for pod in pods
        if pod["spec"].get("nodeName") == node and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        for container in pod["spec"]["containers"]
    )
