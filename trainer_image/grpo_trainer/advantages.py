"""From rewards to advantages: masked samples left out, the algorithm looked up and applied to the whole step."""

from collections.abc import Sequence

import torch

from grpo_api.job import GRPOJobSpec
from grpo_trainer.algorithms import find_estimator
from grpo_trainer.algorithms.batch import RewardBatch
from grpo_trainer.errors import UserInputError


def compute_advantages(
    spec: GRPOJobSpec,
    rewards: list[float | None],
    groups: list[int],
    lengths: list[int] | None = None,
    *,
    baselines: Sequence[float] | None = None,
    token_penalties: Sequence[torch.Tensor] | None = None,
    function_scores: list[list[float | None]] | None = None,
) -> list[float | list[float] | None]:
    """The advantage of each response, or one for each of its tokens; None where its reward is None.

    What holds for every estimator:

    - A response without a reward counts nowhere: in no group, mean, deviation or whitening.
    - For estimators that compare within groups, a group with one response left, or whose rewards (with `gdpo` those
      of every function) are all exactly equal, gets 0: there is nothing to compare, so it must not move the policy. It
      still counts in whitening. (verl gives a lone response its raw score, which would reinforce it without any
      baseline.)
    - Sums are in float64, and every divisor has its source's epsilon added, so that rounding differences are damped
      to nothing instead of blown up.

    `lengths` are the responses' tokens (1 each where not given), `baselines` the greedy rewards (0 each),
    `token_penalties` a (T,) tensor for each response, `function_scores` a list for each reward function,
    None where it failed.
    """
    lengths = lengths if lengths is not None else [1] * len(rewards)
    if not len(rewards) == len(groups) == len(lengths):
        raise ValueError(f"{len(rewards)} rewards and {len(lengths)} lengths for {len(groups)} responses")
    advantages: list[float | list[float] | None] = [None] * len(rewards)
    kept = [index for index, reward in enumerate(rewards) if reward is not None]
    if not kept:
        return advantages
    chosen = find_estimator(spec.algorithm)
    penalties = tuple(token_penalties[index].double() for index in kept) if token_penalties is not None else None
    scores = torch.tensor([rewards[index] for index in kept], dtype=torch.float64)
    if penalties is not None:
        scores = scores - torch.stack([penalty.sum() for penalty in penalties])
    batch = RewardBatch(
        scores=scores,
        groups=torch.tensor([groups[index] for index in kept]).unique(return_inverse=True)[1],
        lengths=torch.tensor([lengths[index] for index in kept]),
        baselines=torch.tensor([baselines[index] if baselines else 0.0 for index in kept], dtype=torch.float64),
        token_penalties=penalties,
        **_functions(spec, function_scores, kept, scores),
    )
    values = chosen.estimate(batch, spec.algorithm)
    _check_shape(spec, values, batch.lengths.tolist())
    if chosen.compared is not None:
        values = torch.where(batch.nothing_to_compare(chosen.compared(batch)), 0.0, values)
    for index, value in zip(kept, values, strict=True):
        advantages[index] = value.tolist()
    return advantages


def _check_shape(spec: GRPOJobSpec, values: Sequence[torch.Tensor], lengths: list[int]) -> None:
    """Raises UserInputError where an estimator of the user's own does not give one number a response or a token."""
    if len(values) == len(lengths) and all(
        tuple(value.shape) in ((), (length,)) for value, length in zip(values, lengths, strict=True)
    ):
        return
    shapes = [tuple(value.shape) for value in values][:4]
    raise UserInputError(
        "BadAdvantages",
        f"algorithm.advEstimatorPath {spec.algorithm.adv_estimator_path!r} returned {len(values)} values of shapes "
        f"{shapes} ... for {len(lengths)} responses: return a tensor of one number for each, or for each a tensor of "
        "one number for each of its tokens",
    )


def _functions(
    spec: GRPOJobSpec, function_scores: list[list[float | None]] | None, kept: list[int], scores: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Scores and weights of the single functions; the whole reward as the only one where they are not given. A score
    that a function failed to give counts 0, as `reward.onError: Zero` says of it."""
    if function_scores is None:
        return {"function_scores": scores[None], "function_weights": torch.ones(1, dtype=torch.float64)}
    rows = [[column[index] or 0.0 for index in kept] for column in function_scores]
    weights = [function.weight for function in spec.reward.functions]
    return {
        "function_scores": torch.tensor(rows, dtype=torch.float64),
        "function_weights": torch.tensor(weights, dtype=torch.float64),
    }
