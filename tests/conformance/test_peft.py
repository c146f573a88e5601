"""Our LoRA against the library PEFT, which loads what we write."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import LlamaForCausalLM

from grpo_trainer.lora import write_adapter
from grpo_trainer.workers.fsdp import FsdpActor
from tests.unit.trainer.trainer_support import make_model, make_samples, make_spec, plain_log_probs

peft = pytest.importorskip("peft")
LORA: dict[str, dict[str, Any]] = {
    "all-linear": {"rank": 6, "alpha": 24},
    "two modules": {"rank": 5, "alpha": 8, "targetModules": ["q_proj", "down_proj"]},
}


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("lora", LORA)
def test_peft_reads_the_adapter_and_computes_the_same(tmp_path: Path, lora: str) -> None:
    model = make_model(tmp_path / "model")
    spec = make_spec(model, model={"lora": LORA[lora]}, actor={"useKlLoss": True, "optim": {"lr": 1e-2}})
    actor = FsdpActor(spec, rank=0, world_size=1, device=torch.device("cpu"), total_updates=5)
    samples = make_samples(reference=True)
    for _ in range(2):
        actor.update(samples, on_policy=True)
    write_adapter(tmp_path, dict(actor.full_adapter()), spec.model)
    merged = {name: tensor.clone() for name, tensor in actor.full_parameters()}
    policies, references = actor.compute_log_probs(samples), actor.compute_log_probs(samples, reference=True)

    theirs = peft.PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(model), tmp_path)
    for sample, policy, reference in zip(samples, policies, references, strict=True):
        with torch.no_grad():
            torch.testing.assert_close(policy, plain_log_probs(theirs, sample)[0], atol=1e-5, rtol=0)
            with theirs.disable_adapter():
                torch.testing.assert_close(reference, plain_log_probs(theirs, sample)[0], atol=1e-5, rtol=0)
        assert not sample.response_ids or not torch.allclose(policy, reference, atol=1e-3)
    whole = theirs.merge_and_unload().named_parameters()
    torch.testing.assert_close(merged, {name: parameter.detach() for name, parameter in whole})


@pytest.mark.parametrize("lora", LORA)
def test_its_names_and_its_beginning_are_pefts(tmp_path: Path, lora: str) -> None:
    """The same parameters, A from the same distribution, and B zero."""
    from grpo_trainer.lora import add_lora

    options = LORA[lora]
    spec = make_spec(make_model(tmp_path), model={"lora": options}).model
    ours, theirs = LlamaForCausalLM.from_pretrained(tmp_path), LlamaForCausalLM.from_pretrained(tmp_path)
    add_lora(ours, ours.model.layers, spec.lora)
    targets = options.get("targetModules", "all-linear")
    config = peft.LoraConfig(r=options["rank"], lora_alpha=options["alpha"], target_modules=targets)
    wrapped = peft.get_peft_model(theirs, config)
    want = peft.get_peft_model_state_dict(wrapped)
    got = {f"base_model.model.{name}.weight": p for name, p in ours.named_parameters() if p.requires_grad}
    assert {name: p.shape for name, p in got.items()} == {name: p.shape for name, p in want.items()}
    for name, one in want.items():
        assert got[name].abs().max() <= one.abs().max() * 1.1
        assert got[name].std().item() == pytest.approx(one.std().item(), rel=0.2)
