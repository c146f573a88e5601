"""Advantage estimators, one file each. `@advantage_estimator("name")` registers one; a new file is imported below."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from grpo_api.spec.training import AlgorithmSpec
from grpo_trainer.algorithms.batch import RewardBatch
from grpo_trainer.errors import SpecError

Estimate = Callable[[RewardBatch, AlgorithmSpec], torch.Tensor | Sequence[torch.Tensor]]
"""A step's rewards -> (B,) one advantage a response, or for each response (T,) one a token; float64."""


@dataclass(frozen=True)
class Estimator:
    estimate: Estimate
    within_groups: bool
    """Compares a response with the others of its group. A group with nothing to compare then gets advantage 0."""


_ESTIMATORS: dict[str, Estimator] = {}


def advantage_estimator(name: str, *, within_groups: bool = True) -> Callable[[Estimate], Estimate]:
    """Registers a function under `algorithm.advEstimator`'s value."""

    def register(function: Estimate) -> Estimate:
        _ESTIMATORS[name] = Estimator(function, within_groups)
        return function

    return register


def estimator(name: str) -> Estimator:
    """The estimator of that name. Raises SpecError, which lists the names there are."""
    if name not in _ESTIMATORS:
        raise SpecError(
            "UnknownAdvEstimator", f"algorithm.advEstimator is {name!r}; use one of {', '.join(estimator_names())}"
        )
    return _ESTIMATORS[name]


def estimator_names() -> list[str]:
    """All registered names, sorted."""
    return sorted(_ESTIMATORS)


# They register themselves.
from grpo_trainer.algorithms import (  # noqa: E402, F401
    gae,
    gdpo,
    gpg,
    grpo,
    grpo_passk,
    max_rl,
    opo,
    reinforce_plus_plus,
    rloo,
)
