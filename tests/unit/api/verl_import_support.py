"""What the tests of the verl import share: a small configuration, and how to ask what became of it."""

import pytest

from grpo_api.verl_import import Source, VerlImportError, import_verl
from grpo_api.verl_import.keys import canonical

ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref"))
BASE = [
    "algorithm.adv_estimator=grpo",
    "data.train_files=/data/train.parquet",
    "data.train_batch_size=64",
    "actor_rollout_ref.model.path=Qwen/Qwen3-8B",
    f"{ACTOR}.ppo_mini_batch_size=32",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
    f"{ROLLOUT}.n=8",
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=8",
]


def run(*overrides, base=BASE, **more):
    """The spec and the report of overrides on top of a small GRPO configuration."""
    job, report = import_verl([Source.override(text) for text in (*base, *overrides)], **more)
    return job["spec"], report


def left(report, key):
    """Where a key went, and why."""
    for name in ("changed", "not_applicable", "unknown"):
        for item in getattr(report, name):
            if canonical(item.setting.key) == canonical(key):
                return name, item.reason
    return None


def faults(*overrides, **more):
    with pytest.raises(VerlImportError) as error:
        run(*overrides, **more)
    return [str(fault) for fault in error.value.faults]
