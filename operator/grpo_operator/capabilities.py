"""What the cluster has for gangs, and what of it the operator's role allows."""

from grpo_operator.gang import native
from grpo_operator.gang.base import Capabilities
from grpo_operator.gang.choice import KINDS, READ_KINDS
from grpo_operator.kube import Kube, KubeError, resource_of


async def discover(kube: Kube, namespaces: tuple[str, ...], probe_namespace: str) -> Capabilities:
    """`namespaces` are those that the operator watches; none stands for all, of which `probe_namespace` is one."""
    served = {
        version: await kube.served(version) for version in sorted({resource_of(kind)[0] for kind in KINDS | READ_KINDS})
    }

    async def found(kinds: frozenset[str], verbs: tuple[str, ...]) -> frozenset[str]:
        there = {kind for kind in kinds if resource_of(kind)[1] in served[resource_of(kind)[0]]}
        return frozenset({kind for kind in there if await _may_all(kube, kind, verbs, namespaces)})

    kinds = await found(KINDS, ("list", "create"))
    return Capabilities(
        kinds=kinds,
        reads=await found(READ_KINDS, ("get", "delete")),
        native_topology=await _native_topology(kube, kinds, (*namespaces, probe_namespace)[0]),
        sees_cluster=not namespaces and await _sees_cluster(kube),
    )


async def _native_topology(kube: Kube, kinds: frozenset[str], namespace: str) -> bool:
    """By a dry run: the API server knows the field with its feature gate off too, and then drops it."""
    for version, wanted in native.KINDS.items():
        if kinds.issuperset(wanted) and version != native.V1ALPHA1:
            try:
                kept = await kube.create(wanted[1], native.probe(version, namespace), dry_run=True)
            except KubeError as error:
                if error.code in (403, 404, 422):  # a rule of this cluster keeps the probe out
                    return False
                raise
            return "schedulingConstraints" in kept["spec"]
    return False


async def _sees_cluster(kube: Kube) -> bool:
    wanted = (("list", "Node"), ("watch", "Node"), ("list", "Pod"), ("watch", "Pod"), ("patch", "Pod"))
    return all([await kube.may(verb, kind) for verb, kind in wanted])


async def _may_all(kube: Kube, kind: str, verbs: tuple[str, ...], namespaces: tuple[str, ...]) -> bool:
    for verb in verbs:
        for namespace in namespaces or ("",):
            if not await kube.may(verb, kind, namespace):
                return False
    return True
