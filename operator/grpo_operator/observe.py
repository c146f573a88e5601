"""What is known of one job: itself, its children, and what the cluster can do. Read from the cache, not the API."""

from dataclasses import dataclass, field

from grpo_api import names
from grpo_api.status import HeadReport
from grpo_operator.cache import Cache
from grpo_operator.gang.base import Capabilities
from grpo_operator.gang.choice import KINDS as GANG_KINDS
from grpo_operator.kube import Object, full_kind
from grpo_operator.policies.podstate import rank_of
from grpo_operator.workqueue import Key


@dataclass(frozen=True)
class CreateFault:
    """Why the API server last refused a child."""

    reason: str
    message: str
    final: bool = False
    """The manifest itself is wrong: it will be refused for ever."""


@dataclass(frozen=True)
class Observed:
    """Input of `plan`."""

    job: Object
    pods: list[Object] = field(default_factory=list)
    """All pods of the job, of any attempt, by rank."""
    children: dict[tuple[str, str], Object] = field(default_factory=dict)
    """Other children, by (kind, name)."""
    left_over: list[Object] = field(default_factory=list)
    """Pods of an earlier job of this name that are told to go and are still there."""
    head_report: HeadReport | None = None
    """The head pod's own words of the present attempt."""
    head_quiet: float | None = None
    """Seconds since those words were first heard."""
    capabilities: Capabilities = field(default_factory=Capabilities)
    told: tuple[str, str] | None = None
    """(reason, message) of the gang's place in the line of `gated` gangs."""
    consulted: Object | None = None
    """What another controller last said of the gang while it waited (`GangBackend.consults`)."""
    create_fault: CreateFault | None = None
    default_image: str = ""
    pod_events: dict[str, tuple[str, str]] = field(default_factory=dict)
    """(reason, message) of what a pod's Events say of why it does not start, by its UID; where they have been read."""


def observe(
    cache: Cache,
    key: Key,
    *,
    head_report: HeadReport | None,
    head_quiet: float | None = None,
    create_fault: CreateFault | None,
    default_image: str,
    consulted: Object | None = None,
    told: tuple[str, str] | None = None,
    pod_events: dict[str, tuple[str, str]] | None = None,
) -> Observed | None:
    """The job's state, or None where it does not exist."""
    job = cache.job(key)
    if job is None:
        return None
    held = cache.children(key)
    children = {(kind, name): item for (kind, name), item in held.items() if _belongs(kind, item, job)}
    pods = sorted((item for (kind, _), item in children.items() if kind == "Pod"), key=rank_of)
    return Observed(
        job=job,
        pods=pods,
        children={child: item for child, item in children.items() if child[0] != "Pod"},
        left_over=[item for (kind, _), item in held.items() if kind == "Pod" and _is_left_over(item, job)],
        head_report=head_report,
        head_quiet=head_quiet,
        capabilities=cache.capabilities,
        consulted=consulted,
        create_fault=create_fault,
        default_image=default_image,
        told=told,
        pod_events=pod_events or {},
    )


def _belongs(kind: str, item: Object, job: Object) -> bool:
    """Whether a child is this job's and not an earlier namesake's. A kept claim has no owner: its label tells."""
    owners = [owner.get("uid") for owner in item["metadata"].get("ownerReferences") or []]
    return job["metadata"]["uid"] in owners if owners else kind == "PersistentVolumeClaim"


def maker(kind: str, item: Object) -> str | None:
    """UID of the job for which this operator has certainly made an object, be that job deleted or not; else None.

    Gang objects may belong to each other too, nothing else to anybody else.
    """
    metadata = item["metadata"]
    owners, labels = metadata.get("ownerReferences") or [], metadata.get("labels") or {}
    jobs = [owner for owner in owners if owner["kind"] == names.KIND]
    others = {full_kind(owner["apiVersion"], owner["kind"]) for owner in owners if owner not in jobs}
    if len(jobs) != 1 or not others <= GANG_KINDS:
        return None
    job, name = jobs[0], labels.get(names.LABEL_JOB_NAME)
    ours = (
        job.get("controller") is True
        and job["apiVersion"].partition("/")[0] == names.GROUP
        and job["name"] == name
        and labels.get(names.LABEL_MANAGED_BY) == names.MANAGED_BY
        and (kind != "Pod" or metadata["name"] == f"{name}-{labels.get(names.LABEL_NODE_RANK)}")
    )
    return job["uid"] if ours else None


def _is_left_over(pod: Object, job: Object) -> bool:
    """Whether a pod was certainly made by this operator, for another job of this name, and is told to go.

    No two jobs of a name exist at once: where this job exists, the other one is deleted.
    """
    if not pod["metadata"].get("deletionTimestamp"):
        return False
    return maker("Pod", pod) not in (None, job["metadata"]["uid"])
