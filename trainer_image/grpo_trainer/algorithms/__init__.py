"""Advantage estimators, one file each. `@advantage_estimator("name")` registers one; a new file is imported below."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from grpo_api.spec.training import AlgorithmSpec
from grpo_trainer.algorithms.batch import RewardBatch
from grpo_trainer.registry import Registry, import_function

Estimate = Callable[[RewardBatch, AlgorithmSpec], torch.Tensor | Sequence[torch.Tensor]]
"""A step's rewards -> (B,) one advantage a response, or for each response (T,) one a token; float64."""


@dataclass(frozen=True)
class Estimator:
    estimate: Estimate
    compared: Callable[[RewardBatch], torch.Tensor] | None
    """(K, B): the scores that are compared within groups; None for an estimator that does not. A group with nothing to
    compare gets advantage 0."""


ESTIMATORS = Registry[Estimator]("algorithm.advEstimator", "UnknownAdvEstimator")


def whole_rewards(batch: RewardBatch) -> torch.Tensor:
    return batch.scores[None]


def advantage_estimator(
    name: str, *, compared: Callable[[RewardBatch], torch.Tensor] | None = whole_rewards
) -> Callable[[Estimate], Estimate]:
    """Registers a function under `algorithm.advEstimator`'s value."""

    def register(function: Estimate) -> Estimate:
        ESTIMATORS.add(name, Estimator(function, compared))
        return function

    return register


def find_estimator(algorithm: AlgorithmSpec) -> Estimator:
    """The estimator that the spec names; what a function of the user's own returns is taken as it is.

    Raises SpecError or UserInputError where there is none.
    """
    if algorithm.adv_estimator_path is None:
        return ESTIMATORS.find(algorithm.adv_estimator)
    return Estimator(import_function("algorithm.advEstimatorPath", algorithm.adv_estimator_path), None)


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
    remax,
    rloo,
)
