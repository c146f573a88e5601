"""Our validation statistics against verl 0.9.1's `process_validation_metrics`, which draws at random for some."""

import numpy as np
import pytest

metric_utils = pytest.importorskip("verl.trainer.ppo.metric_utils")

from grpo_trainer.validation_metrics import statistics  # noqa: E402

RANDOM = np.random.default_rng(0)
SCORES = {
    "floats": RANDOM.normal(size=(5, 6)).tolist(),
    "0 and 1": (RANDOM.random((6, 8)) < 0.4).astype(float).tolist(),
    "one response": [[0.0], [1.0], [1.0]],
    "all equal": [[0.5] * 4, [2.0] * 4],
    "of 3": RANDOM.normal(size=(4, 3)).tolist(),
}
DRAWS = 1000


@pytest.mark.parametrize("name", SCORES)
def test_validation_statistics(name: str) -> None:
    prompts = SCORES[name]
    n = len(prompts[0])
    uids = [str(index) for index in range(len(prompts)) for _ in range(n)]
    scores = [score for own in prompts for score in own]
    theirs = metric_utils.process_validation_metrics(["a"] * len(uids), uids, {"reward": scores})["a"]["reward"]
    ours = statistics(prompts, n)
    passes = {f"pass@{k}" for k in (1, 2, 4, n) if k <= n} if name in ("0 and 1", "one response") else set()
    assert set(ours) - passes == set(theirs)
    assert passes <= set(ours)
    for statistic, value in theirs.items():
        # Every prompt's 1000 draws have the same indices, so that their noise does not average out.
        noise = 5 * np.ptp(scores) / DRAWS**0.5 if "/" in statistic else 1e-9
        assert ours[statistic] == pytest.approx(value, abs=noise), statistic
