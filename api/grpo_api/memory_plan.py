"""The memory plan: an estimate of what one GPU holds while it samples and while it learns. A pure function.

What is held is the trainer's: FSDP2 shards weights, gradients, Adam's two moments and the reference model in float32
over all GPUs; passes run in `model.dtype`, layers are recomputed in backward; vLLM takes its share of the GPU while it
samples and sleeps while the policy learns. Activations follow what backward keeps of a Llama layer (method: Korthikanti
et al. 2022, arXiv 2205.05198, section 4, for this family and this trainer's attention), and the formulas were checked
against the peaks of seven updates on one H200, which are in the test of this module.
"""

import re
from typing import Literal

from grpo_api.base import ApiModel
from grpo_api.batch_plan import make_batch_plan
from grpo_api.errors import FieldError
from grpo_api.model_shape import ModelShape
from grpo_api.quantity import QUANTITY_PATTERN, amount
from grpo_api.spec.model_data import LoraSpec
from grpo_api.spec.root import GRPOJobSpec

MIB, GIB = 2**20, 2**30
GPUS = {
    "A10G-24GB": 23028,
    "L4-24GB": 23034,
    "RTX4090-24GB": 24564,
    "A100-40GB": 40960,
    "L40S-48GB": 46068,
    "A100-80GB": 81920,
    "H100-80GB": 81559,
    "H200-141GB": 143771,
    "B200-180GB": 183359,
}
"""Memory in MiB as nvidia-smi shows it."""

LOGIT_ROWS = 1024
"""Rows of logits that the trainer makes at a time (`grpo_trainer.logprobs.CHUNK_ROWS`)."""
HF_RESPONSES = 64
"""Responses that the engine hf samples at a time at most (`grpo_trainer.rollout.hf.BATCH`)."""
OVERHEAD_BYTES = 2 * GIB
"""CUDA's context and NCCL (1.4 GB measured), and what a sleeping engine keeps (CUDA graphs)."""
_FLOAT32 = 4


class MemoryPlan(ApiModel):
    """Bytes on each GPU."""

    parameters: int
    """Of the model, a tied embedding counted once."""
    gpu_bytes: int
    """Memory of the GPU."""
    trained_parameters: int
    """All of them, or those of the adapters with `model.lora`."""
    weights_bytes: int
    """float32 weights, adapters included, / GPUs."""
    optimizer_bytes: int
    """Adam's two float32 moments of what is trained / GPUs."""
    reference_bytes: int
    """float32 weights of the reference model / GPUs, with `actor.useKlLoss`; 0 with `model.lora`, whose base it is."""
    gradients_bytes: int
    """float32 gradients of what is trained: sharded, or whole without `actor.fsdp.reshardAfterForward`."""
    gathered_bytes: int
    """Whole parameters in `model.dtype` that stay gathered from one optimizer step to the next; 0 with resharding."""
    activations_bytes: int
    """At most in one forward and backward pass: gathered layers, recompute checkpoints, one layer or the logits."""
    engine_bytes: int
    """The rollout engine's share of the GPU: weights, KV cache and all else."""
    engine_weights_bytes: int
    """Of it, weights in `model.dtype` / tensorModelParallelSize."""
    kv_cache_tokens: int
    """Tokens at most whose keys and values fit into the share beside the weights."""
    overhead_bytes: int
    """Libraries."""
    rollout_bytes: int
    """Sum while sampling."""
    update_bytes: int
    """Sum at the peak of an update."""


def gpu_bytes(gpu: str) -> int:
    """Memory of a GPU type of GPUS (`H100-80GB`, `h200`) or of a quantity (`80Gi`). Raises ValueError."""
    wanted = gpu.upper().replace("_", "-")
    found = [mib for name, mib in GPUS.items() if name == wanted or name.split("-")[0] == wanted]
    if len(found) == 1:
        return found[0] * MIB
    if not found and re.fullmatch(QUANTITY_PATTERN, gpu) and amount(gpu) >= GIB:
        return int(amount(gpu))
    raise ValueError(
        f"{gpu} is {'several types' if found else 'no known type'}: use {', '.join(GPUS)}, or a size such as 80Gi"
    )


def make_memory_plan(spec: GRPOJobSpec, shape: ModelShape, gpu: int) -> MemoryPlan:
    """The estimate for GPUs of `gpu` bytes. Raises InvalidJobError where the batch sizes do not fit each other."""
    plan = make_batch_plan(spec)
    whole, number = shape.parameters, _number_bytes(spec.model.dtype)
    lora = spec.model.lora
    trained = whole if lora is None else lora_parameters(lora, shape)
    adapters = 0 if lora is None else trained
    weights, shard = _FLOAT32 * (whole + adapters) // plan.gpus, _FLOAT32 * trained // plan.gpus
    gathered = 0 if spec.actor.fsdp.reshard_after_forward else number * (whole + adapters)
    tp = spec.rollout.tensor_model_parallel_size
    engine_weights = number * whole // tp
    if spec.rollout.engine == "hf":  # it never sleeps
        longest = spec.data.max_prompt_length + spec.data.max_response_length
        cached = min(spec.rollout.n, HF_RESPONSES) * longest
        engine = engine_weights + cached * shape.kv_bytes_per_token(1, number)
    else:
        engine = int(spec.rollout.gpu_memory_utilization * gpu)
    kept = engine if spec.rollout.engine == "hf" else 0
    reference = weights if spec.has_reference and lora is None else 0
    gradients = shard if not gathered else _FLOAT32 * trained
    activations = activation_bytes(spec, shape)
    standing = weights + 2 * shard + reference + gathered + OVERHEAD_BYTES
    return MemoryPlan(
        parameters=whole,
        trained_parameters=trained,
        gpu_bytes=gpu,
        weights_bytes=weights,
        optimizer_bytes=2 * shard,
        reference_bytes=reference,
        gradients_bytes=gradients,
        gathered_bytes=gathered,
        activations_bytes=activations,
        engine_bytes=engine,
        engine_weights_bytes=engine_weights,
        kv_cache_tokens=max(0, engine - engine_weights) // shape.kv_bytes_per_token(tp, number),
        overhead_bytes=OVERHEAD_BYTES,
        rollout_bytes=standing + engine,
        update_bytes=standing + kept + gradients + activations,
    )


def lora_parameters(lora: LoraSpec, shape: ModelShape) -> int:
    """Of all adapters: rank x (inputs + outputs) of each chosen matrix. A name that the Llama family does not have
    counts as its largest matrix."""
    hidden, queries, keys = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes = {
        "q_proj": hidden + queries,
        "k_proj": hidden + keys,
        "v_proj": hidden + keys,
        "o_proj": queries + hidden,
        "gate_proj": hidden + shape.intermediate,
        "up_proj": hidden + shape.intermediate,
        "down_proj": shape.intermediate + hidden,
    }
    targets = list(sizes) if lora.target_modules == ["all-linear"] else lora.target_modules
    largest = max(sizes.values())
    return lora.rank * shape.layers * sum(sizes.get(name, largest) for name in targets)


def _number_bytes(dtype: Literal["float32", "bfloat16"]) -> int:
    return {"float32": 4, "bfloat16": 2}[dtype]


def activation_bytes(spec: GRPOJobSpec, shape: ModelShape) -> int:
    """At most in the forward and backward pass of one micro-batch of T tokens, b bytes a number: the greatest of

    - at the LM head: every layer's input (b L T H), the gathered embeddings, their accumulated and their new gradient,
      and for 1024 rows of V logits in float32 the logits, their log-softmax, its exponential and their product (two
      more with an entropy bonus, which keeps them for backward);
    - in the last layer: the same inputs, embeddings and their gradient, this and the prefetched layer's parameters, its
      gradients in b and float32, and what its backward keeps of each token;
    - at the end: the embeddings, their gradient in b, and its float32 copy on the way to the other ranks.
    """
    plan = make_batch_plan(spec)
    b, hidden = _number_bytes(spec.model.dtype), shape.hidden
    prompt, response = spec.data.max_prompt_length, spec.data.max_response_length
    tokens = min(plan.max_tokens_per_micro_batch, plan.mini_batch_responses_per_gpu * (prompt + response))
    head = b * shape.vocabulary * hidden
    embeddings = b * shape.root_parameters
    gathered = embeddings if spec.actor.fsdp.reshard_after_forward else 0
    inputs = b * shape.layers * tokens * hidden
    copies = 6 if spec.actor.entropy_coeff else 4
    logits = copies * _FLOAT32 * min(LOGIT_ROWS, tokens) * shape.vocabulary
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    # Two norms keep their input in float32 and two b-wide tensors; attention its projections and output; the MLP four
    # tensors, and backward three gradients of them. A response's attention takes its prompt's keys along, as many as
    # there are query heads.
    a_token = 2 * (_FLOAT32 + 2 * b) * hidden + 2 * b * hidden + 3 * b * (queries + keys) + 7 * b * shape.intermediate
    a_token += int(2 * b * (queries + keys) * (prompt + response) / response)
    layer = (3 * b + _FLOAT32) * shape.layer_parameters + a_token * tokens
    return gathered + max(
        inputs + 2 * head + logits,
        inputs + head + layer,
        embeddings + _FLOAT32 * shape.root_parameters,
    )


def memory_faults(spec: GRPOJobSpec, memory: MemoryPlan) -> list[FieldError]:
    """Where the estimate exceeds the GPU: the field to change, its value, and to what."""
    faults: list[FieldError] = []
    fewer = _fewer_bytes(spec)
    kept = memory.rollout_bytes - memory.engine_bytes
    utilization = spec.rollout.gpu_memory_utilization
    longest = spec.data.max_prompt_length + spec.data.max_response_length
    if memory.rollout_bytes > memory.gpu_bytes:
        fits = int(100 * (memory.gpu_bytes - kept) / memory.gpu_bytes) / 100
        need = f"the rollout takes {gib(memory.rollout_bytes)} of {gib(memory.gpu_bytes)}: {gib(kept)} of the trainer's"
        if spec.rollout.engine == "hf" or fits * memory.gpu_bytes <= memory.engine_weights_bytes:
            faults.append(FieldError("spec.trainer.nGpusPerNode", spec.trainer.n_gpus_per_node, f"{need}; {fewer}"))
        else:
            message = f"{need} stay beside the engine; lower it to {fits:.2f}, or {fewer}"
            faults.append(FieldError("spec.rollout.gpuMemoryUtilization", utilization, message))
    if spec.rollout.engine == "vllm" and memory.kv_cache_tokens < longest:
        message = (
            f"the engine's {gib(memory.engine_bytes)} hold {gib(memory.engine_weights_bytes)} of weights and a KV "
            f"cache of {memory.kv_cache_tokens} tokens, less than one response (maxPromptLength + maxResponseLength = "
            f"{longest}); raise it, or raise rollout.tensorModelParallelSize"
        )
        faults.append(FieldError("spec.rollout.gpuMemoryUtilization", utilization, message))
    if memory.update_bytes > memory.gpu_bytes:
        need = f"an update takes {gib(memory.update_bytes)} of {gib(memory.gpu_bytes)}"
        standing = memory.update_bytes - memory.activations_bytes
        if standing > memory.gpu_bytes:
            message = f"{need}: {gib(standing)} before any activation; {fewer}"
            faults.append(FieldError("spec.trainer.nGpusPerNode", spec.trainer.n_gpus_per_node, message))
        else:
            micro, budget = spec.actor.ppo_micro_batch_size_per_gpu, spec.actor.ppo_max_token_len_per_gpu
            name = "ppoMicroBatchSizePerGpu" if micro else "ppoMaxTokenLenPerGpu"
            message = f"{need}, {gib(memory.activations_bytes)} of it activations; lower it, or {fewer}"
            faults.append(FieldError(f"spec.actor.{name}", micro or budget, message))
    return faults


def _fewer_bytes(spec: GRPOJobSpec) -> str:
    """What makes each GPU's part of the trainer's tensors smaller."""
    ways = ["shard over more GPUs (trainer.nnodes, trainer.nGpusPerNode)"]
    if not spec.actor.fsdp.reshard_after_forward:
        ways.append("set actor.fsdp.reshardAfterForward to true")
    if spec.has_reference and spec.model.lora is None:
        users = {"actor.useKlLoss": spec.actor.use_kl_loss, "algorithm.useKlInReward": spec.algorithm.use_kl_in_reward}
        ways.append(f"do without {' and '.join(name for name, used in users.items() if used)}")
    if spec.model.lora is None:
        ways.append("train adapters alone (model.lora)")
    return ", or ".join(ways)


def gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
