"""What the head pod checks of model and tokenizer before Ray starts and before a weight is read."""

from typing import Any

from grpo_api.errors import FieldError
from grpo_api.model_shape import model_faults
from grpo_api.spec.model_data import ModelSpec
from grpo_api.spec.root import GRPOJobSpec
from grpo_trainer.errors import SpecError, UserInputError

# torch and Transformers are slow to import, and the pod answers probes before: functions import them.

_ENTRIES = (
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "model_max_length",
    "rope_parameters",
    "sliding_window",
)
"""What `model_faults` reads, by the names that every family's config has or maps to its own."""


def check_model(spec: GRPOJobSpec) -> int:
    """Size of the model's vocabulary, after a look at its configuration: against lengths and tensor parallelism, and
    whether the trainer can split and drive a model of this class, made here without memory for its weights.

    Raises SpecError where the spec asks what the model cannot do, UserInputError where it cannot be trained at all.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from grpo_trainer.logprobs import PolicyModel
    from grpo_trainer.lora import add_lora
    from grpo_trainer.workers.model_loading import decoder_layers

    model = spec.model
    try:
        config: Any = AutoConfig.from_pretrained(
            model.path, revision=model.revision, trust_remote_code=model.trust_remote_code
        )
    except Exception as error:  # Transformers raises OSError, ValueError and its dependencies' own
        raise UserInputError("ModelNotLoaded", f"model.path {model.path!r} could not be loaded: {error}") from error
    text = config.get_text_config()
    if faults := model_faults(spec, {name: getattr(text, name, None) for name in _ENTRIES}):
        raise SpecError("ModelMismatch", "\n".join(map(str, faults)))
    try:
        with torch.device("meta"):
            lm = AutoModelForCausalLM.from_config(config, trust_remote_code=model.trust_remote_code)
    except ValueError as error:
        message = f"model.path {model.path!r} ({type(config).__name__}) is no causal language model: {error}"
        raise UserInputError("ModelNotLoaded", message) from error
    PolicyModel(lm, temperature=spec.rollout.temperature)
    layers = decoder_layers(lm)
    if model.lora is not None:
        add_lora(lm, layers, model.lora)
    return int(lm.get_input_embeddings().num_embeddings)


def check_algorithm(spec: GRPOJobSpec) -> None:
    """Raises UserInputError where a function that the spec names by import path cannot be had."""
    from grpo_trainer.algorithms import find_estimator
    from grpo_trainer.policy_losses import find_loss

    find_estimator(spec.algorithm)
    find_loss(spec.actor.policy_loss)


def load_tokenizer(model: ModelSpec) -> Any:
    """The tokenizer with the spec's chat template. Raises UserInputError where it cannot be loaded."""
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(
            model.tokenizer_path or model.path,
            revision=None if model.tokenizer_path else model.revision,
            trust_remote_code=model.trust_remote_code,
        )
    except Exception as error:  # as above
        where = "model.tokenizerPath" if model.tokenizer_path else "model.path"
        raise UserInputError("TokenizerNotLoaded", f"{where}: the tokenizer could not be loaded: {error}") from error
    if model.chat_template:
        tokenizer.chat_template = model.chat_template
    return tokenizer


def check_tokens(model: ModelSpec, largest: int, vocabulary: int) -> None:
    """Raises UserInputError where a prompt's token has no embedding: on a GPU that ends in an assertion of the device,
    which names neither the token nor the tokenizer."""
    if largest < vocabulary:
        return
    name, value = ("tokenizerPath", model.tokenizer_path) if model.tokenizer_path else ("path", model.path)
    message = f"its tokenizer makes token {largest} of a prompt, and the model has {vocabulary} embeddings"
    fault = FieldError(f"spec.model.{name}", value, f"{message}: use the tokenizer that belongs to the model")
    raise UserInputError("TokenizerMismatch", str(fault))
