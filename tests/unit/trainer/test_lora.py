"""LoRA on 2 gloo ranks: gradients by the chain rule from those of whole weights, whatever the cut; checkpoints."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import LlamaForCausalLM

from grpo_trainer.checkpoint import CheckpointManager
from grpo_trainer.errors import SpecError, UserInputError
from grpo_trainer.lora import ADAPTER_WEIGHTS, add_lora
from grpo_trainer.workers.fsdp import FsdpActor
from tests.unit.trainer.test_fsdp import CUTS, OBJECTIVES, plain_gradients
from tests.unit.trainer.trainer_support import make_model, make_samples, make_spec, on_ranks

CPU = torch.device("cpu")
RANK, ALPHA = 4, 12
OBJECTIVE = "token-mean, KL, entropy"


def make_actor(model: Path, rank: int, world_size: int, cut: dict[str, Any], lora: dict[str, Any], **more: Any) -> Any:
    spec = make_spec(model, model={"lora": lora}, actor=OBJECTIVES[OBJECTIVE] | cut)
    return FsdpActor(spec, rank=rank, world_size=world_size, device=CPU, total_updates=5, **more)


def stir(actor: FsdpActor) -> None:
    """Puts B away from zero, the same on all ranks."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in actor._trained().items():
            if name.endswith("lora_B"):
                whole = 0.1 * torch.randn(parameter.shape, generator=generator)
                local = parameter.to_local()
                start = 0 if actor.rank == 0 else whole.shape[0] - local.shape[0]
                local.copy_(whole[start : start + local.shape[0]])


def gradients(rank: int, world_size: int, model: str) -> dict[str, Any]:
    results: dict[str, Any] = {}
    samples = make_samples(off_policy=True, reference=True)
    own = (samples[:8], samples[8:])[rank]
    for cut, reshard in (("one row", False), ("micro 2", True), ("budget of 17 tokens", False)):
        lora = {"rank": RANK, "alpha": ALPHA}
        actor = make_actor(Path(model), rank, world_size, CUTS[cut], lora, reshard_after_forward=reshard)
        stir(actor)
        found: dict[str, Any] = {
            "adapter": {name: tensor.clone() for name, tensor in actor.full_adapter()},
            "merged": {name: tensor.clone() for name, tensor in actor.full_parameters()},
        }

        def record(actor: FsdpActor = actor, found: dict[str, Any] = found) -> None:
            found["gradients"] = {
                name.removeprefix("lm."): parameter.grad.full_tensor().clone()
                for name, parameter in actor.model.named_parameters()
                if parameter.grad is not None
            }

        actor.spec.actor.grad_clip = 1e6
        actor.optimizer.step = record
        actor.update(own)
        results[f"{cut}, reshard {reshard}"] = found
    return results


def test_gradients_follow_from_those_of_whole_weights(tmp_path: Path) -> None:
    """With W' = W + s B A: dL/dB = s dL/dW' A^T and dL/dA = s B^T dL/dW'."""
    model = make_model(tmp_path / "model")
    results = on_ranks(2, gradients, str(model))
    for key, found in results[0].items():
        lm = LlamaForCausalLM.from_pretrained(model)
        lm.load_state_dict(found["merged"], strict=False)
        lm.save_pretrained(tmp_path / "merged")
        whole, _ = plain_gradients(tmp_path / "merged", OBJECTIVE)
        adapter, got = found["adapter"], found["gradients"]
        assert got.keys() == adapter.keys()
        assert len(adapter) == 2 * 2 * 7  # two layers of seven matrices
        for name in adapter:
            layer, _, which = name.rpartition(".")
            a, b, w = adapter[f"{layer}.lora_A"], adapter[f"{layer}.lora_B"], whole[f"{layer}.weight"]
            want = ALPHA / RANK * (w @ a.T if which == "lora_B" else b.T @ w)
            scale = max(1.0, want.abs().max().item())
            torch.testing.assert_close(got[name], want, atol=1e-5 * scale, rtol=1e-4, msg=f"{key}, {name}")
        base = dict(LlamaForCausalLM.from_pretrained(model).named_parameters())
        assert found["merged"].keys() == base.keys()


def saved_and_resumed(rank: int, world_size: int, model: str, directory: str) -> dict[str, Any]:
    samples = make_samples(reference=True)[rank::world_size]
    first = make_actor(Path(model), rank, world_size, {}, {"rank": RANK, "alpha": ALPHA})
    first.update(samples)
    manager = CheckpointManager(directory, keep=2)
    manager.save(1, first, {})
    manager.wait()
    first.update(samples)
    second = make_actor(Path(model), rank, world_size, {}, {"rank": RANK, "alpha": ALPHA})
    manager.load(manager.newest_complete(), second)
    second.update(samples)
    refusals = []
    for other in ({"rank": RANK + 1}, None):
        try:
            manager.load(manager.newest_complete(), make_actor(Path(model), rank, world_size, {}, other))
        except UserInputError as error:
            refusals.append(str(error))
    dist.barrier()
    return {
        "went on": {name: tensor.clone() for name, tensor in first.full_adapter()},
        "resumed": {name: tensor.clone() for name, tensor in second.full_adapter()},
        "refusals": refusals,
    }


def test_a_checkpoint_holds_the_adapter_and_resumes_exactly(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    (result, *_) = on_ranks(2, saved_and_resumed, str(model), str(tmp_path / "checkpoints"))
    torch.testing.assert_close(result["resumed"], result["went on"], rtol=0, atol=0)
    assert len(result["refusals"]) == 2
    assert all("begin anew" in text or "another" in text for text in result["refusals"])
    (step,) = (tmp_path / "checkpoints").iterdir()
    size = sum(file.stat().st_size for file in step.rglob("*") if file.is_file())
    base = sum(p.numel() for p in LlamaForCausalLM.from_pretrained(model).parameters())
    assert size < 4 * base
    assert (step / "hf" / ADAPTER_WEIGHTS).is_file()


def test_unknown_targets_list_what_there_is(tmp_path: Path) -> None:
    lm = LlamaForCausalLM.from_pretrained(make_model(tmp_path))
    spec = make_spec(tmp_path, model={"lora": {"rank": 2, "targetModules": ["q_proj", "query"]}})
    with pytest.raises(SpecError, match=r"has query, and .*down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_p"):
        add_lora(lm, lm.model.layers, spec.model.lora)
