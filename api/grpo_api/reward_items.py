"""A reward function of the spec as the item that a reward process loads (`grpo_trainer.rewards.worker`)."""

from typing import Any

from grpo_api.spec.reward import ClassifierReward, HttpReward, RewardFunction
from grpo_api.spec.reward_rules import rule_params


def reward_item(function: RewardFunction, timeout: float, token_file: str | None = None) -> dict[str, Any]:
    """What a process is told to load. `timeout` is `reward.timeoutSeconds`; the token is read from `token_file`."""
    if function.builtin:
        params = rule_params(function.builtin.rule, function.builtin.params).model_dump()
        return {"name": function.name, "rule": function.builtin.rule, "params": params}
    if function.module:
        module, _, name = function.module.path.partition(":")
        place = {"module": module, "directory": function.module.directory}
        return {"name": function.name, **place, "function": name, "params": function.module.params}
    if function.http:
        return {"name": function.name, "http": _http(function.http, timeout, token_file)}
    if function.classifier:
        return {"name": function.name, "classifier": _classifier(function.classifier)}
    python = function.python
    assert python
    return {"name": function.name, "source": python.source, "function": python.function, "params": python.params}


def _http(http: HttpReward, budget: float, token_file: str | None) -> dict[str, Any]:
    return {
        "url": http.url,
        "batch_size": http.batch_size,
        "timeout": http.timeout_seconds,
        "retries": http.retries,
        "backoff": http.backoff_seconds,
        "budget": budget,
        "token_file": token_file if http.token_secret else None,
    }


def _classifier(classifier: ClassifierReward) -> dict[str, Any]:
    return {
        "path": classifier.path,
        "revision": classifier.revision,
        "label": classifier.label,
        "output": classifier.output,
        "input": classifier.input,
        "max_length": classifier.max_length,
        "batch_size": classifier.batch_size,
        "threads": classifier.threads,
    }
