"""What a gang backend is: the one place where a way of placing a gang is told to the rest of the operator.

A backend is one file with one subclass, listed in `choice.BACKENDS`. Nothing else names its kinds: watching, resync,
clean-up, ownership and the test of the chart's role go by `kinds`.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from grpo_api.job import GRPOJob
from grpo_api.names import State
from grpo_operator.children.meta import Object


@dataclass(frozen=True)
class Capabilities:
    """What the cluster has and the operator's role allows, found by discovery (`capabilities.discover`)."""

    kinds: frozenset[str] = frozenset()
    """Kinds that gang backends make, by their full names (`kube.kind_of`); these are watched."""
    reads: frozenset[str] = frozenset()
    """Kinds that other controllers make for gangs."""
    native_topology: bool = False
    """The API server keeps the topology of a PodGroup of Kubernetes' own."""
    sees_cluster: bool = False
    """The operator watches all nodes and all pods of the cluster, and may patch pods."""

    def has(self, *kinds: str) -> bool:
        return (self.kinds | self.reads).issuperset(kinds)


@dataclass(frozen=True)
class Gang:
    """One attempt of a job, and what is observed of it."""

    job: GRPOJob
    attempt: int
    pods: list[Object] = field(default_factory=list)
    """Pods of this attempt, by rank."""
    children: dict[tuple[str, str], Object] = field(default_factory=dict)
    """The job's other children, gang objects among them, by (kind, name)."""
    told: tuple[str, str] | None = None
    """(reason, message) of the line in which `gated` gangs wait; of no concern to other backends."""
    consulted: Object | None = None
    """What `GangBackend.consults` names, as it was last read."""


@dataclass(frozen=True)
class Waiting:
    """Why a gang that has all its pods has no nodes yet."""

    state: State
    """QUEUED while a quota or a line holds it back, SCHEDULING while a scheduler looks for nodes."""
    reason: str
    message: str


class GangBackend:
    """Makes a scheduler place all pods of a gang, or none. What a subclass leaves out is as for plain pods."""

    name: ClassVar[str]
    """As in `gangScheduling.backend`."""
    kinds: ClassVar[tuple[str, ...]] = ()
    """Full names of the kinds that it makes, in all API versions that it speaks; they are watched where the cluster has
    them, and deleted after the gang's last pod when the job ends or is suspended, or when an attempt needs them no
    more."""

    reads: ClassVar[tuple[str, ...]] = ()
    """Full names of kinds that another controller makes for the gang, in all API versions that it speaks: read, and
    where they hold pods deleted, by name; not watched."""
    has_queues: ClassVar[bool] = False
    """Whether it knows `gangScheduling.queue`."""
    automatic: ClassVar[bool] = True
    """Whether `auto` may take it: not where discovery cannot tell that its scheduler runs, and by what name."""

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities

    def refusal(self, job: GRPOJob) -> str | None:
        """Why this job cannot be placed by this backend here, with the repair; None where it can."""
        return None

    def reason(self) -> str:
        """Why `auto` takes it, for `status.gang.reason`."""
        raise NotImplementedError

    def objects(self, gang: Gang) -> list[Object]:
        """Objects that must exist before the first pod of this attempt, in order of creation."""
        return []

    def decorate(self, pod: Object, gang: Gang) -> Object:
        """The pod as a member of its gang."""
        return pod

    def consults(self, gang: Gang) -> tuple[str, str] | None:
        """(kind, name) of the object of `reads` that says why the gang waits; it is read now and then while it does."""
        return None

    def waiting(self, gang: Gang) -> Waiting | None:
        """Why the gang waits, from its objects and pods; None where its pods' own conditions say enough.

        Asked while all pods exist and not all have nodes.
        """
        return None
