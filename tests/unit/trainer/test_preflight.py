"""Model and tokenizer are refused by their configuration alone: no directory here holds a weight."""

from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2Config, LlamaConfig, PretrainedConfig, T5Config

from grpo_api.memory_plan import LOGIT_ROWS
from grpo_api.spec.model_data import ModelSpec
from grpo_trainer import logprobs, preflight
from grpo_trainer.errors import SpecError, TrainerError, UserInputError
from tests.unit.trainer.trainer_support import VOCABULARY, make_spec


def llama(**entries: Any) -> PretrainedConfig:
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaConfig(**shape | {"intermediate_size": 96, "vocab_size": VOCABULARY} | entries)


@pytest.fixture
def check(tmp_path: Path):
    def check_config(config: PretrainedConfig, **sections: dict[str, Any]) -> int:
        config.save_pretrained(tmp_path)
        return preflight.check_model(make_spec(tmp_path, **sections))

    return check_config


def test_a_good_model_needs_no_weights(check):
    assert check(llama()) == VOCABULARY
    assert check(llama(vocab_size=300, tie_word_embeddings=True)) == 300


@pytest.mark.parametrize(
    ("config", "sections", "words"),
    [
        (
            llama(),
            {"rollout": {"tensorModelParallelSize": 3}, "trainer": {"nGpusPerNode": 6}},
            "spec.rollout.tensorModelParallelSize: does not divide the model's 4 attention heads and 2 key/value heads "
            "evenly; with trainer.nGpusPerNode 6 try 1 or 2 (got 3)",
        ),
        (
            llama(max_position_embeddings=100),
            {"data": {"maxPromptLength": 92}},
            "spec.data.maxResponseLength: + maxPromptLength 92 = 101 tokens, more than the model's 100 positions "
            "(max_position_embeddings): lower one of them (got 9)",
        ),
        (
            llama(sliding_window=64),
            {},
            "spec.model.attnImplementation: does not do the model's sliding window of 64 tokens, less than the longest "
            'sequence (maxPromptLength + maxResponseLength = 521): set eager, or lower the lengths (got "sdpa")',
        ),
    ],
)
def test_what_the_model_cannot_do(check, config, sections, words):
    with pytest.raises(SpecError) as error:
        check(config, **sections)
    assert (error.value.exit_code, error.value.reason, error.value.message) == (64, "ModelMismatch", words)


def test_scaled_positions_count(check):
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    assert check(llama(max_position_embeddings=300, rope_parameters=rope)) == VOCABULARY


@pytest.mark.parametrize(
    ("config", "reason", "words"),
    [
        (
            GPT2Config(n_embd=64, n_layer=2, n_head=2),
            "UnsupportedModel",
            "GPT2LMHeadModel has no list of decoder layers",
        ),
        (T5Config(d_model=64, num_layers=2, num_heads=2), "ModelNotLoaded", "(T5Config) is no causal language model"),
        (llama(logits_scaling=2.0), "UnsupportedModel", "has logits_scaling, which the trainer does not apply"),
    ],
)
def test_what_cannot_be_trained(check, config, reason, words):
    with pytest.raises(UserInputError) as error:
        check(config)
    assert (error.value.exit_code, error.value.reason) == (65, reason)
    assert words in error.value.message


def test_what_is_no_model(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserInputError, match="could not be loaded"):
        preflight.check_model(make_spec(tmp_path))
    with pytest.raises(UserInputError, match="the tokenizer could not be loaded"):
        preflight.load_tokenizer(ModelSpec(path=str(tmp_path)))


def test_tokens_without_an_embedding():
    preflight.check_tokens(ModelSpec(path="/m"), 255, VOCABULARY)
    for model, said in (
        (ModelSpec(path="/m"), 'spec.model.path: its tokenizer makes token 256 .* 256 embeddings: .*\\(got "/m"\\)'),
        (ModelSpec(path="/m", tokenizer_path="/t"), "spec.model.tokenizerPath: its tokenizer"),
    ):
        with pytest.raises(TrainerError, match=said) as error:
            preflight.check_tokens(model, 256, VOCABULARY)
        assert error.value.exit_code == 65


def test_the_memory_plan_knows_the_rows_of_logits():
    assert logprobs.CHUNK_ROWS == LOGIT_ROWS
