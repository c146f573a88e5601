"""From `spec.model` to a float32 Transformers model in memory."""

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from grpo_api.spec.model_data import ModelSpec
from grpo_trainer.attention import PACKED_ATTENTION
from grpo_trainer.environment import check_paths
from grpo_trainer.errors import UserInputError


def load_model(spec: ModelSpec, device: torch.device) -> PreTrainedModel:
    """The model of `model.path` on CPU in float32, the dtype of the master weights, with every dropout off: old and
    new log-probabilities must come from the same function.

    Raises UserInputError where it cannot be read, is no causal language model, or `device` cannot run its dtype.
    """
    if device.type == "cpu" and spec.dtype != "float32":
        raise UserInputError(
            "DtypeNotOnCPU", f"model.dtype is {spec.dtype}, which CPUs run far too slowly; set float32"
        )
    check_paths(spec)
    source = {"revision": spec.revision, "trust_remote_code": spec.trust_remote_code}
    try:
        config = AutoConfig.from_pretrained(spec.path, **source)
        for name in vars(config):
            if name.endswith(("dropout", "pdrop")):
                setattr(config, name, 0.0)
        return AutoModelForCausalLM.from_pretrained(
            spec.path,
            **source,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            attn_implementation="eager" if spec.attn_implementation == "eager" else PACKED_ATTENTION,
        )
    except UserInputError:
        raise
    except Exception as error:  # Transformers raises OSError, ValueError, KeyError and its dependencies' own
        raise UserInputError("ModelNotLoaded", f"model.path {spec.path!r} could not be loaded: {error}") from error


def decoder_layers(lm: nn.Module) -> nn.ModuleList:
    """The layers that FSDP shards one by one. Raises UserInputError where a model has no list of them."""
    layers = getattr(lm.base_model, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise UserInputError(
            "UnsupportedModel", f"model.path: {type(lm).__name__} has no list of decoder layers to shard"
        )
    return layers
