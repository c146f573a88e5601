"""Our defaults, and those that the importer takes for verl's, against verl 0.9.1's own configuration."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from grpo_api.fields import find
from grpo_api.job import GRPOJobSpec
from grpo_api.verl_import.keys import ACTOR, KEYS, KL_TYPES, ROLLOUT, ROLLOUT_CORRECTION

OmegaConf = pytest.importorskip("omegaconf").OmegaConf
pytest.importorskip("verl")

OURS: dict[str, tuple[Any, Any]] = {
    # verl's default and ours; docs/algorithms.md and docs/verl.md say why
    "algorithm.adv_estimator": ("gae", "grpo"),
    "algorithm.filter_groups.max_num_gen_batches": (0, 10),
    ROLLOUT_CORRECTION + "rollout_is": (None, "token"),
    ROLLOUT_CORRECTION + "rollout_rs": (None, "none"),
    ROLLOUT_CORRECTION + "rollout_rs_threshold": (None, 2.0),
    ROLLOUT + "n": (1, 8),
    ROLLOUT + "name": ("???", "vllm"),
    ROLLOUT + "seed": (42, 1),
    ROLLOUT + "tensor_model_parallel_size": (2, 1),
    # unset: those of `clip_ratio`, which is the same
    ACTOR + "clip_ratio_low": (0.2, None),
    ACTOR + "clip_ratio_high": (0.2, None),
    # unset: 16384, and no warm-up
    ACTOR + "ppo_max_token_len_per_gpu": (16384, None),
    ACTOR + "optim.lr_warmup_steps": (-1, 0),
}


def verls() -> dict[str, Any]:
    """By dotted name; interpolations as they stand."""
    (package,) = find_spec("verl").submodule_search_locations
    file = Path(package) / "trainer" / "config" / "_generated_ppo_trainer.yaml"
    found: dict[str, Any] = {}

    def walk(value: Any, name: str) -> None:
        found[name] = value
        for key, below in value.items() if isinstance(value, dict) else ():
            walk(below, f"{name}.{key}".removeprefix("."))

    walk(OmegaConf.to_container(OmegaConf.load(file), resolve=False), "")
    return found


def test_the_importer_knows_verls_defaults() -> None:
    theirs = verls()
    stated = {key.verl: key.default for key in KEYS if key.default is not None and theirs[key.verl] != "???"}
    assert stated == {name: theirs[name] for name in stated}
    assert len(stated) > 60


def test_our_defaults_are_verls_but_for_those_listed() -> None:
    theirs, compared, differ = verls(), 0, {}
    for key in KEYS:
        default = theirs.get(key.verl, "${")
        if not key.path.startswith(("algorithm.", "rollout.", "actor.")) or str(default).startswith("${"):
            continue
        _, field = find(GRPOJobSpec, key.path.split("."))
        assert field is not None
        # Not what has no default, vLLM's own defaults, and a switch that decides which of our fields is set.
        if field.is_required() or "engineArgs" in key.path or key.verl.endswith("use_dynamic_bsz"):
            continue
        compared += 1
        ours = field.get_default(call_default_factory=True)
        if ours != (KL_TYPES[default] if key.choices is KL_TYPES else default):
            differ[key.verl] = default, ours
    assert differ == OURS
    assert compared > 50
