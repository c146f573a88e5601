"""The memory plan against peaks measured on one H200, and its warnings."""

from typing import Any

import pytest

from grpo_api.errors import FieldError
from grpo_api.job import GRPOJobSpec
from grpo_api.memory_plan import OVERHEAD_BYTES, MemoryPlan, gpu_bytes, make_memory_plan, memory_faults
from grpo_api.model_shape import KNOWN_SHAPES

H200 = 150_110_000_000
QWEN = "Qwen/Qwen2.5-1.5B"


def make_spec(**sections: dict[str, Any]) -> GRPOJobSpec:
    base: dict[str, dict[str, Any]] = {
        "model": {"path": QWEN},
        "data": {
            "train": {"files": ["/rows.jsonl"]},
            "trainBatchSize": 8,
            "maxPromptLength": 256,
            "maxResponseLength": 512,
        },
        "reward": {"functions": [{"name": "exact", "builtin": {"rule": "exact_match"}}]},
        "rollout": {"n": 8},
        "actor": {"ppoMiniBatchSize": 8},
        "trainer": {"totalSteps": 1},
    }
    return GRPOJobSpec.model_validate(base | {name: base.get(name, {}) | more for name, more in sections.items()})


def plan(spec: GRPOJobSpec, shape: str = QWEN, gpu: int = H200) -> MemoryPlan:
    return make_memory_plan(spec, KNOWN_SHAPES[shape], gpu)


# What torch.cuda.max_memory_allocated said of FsdpActor.update (second call) on one H200, torch 2.11, random weights:
# 8 responses of 512 tokens to each prompt of 256, in rows of at most the budget. The 19,420 tokens are the second row
# of a budget of 32768: the first one's backward ends before all gradients exist.
MEASURED = [
    ("kl loss", QWEN, {"useKlLoss": True}, {}, 36.76),
    ("19420 tokens", QWEN, {"ppoMaxTokenLenPerGpu": 19420}, {}, 31.44),
    ("4096 tokens", QWEN, {"ppoMaxTokenLenPerGpu": 4096}, {}, 29.09),
    ("entropy bonus", QWEN, {"entropyCoeff": 0.01}, {}, 31.40),
    ("no resharding", QWEN, {"fsdp": {"reshardAfterForward": False}}, {}, 32.23),
    ("long prompts", QWEN, {}, {"maxPromptLength": 2048, "maxResponseLength": 256}, 31.01),
    ("0.5B", "Qwen/Qwen2.5-0.5B", {}, {}, 12.13),
]


@pytest.mark.parametrize(("name", "shape", "actor", "data", "gigabytes"), MEASURED, ids=[case[0] for case in MEASURED])
def test_peak_of_an_update_on_one_gpu(name, shape, actor, data, gigabytes):
    found = plan(make_spec(actor={"ppoMiniBatchSize": 8, **actor}, data=data), shape)
    assert (found.update_bytes - OVERHEAD_BYTES) / 1e9 == pytest.approx(gigabytes, rel=0.03)


def test_while_sampling_the_trainer_keeps_weights_optimizer_and_reference():
    found = plan(make_spec(rollout={"gpuMemoryUtilization": 0.3}, actor={"ppoMiniBatchSize": 8, "useKlLoss": True}))
    assert found.rollout_bytes == 4 * 4 * found.parameters + OVERHEAD_BYTES + 0.3 * H200


def test_shards_shrink_with_gpus_and_the_engine_with_tensor_parallelism():
    one = plan(make_spec())
    four = plan(make_spec(trainer={"nGpusPerNode": 4}, rollout={"tensorModelParallelSize": 2}))
    assert one.weights_bytes == 4 * one.parameters == 4 * four.weights_bytes
    assert (one.optimizer_bytes, one.gradients_bytes) == (2 * one.weights_bytes, one.weights_bytes)
    assert one.engine_weights_bytes == 2 * one.parameters == 2 * four.engine_weights_bytes
    # 28 layers x 2 key/value heads x 128 x key and value x 2 bytes; each of two GPUs holds one of the heads.
    assert one.kv_cache_tokens == (one.engine_bytes - one.engine_weights_bytes) // 28672
    assert four.kv_cache_tokens == (four.engine_bytes - four.engine_weights_bytes) // 14336


def test_a_micro_batch_is_no_larger_than_the_mini_batch():
    actor = {"ppoMiniBatchSize": 8, "ppoMaxTokenLenPerGpu": 1_000_000}
    whole = plan(make_spec(actor=actor)).activations_bytes
    assert whole == plan(make_spec(actor=actor | {"ppoMaxTokenLenPerGpu": 64 * 768})).activations_bytes
    assert whole > plan(make_spec()).activations_bytes


def test_the_plain_engine_never_sleeps():
    found = plan(make_spec(rollout={"engine": "hf"}))
    assert found.engine_bytes > 2 * found.parameters
    vllm = plan(make_spec())
    assert found.update_bytes - vllm.update_bytes == found.engine_bytes


def test_adapters_alone_have_gradients_and_moments():
    """Qwen2.5-1.5B at rank 16: 28 layers of 16 x (inputs + outputs) of seven matrices. The base is the reference."""
    actor = {"ppoMiniBatchSize": 8, "useKlLoss": True}
    full, lora = plan(make_spec(actor=actor)), plan(make_spec(actor=actor, model={"path": "m", "lora": {"rank": 16}}))
    shape = KNOWN_SHAPES["Qwen/Qwen2.5-1.5B"]
    attention, mlp = 4 * 1536 + 2 * 1536 + 2 * 256, 3 * (1536 + 8960)
    assert lora.trained_parameters == 16 * 28 * (attention + mlp) == 18_464_768  # as PEFT counts them
    assert full.trained_parameters == shape.parameters
    gpus = round(4 * full.parameters / full.weights_bytes)
    assert lora.optimizer_bytes == 2 * 4 * lora.trained_parameters // gpus
    assert lora.gradients_bytes == 4 * lora.trained_parameters // gpus
    assert lora.weights_bytes == 4 * (shape.parameters + lora.trained_parameters) // gpus
    assert (full.reference_bytes > 0, lora.reference_bytes) == (True, 0)
    two = plan(make_spec(model={"path": "m", "lora": {"rank": 16, "targetModules": ["q_proj", "v_proj"]}}))
    assert two.trained_parameters == 16 * 28 * (2 * 1536 + 1536 + 256)


def warnings(gpu: str, shape: str = QWEN, **sections: dict[str, Any]) -> list[FieldError]:
    spec = make_spec(**sections)
    return memory_faults(spec, plan(spec, shape, gpu_bytes(gpu)))


def test_what_fits_gives_no_warning():
    assert warnings("H200") == []
    assert warnings("A100-80GB") == []


def test_a_share_that_leaves_too_little_for_the_trainer():
    (fault,) = warnings("80Gi", rollout={"gpuMemoryUtilization": 0.9}, actor={"useKlLoss": True})
    assert (fault.path, fault.value) == ("spec.rollout.gpuMemoryUtilization", 0.9)
    assert "the rollout takes 97.0 GiB of 80.0 GiB: 25.0 GiB of the trainer's" in fault.message
    assert "lower it to 0.68, or shard over more GPUs" in fault.message
    assert "actor.useKlLoss" in fault.message
    assert warnings("80Gi", rollout={"gpuMemoryUtilization": 0.68}, actor={"useKlLoss": True}) == []


def test_activations_that_exceed_the_gpu():
    (fault,) = warnings("32Gi", rollout={"gpuMemoryUtilization": 0.3}, actor={"ppoMaxTokenLenPerGpu": 32768})
    assert (fault.path, fault.value) == ("spec.actor.ppoMaxTokenLenPerGpu", 32768)
    assert "of it activations; lower it" in fault.message


def test_weights_that_exceed_the_gpu():
    found = warnings("H100", "Qwen/Qwen2.5-7B")
    assert {fault.path for fault in found} == {"spec.trainer.nGpusPerNode"}
    assert all("shard over more GPUs (trainer.nnodes, trainer.nGpusPerNode)" in fault.message for fault in found)


def test_a_share_without_room_for_one_response():
    (fault,) = warnings("80Gi", "Qwen/Qwen2.5-32B", trainer={"nGpusPerNode": 16}, rollout={"gpuMemoryUtilization": 0.5})
    assert fault.path == "spec.rollout.gpuMemoryUtilization"
    assert "a KV cache of 0 tokens, less than one response" in fault.message
    assert "raise rollout.tensorModelParallelSize" in fault.message


def test_gpu_types_and_sizes():
    assert gpu_bytes("H100-80GB") == gpu_bytes("h100") == gpu_bytes("h100_80gb") == 81559 * 2**20
    assert gpu_bytes("80Gi") == 80 * 2**30
    for text, words in (("A100", "several types"), ("K80", "no known type"), ("80", "no known type"), ("", "no known")):
        with pytest.raises(ValueError, match=f"{words}.*such as 80Gi"):
            gpu_bytes(text)
