import pytest

from grpo_trainer.partition import balanced, equal_runs
from grpo_trainer.rollout.base import request_seed

pytestmark = pytest.mark.unit


def test_runs_keep_order_and_differ_by_one_at_most() -> None:
    assert equal_runs(range(7), 3) == [[0, 1], [2, 3], [4, 5, 6]]
    assert equal_runs([1], 2) == [[], [1]]


def test_balanced_gives_equal_counts_and_even_loads() -> None:
    parts = balanced([100, 1, 1, 90, 50, 60], 2)
    assert sorted(index for part in parts for index in part) == list(range(6))
    assert [len(part) for part in parts] == [3, 3]
    loads = [sum([100, 1, 1, 90, 50, 60][index] for index in part) for part in parts]
    assert abs(loads[0] - loads[1]) <= 50


def test_seeds_differ_by_every_number_and_repeat() -> None:
    seeds = {request_seed(s, t, g, n) for s in (1, 2) for t in range(5) for g in range(5) for n in range(5)}
    assert len(seeds) == 250
    assert request_seed(1, 2, 3, 4) == request_seed(1, 2, 3, 4)
    assert all(0 <= seed < 2**31 for seed in seeds)
