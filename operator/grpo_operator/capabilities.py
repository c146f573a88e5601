"""What the cluster has for gangs, and what of it the operator's role allows."""

from grpo_operator.gang.base import Capabilities
from grpo_operator.gang.choice import KINDS, READ_KINDS
from grpo_operator.kube import Kube, resource_of


async def discover(kube: Kube, namespaces: tuple[str, ...]) -> Capabilities:
    """`namespaces` are those that the operator watches; none stands for all."""
    served = {
        version: await kube.served(version) for version in sorted({resource_of(kind)[0] for kind in KINDS | READ_KINDS})
    }

    async def found(kinds: frozenset[str], verbs: tuple[str, ...]) -> frozenset[str]:
        there = {kind for kind in kinds if resource_of(kind)[1] in served[resource_of(kind)[0]]}
        return frozenset({kind for kind in there if await _may_all(kube, kind, verbs, namespaces)})

    return Capabilities(
        kinds=await found(KINDS, ("list", "create")),
        reads=await found(READ_KINDS, ("get", "delete")),
    )


async def _may_all(kube: Kube, kind: str, verbs: tuple[str, ...], namespaces: tuple[str, ...]) -> bool:
    for verb in verbs:
        for namespace in namespaces or ("",):
            if not await kube.may(verb, kind, namespace):
                return False
    return True
