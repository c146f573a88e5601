"""LoRA (arXiv 2106.09685): W x + (alpha / rank) B A x with W frozen, in the linear layers of a model.

A linear layer keeps its name and its parameters' names; two more parameters, `lora_A` and `lora_B`, are beside its
weight. The adapter is written as the library PEFT does, which tests hold this module against.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import linear

from grpo_api.spec.model_data import LoraSpec, ModelSpec
from grpo_trainer.errors import SpecError

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."


class LoraLinear(nn.Linear):
    """A linear layer that `add_lora` has made into one with an adapter."""

    lora_A: nn.Parameter
    """(rank, in)"""
    lora_B: nn.Parameter
    """(out, rank)"""
    scale: float
    active: bool
    """False: the base model."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        base = linear(x, self.weight, self.bias)
        if not self.active:
            return base
        return base + self.scale * linear(linear(x, self.lora_A), self.lora_B)

    def merged(self) -> torch.Tensor:
        """W + (alpha / rank) B A, computed in float32, in the weight's dtype. Parameters must be whole (unsharded)."""
        weight = self.weight.detach()
        change = self.lora_B.detach().float() @ self.lora_A.detach().float()
        return torch.add(weight.float(), change, alpha=self.scale).to(weight.dtype)


def add_lora(lm: nn.Module, layers: nn.ModuleList, lora: LoraSpec) -> None:
    """Freezes the model and gives linear layers of its decoder layers an adapter that changes nothing yet: A random as
    in PEFT (the same on every rank), B zero.

    Raises SpecError where a name of `lora.targetModules` is that of no linear layer.
    """
    lm.requires_grad_(False)
    found = [(name, module) for name, module in layers.named_modules() if isinstance(module, nn.Linear)]
    names = sorted({name.rpartition(".")[2] for name, _ in found})
    wanted = names if lora.target_modules == ["all-linear"] else lora.target_modules
    if unknown := sorted(set(wanted) - set(names)):
        raise SpecError(
            "UnknownLoraTarget",
            f"model.lora.targetModules has {', '.join(unknown)}, and the model's decoder layers have the linear layers "
            f"{', '.join(names)}: use those, or all-linear",
        )
    generator = torch.Generator().manual_seed(0)
    for name, module in found:
        if name.rpartition(".")[2] not in wanted:
            continue
        bound = module.in_features**-0.5  # kaiming_uniform_(a=sqrt(5)), PEFT's
        a = torch.rand(lora.rank, module.in_features, generator=generator) * 2 * bound - bound
        b = torch.zeros(module.out_features, lora.rank)
        module.__class__ = LoraLinear
        own = cast(LoraLinear, module)
        own.lora_A = nn.Parameter(a.to(module.weight.device))
        own.lora_B = nn.Parameter(b.to(module.weight.device))
        own.scale, own.active = lora.alpha / lora.rank, True


def _adapters(model: nn.Module) -> list[tuple[str, LoraLinear]]:
    return [(name, module) for name, module in model.named_modules() if isinstance(module, LoraLinear)]


@contextmanager
def base_model(model: nn.Module) -> Iterator[None]:
    """Without the adapters, within the block."""
    modules = [module for _, module in _adapters(model)]
    for module in modules:
        module.active = False
    try:
        yield
    finally:
        for module in modules:
            module.active = True


def write_adapter(directory: Path, parameters: dict[str, torch.Tensor], model: ModelSpec) -> None:
    """What `peft.PeftModel.from_pretrained(base, directory)` reads. Names are those of the model's parameters."""
    assert model.lora is not None
    tensors = {
        f"{_PREFIX}{name.removesuffix('.lora_A').removesuffix('.lora_B')}.{name[-6:]}.weight": tensor.contiguous()
        for name, tensor in parameters.items()
    }
    save_file(tensors, directory / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model.path,
        "revision": model.revision,
        "r": model.lora.rank,
        "lora_alpha": model.lora.alpha,
        "target_modules": sorted({name.split(".")[-2] for name in parameters}),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    (directory / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2))
