"""The memory plan as a table, and where the model's shape comes from."""

import json
from pathlib import Path
from typing import Any

from rich.table import Table

from grpo_api.memory_plan import GIB, MemoryPlan
from grpo_api.model_shape import ModelShape, known_shape, model_faults, shape_of
from grpo_api.names import ExitCode
from grpo_api.spec.root import GRPOJobSpec
from grpoctl.errors import CliError


def find_shape(spec: GRPOJobSpec, given: Path | None) -> ModelShape | None:
    """The shape of the model: by the given config.json, by that in `model.path` where this machine has it, or of a
    known hub id; None where nothing tells. Raises CliError where the spec asks of the model what it cannot do."""
    file = Path(spec.model.path) if given is None else given
    file = file / "config.json" if file.is_dir() else file
    if given is None and not file.is_file():
        known = known_shape(spec.model.path)
        if known is not None:
            _refuse(spec, {"num_attention_heads": known.heads, "num_key_value_heads": known.kv_heads})
        return known
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        shape = shape_of(config if isinstance(config, dict) else {})
    except (OSError, ValueError) as error:
        if given is None:
            return None  # the batch plan is good without it
        raise CliError(f"--model-config {given}: {error}", ExitCode.BAD_SPEC) from error
    _refuse(spec, config)
    return shape


def _refuse(spec: GRPOJobSpec, config: dict[str, Any]) -> None:
    if faults := model_faults(spec, config):
        raise CliError("\n".join(map(str, faults)), ExitCode.BAD_SPEC)


def memory_table(spec: GRPOJobSpec, memory: MemoryPlan) -> Table:
    """For a terminal, in GiB on each GPU."""
    gpus = spec.trainer.nnodes * spec.trainer.n_gpus_per_node
    tp, dtype = spec.rollout.tensor_model_parallel_size, spec.model.dtype
    sharded = f"{memory.parameters / 1e9:.2f}e9 parameters, float32, / {gpus} GPUs"
    trained = f" of {memory.trained_parameters / 1e6:.1f}e6 adapter parameters" if spec.model.lora else ""
    micro = spec.actor.ppo_micro_batch_size_per_gpu
    cut = "ppoMicroBatchSizePerGpu" if micro else "ppoMaxTokenLenPerGpu"
    share = f"rollout.gpuMemoryUtilization {spec.rollout.gpu_memory_utilization:g} of the GPU"
    rows: list[tuple[str, int, str]] = [
        ("weights", memory.weights_bytes, sharded),
        ("optimizer", memory.optimizer_bytes, f"Adam's two moments{trained}, likewise"),
        ("reference", memory.reference_bytes, "for a KL in loss or reward, likewise"),
        ("gathered weights", memory.gathered_bytes, f"actor.fsdp.reshardAfterForward is false; {dtype}"),
        ("libraries", memory.overhead_bytes, "CUDA, NCCL, what a sleeping engine keeps"),
        (
            "rollout engine",
            memory.engine_bytes,
            f"{share if spec.rollout.engine == 'vllm' else 'hf: a whole model'}; weights "
            f"{memory.engine_weights_bytes / GIB:.1f} ({dtype} / TP {tp}), KV cache of {memory.kv_cache_tokens} tokens "
            "at most",
        ),
        ("gradients", memory.gradients_bytes, "float32, while updating"),
        ("activations", memory.activations_bytes, f"at most in one pass (actor.{cut}), while updating"),
    ]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("MEMORY A GPU, ESTIMATED")
    table.add_column("GiB", justify="right", style="cyan")
    table.add_column("FROM", style="dim")
    for name, size, origin in rows:
        if size:
            table.add_row(name, f"{size / GIB:.1f}", origin)
    for name, size in (("while sampling", memory.rollout_bytes), ("while updating", memory.update_bytes)):
        style = "bold red" if size > memory.gpu_bytes else "bold"
        table.add_row(name, f"{size / GIB:.1f}", f"of {memory.gpu_bytes / GIB:.1f}", style=style)
    return table
