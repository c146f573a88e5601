"""One process of the reward pool: `python -m grpo_trainer.rewards.worker <socket fd>`. It imports no torch itself."""

import sys
from typing import Any

from grpo_api.rewards.function import as_score
from grpo_api.rewards.rows import RewardRow
from grpo_api.rewards.worker import Scorer, load_python, serve


class _Rule:
    """A builtin rule with the face of a user's function."""

    batch_size = 1
    line = file = None

    def __init__(self, rule: str, params: dict[str, Any]) -> None:
        from grpo_trainer.rewards.rules import make_rule

        self._rule = make_rule(rule, params)

    def __call__(self, rows: list[RewardRow]) -> list[float | None]:
        return [as_score(self._rule(rows[0]))]


def load_item(item: dict[str, Any]) -> Scorer:
    """The function of one item of the process's configuration, which names its kind."""
    if "rule" in item:
        return _Rule(item["rule"], item["params"])
    if "http" in item:
        from grpo_trainer.rewards.http import HttpFunction

        return HttpFunction(**item["http"])
    if "classifier" in item:
        from grpo_trainer.rewards.classifier import Classifier

        return Classifier(**item["classifier"])
    return load_python(item)


if __name__ == "__main__":
    serve(int(sys.argv[1]), load_item)
