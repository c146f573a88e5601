"""Statistics of a validation against their definitions: every draw and every subset counted."""

from itertools import combinations, product
from statistics import fmean, pstdev

import numpy as np
import pytest

from grpo_trainer.validation_metrics import pass_at, statistics


@pytest.mark.parametrize("n", [1, 4, 10, 200])
def test_pass_at_k_is_the_papers_estimator(n):
    """Figure 3 of Chen et al. 2021 (arXiv 2107.03374), which computes equation 1."""
    for c in {0, 1, n // 2, n - 1, n}:
        for k in {1, 2, n // 2, n} - {0}:
            if k > n:
                continue
            wanted = 1.0 if n - c < k else 1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1))
            assert pass_at(n, c, k) == pytest.approx(wanted, abs=1e-12)


def test_pass_at_k_is_the_share_of_subsets_with_a_right_response():
    right = [True, False, False, True, False, False]
    for k in range(1, 7):
        assert pass_at(6, 2, k) == pytest.approx(fmean(any(one) for one in combinations(right, k)))


def test_best_and_worst_of_k_are_means_over_all_draws():
    scores = [0.25, -1.0, 0.5, 0.5]
    found = statistics([scores], 4)
    for k in (2, 4):
        for name, choose in (("best", max), ("worst", min)):
            drawn = [choose(draw) for draw in product(scores, repeat=k)]
            assert found[f"{name}@{k}/mean"] == pytest.approx(fmean(drawn))
            assert found[f"{name}@{k}/std"] == pytest.approx(pstdev(drawn))
    assert found["mean@4"] == 0.0625
    assert found["std@4"] == pytest.approx(np.std(scores))
    assert set(found) == {
        f"{name}@{k}/{kind}" for name in ("best", "worst") for k in (2, 4) for kind in ("mean", "std")
    } | {"mean@4", "std@4"}


def test_prompts_count_alike_and_failed_responses_not_at_all():
    found = statistics([[1.0], [0.0, 0.0, 0.0, 1.0], [], [0.0, 1.0, 1.0, 1.0]], 4)
    assert found["mean@4"] == pytest.approx((1 + 1 / 4 + 3 / 4) / 3)
    assert found["pass@1"] == pytest.approx(found["mean@4"])
    assert found["pass@2"] == pytest.approx((3 / 6 + 1) / 2)  # the first prompt has one response
    assert found["pass@4"] == 1.0


def test_one_response():
    assert statistics([[1.0], [0.0]], 1) == {"mean@1": 0.5, "pass@1": 0.5}
    assert statistics([[0.5], [0.0]], 1) == {"mean@1": 0.25}


def test_sizes_are_verls():
    found = statistics([[float(i) for i in range(6)]], 6)
    assert [name for name in found if name.startswith("best") and name.endswith("mean")] == [
        "best@2/mean",
        "best@4/mean",
        "best@6/mean",
    ]
