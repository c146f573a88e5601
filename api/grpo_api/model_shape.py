"""Shape of a dense decoder from its `config.json`, and what a spec may ask of a model of that shape."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_api.errors import FieldError
from grpo_api.spec.root import GRPOJobSpec

_UNSCALED_ROPE = {"default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"}
"""Kinds of RoPE scaling whose `max_position_embeddings` is already the scaled length."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True)
class ModelShape:
    """A decoder of the Llama family (Llama, Mistral, Qwen2, Qwen3, SmolLM2): RMSNorm, gated MLP, grouped queries."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    head_dim: int
    tied: bool
    """Input and output embedding are one matrix."""
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def layer_parameters(self) -> int:
        """Of one decoder layer: four attention and three MLP matrices, two norms, biases and query/key norms."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        matrices = self.hidden * (2 * queries + 2 * keys + 3 * self.intermediate)
        bias = queries + 2 * keys if self.qkv_bias else 0
        return matrices + 2 * self.hidden + bias + (2 * self.head_dim if self.qk_norm else 0)

    @property
    def root_parameters(self) -> int:
        """Of all that is in no layer: embeddings and the last norm."""
        return (1 if self.tied else 2) * self.vocabulary * self.hidden + self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.root_parameters

    def kv_bytes_per_token(self, tensor_parallel: int, number_bytes: int) -> int:
        """Keys and values of one token on one GPU; where there are more GPUs than key/value heads, each holds one."""
        return 2 * self.layers * max(1, self.kv_heads // tensor_parallel) * self.head_dim * number_bytes


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """The shape that a `config.json` describes. Raises ValueError where it is of no dense decoder."""
    kind = str(config.get("model_type", "unknown"))
    if any((config.get(key) or 1) > 1 for key in _EXPERTS):
        raise ValueError(f"model_type {kind} is a mixture of experts, which the estimate does not know")

    def number(key: str) -> int:
        value = config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"model_type {kind} has {key} {value!r}, where a dense decoder has a number")
        return value

    hidden, heads = number("hidden_size"), number("num_attention_heads")
    return ModelShape(
        hidden=hidden,
        layers=number("num_hidden_layers"),
        heads=heads,
        kv_heads=number("num_key_value_heads") if config.get("num_key_value_heads") else heads,
        intermediate=number("intermediate_size"),
        vocabulary=number("vocab_size"),
        head_dim=number("head_dim") if config.get("head_dim") else hidden // heads,
        # Transformers' default is True; the Llama family writes it out or, as Llama 2 did, means False.
        tied=bool(config.get("tie_word_embeddings", kind not in ("llama", "mistral", "qwen2", "qwen3"))),
        qkv_bias=kind == "qwen2" or bool(config.get("attention_bias")),
        qk_norm=kind == "qwen3",
    )


def _qwen2(hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, vocabulary: int) -> ModelShape:
    tied = vocabulary == 151936  # the models of 0.5B to 3B
    return ModelShape(hidden, layers, heads, kv_heads, intermediate, vocabulary, hidden // heads, tied, qkv_bias=True)


def _qwen3(hidden: int, layers: int, heads: int, intermediate: int, *, tied: bool) -> ModelShape:
    return ModelShape(hidden, layers, heads, 8, intermediate, 151936, 128, tied, qk_norm=True)


KNOWN_SHAPES = {
    "HuggingFaceTB/SmolLM2-135M": ModelShape(576, 30, 9, 3, 1536, 49152, 64, tied=True),
    "HuggingFaceTB/SmolLM2-360M": ModelShape(960, 32, 15, 5, 2560, 49152, 64, tied=True),
    "HuggingFaceTB/SmolLM2-1.7B": ModelShape(2048, 24, 32, 32, 8192, 49152, 64, tied=True),
    "meta-llama/Llama-2-7b-hf": ModelShape(4096, 32, 32, 32, 11008, 32000, 128, tied=False),
    "meta-llama/Llama-3.1-8B": ModelShape(4096, 32, 32, 8, 14336, 128256, 128, tied=False),
    "meta-llama/Llama-3.2-1B": ModelShape(2048, 16, 32, 8, 8192, 128256, 64, tied=True),
    "meta-llama/Llama-3.2-3B": ModelShape(3072, 28, 24, 8, 8192, 128256, 128, tied=True),
    "Qwen/Qwen2.5-0.5B": _qwen2(896, 24, 14, 2, 4864, 151936),
    "Qwen/Qwen2.5-1.5B": _qwen2(1536, 28, 12, 2, 8960, 151936),
    "Qwen/Qwen2.5-3B": _qwen2(2048, 36, 16, 2, 11008, 151936),
    "Qwen/Qwen2.5-7B": _qwen2(3584, 28, 28, 4, 18944, 152064),
    "Qwen/Qwen2.5-14B": _qwen2(5120, 48, 40, 8, 13824, 152064),
    "Qwen/Qwen2.5-32B": _qwen2(5120, 64, 40, 8, 27648, 152064),
    "Qwen/Qwen3-0.6B": _qwen3(1024, 28, 16, 3072, tied=True),
    "Qwen/Qwen3-1.7B": _qwen3(2048, 28, 16, 6144, tied=True),
    "Qwen/Qwen3-4B": _qwen3(2560, 36, 32, 9728, tied=True),
    "Qwen/Qwen3-8B": _qwen3(4096, 36, 32, 12288, tied=False),
}
"""Shapes of often used hub ids, as their config.json has them; `-Instruct` and `-Base` have the same one."""


def known_shape(hub_id: str) -> ModelShape | None:
    return KNOWN_SHAPES.get(hub_id.removesuffix("-Instruct").removesuffix("-Base"))


def longest_sequence(config: Mapping[str, Any]) -> int | None:
    """Positions that a model has, as vLLM derives them (`_get_and_verify_max_len`): `max_position_embeddings`, or
    `model_max_length` where a family has it, times the RoPE factor where the scaling is one that leaves them unscaled.
    None where the config does not say."""
    positions = config.get("model_max_length") or config.get("max_position_embeddings")
    if not isinstance(positions, int):
        return None
    for rope in _ropes(config.get("rope_parameters") or config.get("rope_scaling") or {}):
        if (rope.get("rope_type") or rope.get("type") or "default") not in _UNSCALED_ROPE:
            return int(positions * (rope.get("factor") or 1))
    return positions


def _ropes(found: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """One set of RoPE parameters, or one for each kind of layer."""
    nested = [value for value in found.values() if isinstance(value, Mapping)]
    return nested or [found]


def _splits(heads: int, kv_heads: int, tensor_parallel: int) -> bool:
    """vLLM's rule: query heads are divided; key/value heads are divided, or each is held by several GPUs."""
    return not heads % tensor_parallel and not (kv_heads % tensor_parallel and tensor_parallel % kv_heads)


def model_faults(spec: GRPOJobSpec, config: Mapping[str, Any]) -> list[FieldError]:
    """What the spec asks of a model that its `config.json` rules out; entries that are missing there are let pass."""
    faults: list[FieldError] = []
    tp, per_node = spec.rollout.tensor_model_parallel_size, spec.trainer.n_gpus_per_node
    heads = config.get("num_attention_heads")
    kv_heads = config.get("num_key_value_heads") or heads
    if isinstance(heads, int) and isinstance(kv_heads, int) and not _splits(heads, kv_heads, tp):
        fitting = [size for size in range(1, per_node + 1) if not per_node % size and _splits(heads, kv_heads, size)]
        message = (
            f"does not divide the model's {heads} attention heads and {kv_heads} key/value heads evenly; with "
            f"trainer.nGpusPerNode {per_node} try {' or '.join(map(str, fitting))}"
        )
        faults.append(FieldError("spec.rollout.tensorModelParallelSize", tp, message))
    longest = spec.data.max_prompt_length + spec.data.max_response_length
    limit = longest_sequence(config)
    if limit is not None and longest > limit:
        message = (
            f"+ maxPromptLength {spec.data.max_prompt_length} = {longest} tokens, more than the model's {limit} "
            "positions (max_position_embeddings): lower one of them"
        )
        faults.append(FieldError("spec.data.maxResponseLength", spec.data.max_response_length, message))
    window = config.get("sliding_window")
    if isinstance(window, int) and longest > window and spec.model.attn_implementation != "eager":
        message = (
            f"does not do the model's sliding window of {window} tokens, less than the longest sequence "
            f"(maxPromptLength + maxResponseLength = {longest}): set eager, or lower the lengths"
        )
        faults.append(FieldError("spec.model.attnImplementation", spec.model.attn_implementation, message))
    return faults
