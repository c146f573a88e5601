"""Plain pods, for clusters where every job fits."""

from grpo_api.job import GRPOJob
from grpo_operator.children.meta import Object


class NoGang:
    name = "none"

    def objects(self, job: GRPOJob, attempt: int) -> list[Object]:
        return []

    def decorate(self, pod: Object, job: GRPOJob, attempt: int) -> Object:
        return pod
