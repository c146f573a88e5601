"""DAPO's group filter, on rounds that are written out."""

import pytest

from grpo_api.spec.training import FilterGroupsSpec
from grpo_trainer.errors import UserInputError
from grpo_trainer.prompts import Prompt
from grpo_trainer.rewards.result import RewardResult
from grpo_trainer.rollout.base import Response
from grpo_trainer.sampling import Sampled, sample_step

FLAT, FLAT_WITH_A_HOLE, DIFFERS = [1.0, 1.0], [None, 1.0], [0.0, 1.0]


def sample(rounds: list[list[list[float | None]]], *, bound: int = 10, enable: bool = True) -> Sampled:
    """Each round is a list of groups' rewards; a prompt's tokens name its round and place."""
    drawn: list[int] = []

    def draw(number: int) -> tuple[list[Prompt], list[Response], RewardResult]:
        drawn.append(number)
        groups = rounds[number]
        prompts = [Prompt([number, place], "", "", "", {}, {}, None, place) for place in range(len(groups))]
        responses = [
            Response(place, k, [number, place, k], [-1.0], False) for place in range(len(groups)) for k in (0, 1)
        ]
        rewards = [reward for group in groups for reward in group]
        result = RewardResult(rewards, {"exact": 9.0}, function_scores=[rewards])
        result.function_seconds["exact"] = 0.5
        result.errors[("exact", "none")] = sum(reward is None for reward in rewards)
        return prompts, responses, result

    found = sample_step(draw, FilterGroupsSpec(enable=enable, max_num_gen_batches=bound), 7, ["exact"])
    assert drawn == list(range(found.rounds))
    return found


def test_without_the_filter_one_round_stays_as_it_is() -> None:
    found = sample([[FLAT, FLAT]], enable=False)
    assert (found.rounds, found.fill, found.result.rewards) == (1, set(), [1.0] * 4)


def test_rounds_go_on_until_a_batch_of_groups_differs() -> None:
    found = sample([[FLAT, DIFFERS, FLAT_WITH_A_HOLE], [FLAT, FLAT, DIFFERS], [DIFFERS, DIFFERS, FLAT]])
    assert found.rounds == 3
    assert [prompt.prompt_ids for prompt in found.prompts] == [[0, 1], [1, 2], [2, 0]]
    assert [(one.group, one.token_ids) for one in found.responses] == [
        (0, [0, 1, 0]), (0, [0, 1, 1]), (1, [1, 2, 0]), (1, [1, 2, 1]), (2, [2, 0, 0]), (2, [2, 0, 1]),
    ]  # fmt: skip
    assert found.result.rewards == [0.0, 1.0] * 3
    assert found.result.function_means == {"exact": 0.5}
    assert found.result.errors[("exact", "none")] == 1
    assert found.result.function_seconds == {"exact": 1.5}
    assert found.fill == set()


def test_at_the_bound_it_trains_on_what_there_is() -> None:
    found = sample([[FLAT, FLAT, DIFFERS], [FLAT, FLAT, FLAT]], bound=2)
    assert found.rounds == 2
    assert found.prompts[0].prompt_ids == [0, 2]
    assert len(found.prompts) == 3
    assert found.fill == {1, 2}


def test_rewards_that_all_fail_are_not_taken_for_equal_ones() -> None:
    nothing: list[float | None] = [None, None]
    found = sample([[nothing, nothing]] * 2, bound=2)
    assert (found.rounds, found.result.rewards) == (2, [None] * 4)


def test_nothing_left_is_the_users_fault() -> None:
    with pytest.raises(UserInputError, match=r"step 7: .* all equal in 2 rounds of 2 prompts") as end:
        sample([[FLAT, FLAT_WITH_A_HOLE], [FLAT, FLAT]], bound=2)
    assert (end.value.reason, end.value.exit_code) == ("NothingToLearn", 65)
