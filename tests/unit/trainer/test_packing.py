from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from grpo_trainer.attention import PACKED_ATTENTION
from grpo_trainer.errors import UserInputError
from grpo_trainer.logprobs import PolicyModel
from grpo_trainer.packing import idle_pack, pack_samples
from grpo_trainer.sample import Sample
from tests.unit.trainer.trainer_support import TEMPERATURE, VOCABULARY, make_model, make_samples, plain_log_probs


def test_layout_of_a_row() -> None:
    samples = [
        Sample([1, 2, 3], [10, 11], 0),
        Sample([4], [20], 1),
        Sample([1, 2, 3], [], 0),
        Sample([1, 2, 3], [12, 13, 14], 0),
    ]
    (pack,) = pack_samples(samples)
    assert pack.input_ids.tolist() == [[1, 2, 3, 10, 12, 13, 4]]
    assert pack.position_ids.tolist() == [[0, 1, 2, 3, 3, 4, 0]]
    assert pack.predict.tolist() == [2, 3, 2, 4, 5, 6]
    assert pack.targets.tolist() == [10, 11, 12, 13, 14, 20]
    assert (pack.samples, pack.lengths) == ((0, 3, 1), (2, 3, 1))
    visible = {row: [column for column in range(7) if pack.dense_mask[0, 0, row, column]] for row in range(7)}
    assert visible == {
        0: [0], 1: [0, 1], 2: [0, 1, 2], 3: [0, 1, 2, 3], 4: [0, 1, 2, 4], 5: [0, 1, 2, 4, 5], 6: [6],
    }  # fmt: skip
    segments = pack.segments
    assert segments.key_index.tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 4, 5, 6]
    assert segments.cu_query.tolist() == [0, 3, 4, 6, 7]
    assert segments.cu_key.tolist() == [0, 3, 7, 12, 13]
    assert (segments.max_query, segments.max_key) == (3, 5)


def test_rows_keep_to_their_limits_and_lose_no_sample() -> None:
    samples = make_samples()
    with_tokens = {index for index, sample in enumerate(samples) if sample.response_ids}
    for count in (1, 2, 3, 5):
        packs = pack_samples(samples, max_samples=count)
        assert [len(pack.samples) for pack in packs[:-1]] == [count] * (len(packs) - 1)
        assert sorted(index for pack in packs for index in pack.samples) == sorted(with_tokens)
    for tokens in (17, 20, 40, 1000):
        packs = pack_samples(samples, max_tokens=tokens)
        assert all(pack.num_tokens <= tokens for pack in packs)
        assert sorted(index for pack in packs for index in pack.samples) == sorted(with_tokens)
    whole = pack_samples(samples)[0].num_tokens
    assert [len(pack_samples(samples, max_tokens=whole - less)) for less in (0, 1)] == [1, 2]
    assert [len(pack.samples) for pack in pack_samples(samples, max_tokens=1)] == [1] * len(with_tokens)
    assert pack_samples([Sample([1], [], 0)]) == []


def test_a_shared_prompt_is_computed_once() -> None:
    samples = [Sample([1] * 100, [2] * 5, 0) for _ in range(8)]
    assert pack_samples(samples)[0].num_tokens == 100 + 8 * 4
    assert pack_samples(samples, share_prompts=False)[0].num_tokens == 8 * 104


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> LlamaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(make_model(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize("attention", [PACKED_ATTENTION, "eager"])
@pytest.mark.parametrize("cut", [{}, {"max_samples": 2}, {"max_tokens": 20}, {"share_prompts": False}])
def test_packed_log_probs_equal_one_sequence_at_a_time(
    lm: LlamaForCausalLM, attention: str, cut: dict[str, int]
) -> None:
    samples = make_samples()
    lm.set_attn_implementation("sdpa")
    with torch.no_grad():
        expected = [plain_log_probs(lm, sample) for sample in samples]
        lm.set_attn_implementation(attention)
        model = PolicyModel(lm, temperature=TEMPERATURE)
        seen = 0
        for pack in pack_samples(samples, **cut):
            log_probs, entropy = model(pack)
            for index, got, nats in zip(
                pack.samples, log_probs.split(pack.lengths), entropy.split(pack.lengths), strict=True
            ):
                torch.testing.assert_close(got, expected[index][0], atol=1e-5, rtol=0)
                torch.testing.assert_close(nats, torch.distributions.Categorical(logits=expected[index][1]).entropy())
                seen += 1
    assert seen == sum(1 for sample in samples if sample.response_ids)


def test_one_responses_tokens_do_not_reach_another(lm: LlamaForCausalLM) -> None:
    lm.set_attn_implementation(PACKED_ATTENTION)
    model = PolicyModel(lm, temperature=1.0)
    samples = [Sample([1, 2], [3, 4, 5], 0), Sample([1, 2], [6, 7, 8], 0), Sample([9], [10, 11], 1)]
    changed = [Sample([1, 2], [VOCABULARY - 1, 99, 98], 0), *samples[1:]]
    with torch.no_grad():
        before, after = (model(pack_samples(batch)[0])[0].split((3, 3, 2)) for batch in (samples, changed))
    assert not torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    assert torch.equal(before[2], after[2])


def test_an_idle_row_runs(lm: LlamaForCausalLM) -> None:
    lm.set_attn_implementation(PACKED_ATTENTION)
    log_probs, entropy = PolicyModel(lm, temperature=1.0)(idle_pack())
    assert log_probs.shape == entropy.shape == (1,)


def test_models_that_rows_would_compute_wrongly_are_refused(tmp_path: Path, lm: LlamaForCausalLM) -> None:
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = MistralConfig(**shape, intermediate_size=32, vocab_size=VOCABULARY, sliding_window=6)
    config._attn_implementation = PACKED_ATTENTION
    model = PolicyModel(MistralForCausalLM(config), temperature=1.0)
    model(pack_samples([Sample([1, 2], [3, 4, 5], 0)])[0])
    with pytest.raises(UserInputError, match="sliding window of 6 tokens"):
        model(pack_samples([Sample([1, 2], [3] * 9, 0)])[0])
    config.final_logit_softcapping = 30.0
    with pytest.raises(UserInputError, match="final_logit_softcapping"):
        PolicyModel(model.lm, temperature=1.0)


@pytest.mark.parametrize("family", [Qwen2Config, Qwen3Config, Phi3Config, MistralConfig])
def test_other_families_compute_the_same_packed(family: type[PretrainedConfig]) -> None:
    torch.manual_seed(0)
    config = family(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=96,
        vocab_size=VOCABULARY,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    lm = AutoModelForCausalLM.from_config(config).eval()
    samples = make_samples()
    with torch.no_grad():
        expected = [plain_log_probs(lm, sample)[0] for sample in samples]
        lm.set_attn_implementation(PACKED_ATTENTION)
        (pack,) = pack_samples(samples)
        got = PolicyModel(lm, temperature=TEMPERATURE)(pack)[0].split(pack.lengths)
    for index, log_probs in zip(pack.samples, got, strict=True):
        torch.testing.assert_close(log_probs, expected[index], atol=1e-5, rtol=0)
