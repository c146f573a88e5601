"""Keeping a gang within one domain of `gangScheduling.topologyKey` by what pods themselves can say."""

import copy

from grpo_api import names
from grpo_operator.children.meta import Object
from grpo_operator.gang.base import Gang

WEIGHT = 100
"""The greatest that the scheduler knows."""


def prefer_one_domain(pod: Object, gang: Gang) -> Object:
    """With `topologyMode: Preferred`, the pod would rather be in the domain of its gang's other pods."""
    spec = gang.job.spec.gang_scheduling
    if spec.topology_key is None or spec.topology_mode != "Preferred":
        return pod
    made = copy.deepcopy(pod)
    affinity = made["spec"].setdefault("affinity", {}).setdefault("podAffinity", {})
    affinity.setdefault("preferredDuringSchedulingIgnoredDuringExecution", []).append(
        {
            "weight": WEIGHT,
            "podAffinityTerm": {
                "topologyKey": spec.topology_key,
                "labelSelector": {"matchLabels": {names.LABEL_JOB_NAME: gang.job.name}},
            },
        }
    )
    return made
