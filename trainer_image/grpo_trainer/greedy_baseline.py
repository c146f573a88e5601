"""ReMax's baseline: one greedy response to each prompt, sampled and scored beside the others and never trained on."""

from dataclasses import replace
from statistics import fmean

from grpo_api.job import GRPOJobSpec
from grpo_trainer.rewards.overlong import overlong_penalty
from grpo_trainer.rewards.result import RewardResult
from grpo_trainer.rollout.base import Request, Response, Sampling


def add_greedy(requests: list[Request], n: int) -> list[Request]:
    """Each prompt's requests, numbers 0 to n - 1, followed by a greedy one with the number n."""
    made: list[Request] = []
    for request in requests:
        made.append(request)
        if request.number == n - 1:
            made.append(replace(request, number=n, sampling=Sampling(temperature=0.0)))
    return made


def split_greedy(
    spec: GRPOJobSpec, responses: list[Response], result: RewardResult
) -> tuple[list[Response], RewardResult]:
    """The responses to train on, each with its prompt's greedy reward as `baseline`, and their part of the result.

    Where the greedy response has no reward there is nothing to compare with, and the prompt's others have none either.
    """
    buffer, longest = spec.reward.overlong_buffer, spec.data.max_response_length
    baselines: dict[int, float | None] = {}
    for one, reward in zip(responses, result.rewards, strict=True):
        if one.number == spec.rollout.n:
            penalty = overlong_penalty(len(one.token_ids), longest, buffer)
            baselines[one.group] = None if reward is None else reward + penalty
    kept = [index for index, one in enumerate(responses) if one.number < spec.rollout.n]
    scores = [[column[index] for index in kept] for column in result.function_scores]
    means = {}
    for function, column in zip(spec.reward.functions, scores, strict=False):
        if valid := [score for score in column if score is not None]:
            means[function.name] = fmean(valid)
    rewards = [None if baselines[responses[index].group] is None else result.rewards[index] for index in kept]
    return (
        [replace(responses[index], baseline=baselines[responses[index].group] or 0.0) for index in kept],
        replace(result, rewards=rewards, function_scores=scores, function_means=means),
    )
