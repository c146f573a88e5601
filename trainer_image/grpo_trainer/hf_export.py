"""The actor as a directory that `from_pretrained` reads: Transformers', or PEFT's where only adapters are trained."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict

from grpo_api.spec.model_data import ModelSpec
from grpo_trainer.lora import write_adapter
from grpo_trainer.workers.fsdp import FsdpActor


@dataclass(frozen=True)
class HfExport:
    """Rank 0's copy of the whole model in the compute dtype, or of its adapters in float32, ready to be written by
    another thread."""

    model: ModelSpec
    parameters: dict[str, torch.Tensor]
    config: Any
    generation_config: Any
    tokenizer: Any

    @staticmethod
    def of(actor: FsdpActor, tokenizer: Any) -> "HfExport | None":
        """Collective; None on ranks other than 0."""
        parameters: dict[str, torch.Tensor] = {}
        lora = actor.spec.model.lora is not None
        for name, tensor in actor.full_adapter() if lora else actor.full_parameters():
            if actor.rank == 0:
                parameters[name] = tensor.to("cpu", copy=True)
        if actor.rank != 0:
            return None
        config = copy.deepcopy(actor.config)
        config.dtype = actor.compute_dtype
        return HfExport(actor.spec.model, parameters, config, actor.generation_config, tokenizer)

    def write(self, directory: Path) -> None:
        if self.model.lora is not None:
            write_adapter(directory, self.parameters, self.model)
        else:
            save_torch_state_dict(self.parameters, directory, max_shard_size="5GB", metadata={"format": "pt"})
            self.config.save_pretrained(directory)
            if self.generation_config is not None:
                self.generation_config.save_pretrained(directory)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(directory)
