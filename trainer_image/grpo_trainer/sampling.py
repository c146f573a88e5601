"""The prompts, responses and rewards of a step; under `algorithm.filterGroups` as many rounds as it takes (DAPO, arXiv
2503.14476).
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import fmean

from grpo_api.spec.training import FilterGroupsSpec
from grpo_trainer.errors import UserInputError
from grpo_trainer.prompts import Prompt
from grpo_trainer.rewards.result import RewardResult
from grpo_trainer.rollout.base import Response

log = logging.getLogger(__name__)

Draw = Callable[[int], tuple[list[Prompt], list[Response], RewardResult]]
"""Number of the round -> a batch of prompts, their responses by prompt and number, and the rewards of these."""


@dataclass
class Sampled:
    """One step's samples. A response's `group` is the place of its prompt."""

    prompts: list[Prompt]
    responses: list[Response]
    result: RewardResult
    rounds: int = 1
    fill: set[int] = field(default_factory=set)
    """Groups that only complete the batch and are not trained on."""


def sample_step(draw: Draw, spec: FilterGroupsSpec, step: int, reward_names: list[str]) -> Sampled:
    """Draws once; with the filter, until a batch of groups has differing rewards each, or for
    `maxNumGenBatches` rounds. Groups without differences then fill the batch up, so that its size stays.

    Raises UserInputError where no group of any round has differing rewards, though some have rewards.
    """
    prompts, responses, result = draw(0)
    if not spec.enable:
        return Sampled(prompts, responses, result)
    size, rounds, errors, seconds = len(prompts), 0, Counter[tuple[str, str]](), Counter[str]()
    kept: list[_Group] = []
    spare: list[_Group] = []
    while True:
        rounds += 1
        errors.update(result.errors)
        seconds.update(result.function_seconds)
        for group in _groups(prompts, responses, result):
            (kept if group.differs else spare).append(group)
        if len(kept) >= size or rounds == spec.max_num_gen_batches:
            break
        spare = spare[-size:]
        prompts, responses, result = draw(rounds)
    if not kept and not any(reward is not None for group in spare for reward in group.rewards):
        return Sampled(prompts, responses, result, rounds)  # the reward's fault, which the loop counts
    if not kept:
        raise UserInputError(
            "NothingToLearn",
            f"step {step}: the rewards of every group were all equal in {rounds} rounds of {size} prompts "
            "(algorithm.filterGroups.maxNumGenBatches): make the task easier or harder, or check the reward function",
        )
    if len(kept) < size:
        log.warning(
            "step %d: %d of %d groups have differing rewards after %d rounds; it trains on those",
            step, len(kept), size, rounds,
        )  # fmt: skip
    chosen = kept[:size] + spare[: max(0, size - len(kept))]
    return _merge(chosen, len(kept), rounds, errors, seconds, reward_names)


@dataclass
class _Group:
    prompt: Prompt
    responses: list[Response]
    rewards: list[float | None]
    function_scores: list[list[float | None]]

    @property
    def differs(self) -> bool:
        return len({reward for reward in self.rewards if reward is not None}) > 1


def _groups(prompts: list[Prompt], responses: list[Response], result: RewardResult) -> list[_Group]:
    groups = [_Group(prompt, [], [], [[] for _ in result.function_scores]) for prompt in prompts]
    for index, (response, reward) in enumerate(zip(responses, result.rewards, strict=True)):
        group = groups[response.group]
        group.responses.append(response)
        group.rewards.append(reward)
        for own, scores in zip(group.function_scores, result.function_scores, strict=True):
            own.append(scores[index])
    return groups


def _merge(
    groups: list[_Group],
    kept: int,
    rounds: int,
    errors: Counter[tuple[str, str]],
    seconds: Counter[str],
    reward_names: list[str],
) -> Sampled:
    scores = [
        [score for part in parts for score in part] for parts in zip(*(g.function_scores for g in groups), strict=True)
    ]
    means = {}
    for name, column in zip(reward_names, scores, strict=False):
        if valid := [score for score in column if score is not None]:
            means[name] = fmean(valid)
    return Sampled(
        prompts=[group.prompt for group in groups],
        responses=[replace(one, group=place) for place, group in enumerate(groups) for one in group.responses],
        result=RewardResult([reward for group in groups for reward in group.rewards], means, errors, scores, seconds),
        rounds=rounds,
        fill=set(range(min(kept, len(groups)), len(groups))),
    )
