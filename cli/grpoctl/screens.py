"""`status` and `list` as tables."""

from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from grpo_api import names
from grpo_api.batch_plan import make_batch_plan
from grpo_api.errors import InvalidJobError
from grpo_api.job import parse_job
from grpo_api.status import GRPOJobStatus
from grpoctl.batch_view import plan_table
from grpoctl.cluster import Object
from grpoctl.display import duration, reward_text, state_text
from grpoctl.steps import StepTable

MAX_RESTART_ENTRIES = next(
    item.max_length for item in GRPOJobStatus.model_fields["restarts"].metadata if hasattr(item, "max_length")
)
"""The operator keeps the last ones only."""


def age(timestamp: str | None, now: datetime) -> str:
    """Time since an RFC 3339 timestamp, as kubectl shows it: `45s`, `12m`, `5h`, `3d`."""
    if not timestamp:
        return ""
    seconds = max(0, int((now - datetime.fromisoformat(timestamp)).total_seconds()))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))


def print_jobs(console: Console, jobs: list[Object], *, with_namespace: bool) -> None:
    now = datetime.now(UTC)
    columns = ["NAME", "STATE", "STEP", "PROGRESS", "REWARD", "READY", "RESTARTS", "AGE"]
    table = _table(*(["NAMESPACE"] if with_namespace else []), *columns)
    for job in jobs:
        status = job.get("status") or {}
        progress = status.get("progress") or {}
        reward = progress.get("rewardMean")
        row: list[str | Text] = [
            job["metadata"]["name"],
            state_text(status.get("state") or "Pending"),
            str(progress.get("step", "")),
            progress.get("percent", ""),
            "" if reward is None else f"{reward:.3f}",
            (status.get("nodes") or {}).get("summary", ""),
            _restart_count(status, "+"),
            age(job["metadata"].get("creationTimestamp"), now),
        ]
        table.add_row(*([job["metadata"]["namespace"]] if with_namespace else []), *row)
    console.print(table)


def _restart_count(status: Object, more: str) -> str:
    """Restarts, not attempts: a resumed job has a new attempt too. Where the list is full, `more` follows."""
    entries = status.get("restarts") or []
    return f"{len(entries)}{more if len(entries) >= MAX_RESTART_ENTRIES else ''}"


def print_status(console: Console, job: Object, steps: StepTable) -> None:
    """One job on one screen. `steps`: what the head's log tells of the last steps, empty where it cannot be read."""
    now = datetime.now(UTC)
    metadata, status = job["metadata"], job.get("status") or {}
    state = status.get("state") or "Pending"
    head = Text.assemble(("GRPOJob ", "dim"), (f"{metadata['namespace']}/{metadata['name']}", "bold"), "  ")
    console.print(head + state_text(state))
    if cause := ": ".join(text for text in (status.get("reason"), status.get("message")) if text):
        console.print(Text(cause, style="red" if state == "Failed" else ""))
    if not status:
        console.print(
            "no status yet: is the operator running? (kubectl get deployments -A | grep grpo)", style="yellow"
        )
    console.print()
    console.print(_facts(job, steps, now))
    console.print()
    _print_conditions(console, status.get("conditions") or [], now)
    _print_restarts(console, status.get("restarts") or [], now)
    try:
        parsed = parse_job(job)
    except InvalidJobError:
        return  # the state's message lists its faults
    console.print(plan_table(parsed.spec, make_batch_plan(parsed.spec)))


def _facts(job: Object, steps: StepTable, now: datetime) -> Table:
    spec, status = job["spec"], job.get("status") or {}
    progress, saved = status.get("progress") or {}, status.get("checkpoint") or {}
    facts = [("model", spec["model"]["path"])]
    if progress:
        text = f"{progress.get('step', 0)}/{progress.get('totalSteps') or '?'} ({progress.get('percent', '0%')})"
        if (left := progress.get("etaSeconds")) and status.get("state") == names.State.RUNNING:
            text += f", {duration(left)} left"
        facts.append(("step", text))
        if logged := reward_text(steps):
            facts.append(("reward", logged))
        elif (reward := progress.get("rewardMean")) is not None:
            facts.append(("reward", f"{reward:.3f}"))
        if (score := progress.get("valRewardMean")) is not None:
            facts.append(("validation", f"{score:.3f} after step {progress.get('valStep', 0)}"))
        if (speed := progress.get("tokensPerSecond")) is not None:
            facts.append(("speed", f"{speed:,.1f} tokens/s"))
        if last := progress.get("lastStepTime"):
            facts.append(("last step", f"{age(last, now)} ago"))
    facts.append(("ready", (status.get("nodes") or {}).get("summary", "0/0") + " pods"))
    if gang := status.get("gang"):
        facts.append(("gang", gang["backend"] + (f" ({gang['reason']})" if gang.get("reason") else "")))
    facts.append(("checkpoint", _checkpoint(job, saved, now)))
    facts.append(("started", f"{age(status['startTime'], now)} ago" if status.get("startTime") else "not yet"))
    if ended := status.get("completionTime"):
        begun = status.get("startTime")
        took = f", after {duration(_seconds(begun, ended))}" if begun else ""
        facts.append(("ended", f"{age(ended, now)} ago{took}"))
    limit = (spec.get("runPolicy") or {}).get("maxRestarts", "?")
    restarts, failures = _restart_count(status, " or more"), status.get("failures") or 0
    facts.append(("restarts", f"{restarts}; failures that count: {failures} of {limit}"))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    for fact in facts:
        table.add_row(*fact)
    return table


def _seconds(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()


def _checkpoint(job: Object, saved: Object, now: datetime) -> str:
    section = job["spec"].get("checkpoint") or {}
    name = job["metadata"]["name"]
    claim = names.claim_name(name) if section.get("claimTemplate") else section.get("claimName")
    if not claim:
        return "none: the spec names no claim, so a restart begins at step 0"
    if not saved:
        return f"none yet (claim {claim})"
    size = f", {saved['sizeBytes'] / 1e9:.2f} GB" if saved.get("sizeBytes") else ""
    when = f", {age(saved['time'], now)} ago" if saved.get("time") else ""
    return f"step {saved['step']}{size}{when}: {saved.get('path', '?')} (claim {claim})"


def _print_conditions(console: Console, conditions: list[Object], now: datetime) -> None:
    if not conditions:
        return
    table = _table("CONDITION", "", "SINCE", "REASON", "MESSAGE")
    for item in conditions:
        since = age(item["lastTransitionTime"], now)
        table.add_row(item["type"], item["status"], since, item["reason"], Text(item.get("message", "")))
    console.print(table)
    console.print()


def _print_restarts(console: Console, restarts: list[Object], now: datetime) -> None:
    if not restarts:
        return
    table = _table("ATTEMPT", "AGE", "CAUSE", "COUNTS", "POD", "FROM STEP", "MESSAGE")
    for item in restarts:
        counts, step = "yes" if item.get("counted") else "no", str(item.get("fromStep", 0))
        row = (str(item["attempt"]), age(item["time"], now), item["cause"], counts, item.get("pod") or "", step)
        table.add_row(*row, Text(item.get("message", "")))
    console.print(table)
    console.print()
