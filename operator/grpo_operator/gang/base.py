"""What a gang backend does."""

from typing import Protocol

from grpo_api.job import GRPOJob
from grpo_operator.children.meta import Object


class GangBackend(Protocol):
    """Makes a scheduler place all pods of a gang, or none."""

    name: str

    def objects(self, job: GRPOJob, attempt: int) -> list[Object]:
        """Objects that must exist before the first pod of this attempt, in order of creation."""
        ...

    def decorate(self, pod: Object, job: GRPOJob, attempt: int) -> Object:
        """The pod as a member of its gang."""
        ...
