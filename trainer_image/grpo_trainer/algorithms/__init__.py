"""Advantage estimators, one file each. `@advantage_estimator("name")` registers one; a new file is imported below."""

from collections.abc import Callable

import torch

from grpo_api.spec.training import AlgorithmSpec
from grpo_trainer.errors import SpecError

Estimator = Callable[[torch.Tensor, AlgorithmSpec], torch.Tensor]
"""Rewards of one group, shape (n,), n >= 2 and not all equal -> advantages (n,)."""

_ESTIMATORS: dict[str, Estimator] = {}


def advantage_estimator(name: str) -> Callable[[Estimator], Estimator]:
    """Registers a function under `algorithm.advEstimator`'s value."""

    def register(function: Estimator) -> Estimator:
        _ESTIMATORS[name] = function
        return function

    return register


def estimator(name: str) -> Estimator:
    """The estimator of that name. Raises SpecError, which lists the names there are."""
    if name not in _ESTIMATORS:
        raise SpecError(
            "UnknownAdvEstimator", f"algorithm.advEstimator is {name!r}; use one of {', '.join(sorted(_ESTIMATORS))}"
        )
    return _ESTIMATORS[name]


from grpo_trainer.algorithms import grpo, rloo  # noqa: E402, F401  (they register themselves)
