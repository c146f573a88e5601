"""Shapes of models from config.json, and what a spec may ask of them."""

from typing import Any

import pytest

from grpo_api.model_shape import KNOWN_SHAPES, known_shape, longest_sequence, model_faults, shape_of
from tests.unit.api.test_memory_plan import make_spec

# Parameter counts by the models' safetensors headers, as their hub pages show them.
PUBLISHED = {
    "HuggingFaceTB/SmolLM2-135M": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B": 1_711_376_384,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
}
QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "head_dim": 128,
    "tie_word_embeddings": True,
}


def test_parameters_are_those_published():
    assert {name: shape.parameters for name, shape in KNOWN_SHAPES.items()} == PUBLISHED


def test_variants_share_a_shape():
    assert known_shape("Qwen/Qwen2.5-7B-Instruct") == known_shape("Qwen/Qwen2.5-7B") is not None
    assert known_shape("Qwen/Qwen3-8B-Base") == KNOWN_SHAPES["Qwen/Qwen3-8B"]
    assert known_shape("someone/else") is None


def test_shape_of_a_config():
    assert shape_of(QWEN3) == KNOWN_SHAPES["Qwen/Qwen3-0.6B"]
    llama2 = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
    llama2 |= {"intermediate_size": 11008, "vocab_size": 32000}  # neither kv heads nor head_dim nor tying
    assert shape_of(llama2) == KNOWN_SHAPES["meta-llama/Llama-2-7b-hf"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "model_type unknown has hidden_size None, where a dense decoder has a number"),
        ({"model_type": "gpt2", "n_embd": 768}, "model_type gpt2 has hidden_size None"),
        (QWEN3 | {"num_experts": 128}, "mixture of experts"),
        (QWEN3 | {"vocab_size": "151936"}, "vocab_size '151936'"),
    ],
)
def test_what_is_no_dense_decoder_is_named(config, words):
    with pytest.raises(ValueError, match=words):
        shape_of(config)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "fitting"),
    # The rule of vLLM's ModelConfig and of its attention layers, worked by hand.
    [(12, 2, [1, 2, 4]), (14, 2, [1, 2]), (32, 8, [1, 2, 4, 8]), (9, 3, [1]), (16, 1, [1, 2, 4, 8])],
)
def test_tensor_parallelism_divides_heads(heads, kv_heads, fitting):
    config = {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    for size in (1, 2, 4, 8):
        spec = make_spec(rollout={"tensorModelParallelSize": size}, trainer={"nGpusPerNode": 8})
        faults = model_faults(spec, config)
        assert (not faults) == (size in fitting), (size, faults)
        for fault in faults:
            assert (fault.path, fault.value) == ("spec.rollout.tensorModelParallelSize", size)
            assert f"{heads} attention heads and {kv_heads} key/value heads" in fault.message
            assert fault.message.endswith(f"try {' or '.join(map(str, fitting))}")


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}}, 8192),
        ({"max_position_embeddings": 4096, "rope_scaling": None}, 4096),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, 16384),
        ({"max_position_embeddings": 4096, "rope_parameters": {"full_attention": {"rope_type": "default"}}}, 4096),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 131072),
        ({}, None),
    ],
)
def test_positions(config, limit):
    assert longest_sequence(config) == limit


def faults_of(config: dict[str, Any], **sections: dict[str, Any]) -> list[str]:
    return [str(fault) for fault in model_faults(make_spec(**sections), config)]


def test_lengths_beyond_the_positions():
    (said,) = faults_of({"max_position_embeddings": 767})
    assert said == (
        "spec.data.maxResponseLength: + maxPromptLength 256 = 768 tokens, more than the model's 767 positions "
        "(max_position_embeddings): lower one of them (got 512)"
    )
    assert faults_of({"max_position_embeddings": 768}) == []


def test_a_window_shorter_than_the_sequences():
    (said,) = faults_of({"sliding_window": 700})
    assert said.startswith("spec.model.attnImplementation: does not do the model's sliding window of 700 tokens")
    assert faults_of({"sliding_window": 768}) == faults_of({"sliding_window": None}) == []
    assert faults_of({"sliding_window": 700}, model={"attnImplementation": "eager"}) == []
