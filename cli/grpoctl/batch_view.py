"""The batch plan as a table that says where each number comes from, in verl's terms."""

from typing import NamedTuple

from rich.table import Table

from grpo_api.batch_plan import BatchPlan
from grpo_api.spec.root import GRPOJobSpec


class PlanRow(NamedTuple):
    name: str
    value: str
    origin: str


def plan_rows(spec: GRPOJobSpec, plan: BatchPlan) -> list[PlanRow]:
    """Every number of the plan with its formula."""
    data, actor, rollout, trainer = spec.data, spec.actor, spec.rollout, spec.trainer
    tp, n = rollout.tensor_model_parallel_size, rollout.n
    longest = data.max_prompt_length + data.max_response_length
    rows = [
        ("GPUs", plan.gpus, f"trainer.nnodes {trainer.nnodes} x nGpusPerNode {trainer.n_gpus_per_node}"),
        ("prompts a step", plan.prompts_per_step, "data.trainBatchSize"),
        ("responses a step", plan.responses_per_step, f"{plan.prompts_per_step} prompts x rollout.n {n}"),
        ("rollout workers", plan.rollout_workers, f"{plan.gpus} GPUs / rollout.tensorModelParallelSize {tp}"),
        (
            "responses a rollout worker",
            plan.responses_per_rollout_worker,
            f"{plan.responses_per_step} / {plan.rollout_workers} rollout workers",
        ),
        ("responses a GPU", plan.responses_per_gpu, f"{plan.responses_per_step} / {plan.gpus} GPUs, for log-probs"),
        _log_prob_row(spec, plan),
        (
            "mini-batch, responses",
            plan.mini_batch_responses,
            f"actor.ppoMiniBatchSize {actor.ppo_mini_batch_size} prompts x rollout.n {n}, over all GPUs",
        ),
        (
            "mini-batch a GPU, responses",
            plan.mini_batch_responses_per_gpu,
            f"{plan.mini_batch_responses} / {plan.gpus} GPUs",
        ),
        _accumulation_row(spec, plan),
        (
            "updates a step",
            plan.updates_per_step,
            f"{plan.prompts_per_step} / ppoMiniBatchSize {actor.ppo_mini_batch_size} x ppoEpochs {actor.ppo_epochs}",
        ),
        (
            "tokens a pass, at most",
            plan.max_tokens_per_micro_batch,
            f"{actor.ppo_micro_batch_size_per_gpu} x (maxPromptLength + maxResponseLength = {longest})"
            if actor.ppo_micro_batch_size_per_gpu
            else "actor.ppoMaxTokenLenPerGpu" + ("" if actor.ppo_max_token_len_per_gpu else ", default"),
        ),
    ]
    if plan.steps_per_epoch is not None and data.train.reasoning_gym is not None:
        size = data.train.reasoning_gym.size
        tail = f"; {left} rows of each epoch are left out" if (left := size % plan.prompts_per_step) else ""
        rows.append(("steps an epoch", plan.steps_per_epoch, f"reasoningGym.size {size} / trainBatchSize{tail}"))
    epochs = f"trainer.totalEpochs {trainer.total_epochs}"
    origin = "trainer.totalSteps" if trainer.total_steps else epochs
    total = "?" if plan.total_steps is None else plan.total_steps
    rows.append(("steps in all", total, origin if plan.total_steps else f"{epochs}; known once the rows are read"))
    return [PlanRow(name, str(value), origin) for name, value, origin in rows]


def _log_prob_row(spec: GRPOJobSpec, plan: BatchPlan) -> tuple[str, int | str, str]:
    micro = spec.rollout.log_prob_micro_batch_size_per_gpu
    if micro is None:
        return "log-prob rounds a GPU", "-", "cut by tokens (logProbMaxTokenLenPerGpu), sequences packed"
    tp = spec.rollout.tensor_model_parallel_size
    worker = f", {micro * tp} at once on the {tp} GPUs of a rollout worker" if tp > 1 else ""
    return (
        "log-prob rounds a GPU",
        plan.log_prob_rounds_per_gpu or 0,
        f"{plan.responses_per_gpu} / rollout.logProbMicroBatchSizePerGpu {micro}{worker}",
    )


def _accumulation_row(spec: GRPOJobSpec, plan: BatchPlan) -> tuple[str, int | str, str]:
    micro = spec.actor.ppo_micro_batch_size_per_gpu
    if micro is None:
        return "accumulations an update", "-", "cut by tokens (ppoMaxTokenLenPerGpu), sequences packed"
    origin = f"{plan.mini_batch_responses_per_gpu} / actor.ppoMicroBatchSizePerGpu {micro}"
    return "accumulations an update", plan.accumulation_steps or 0, origin


def plan_table(spec: GRPOJobSpec, plan: BatchPlan) -> Table:
    """The rows for a terminal."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("BATCH PLAN")
    table.add_column("", justify="right", style="cyan")
    table.add_column("FROM", style="dim")
    for row in plan_rows(spec, plan):
        table.add_row(*row)
    return table
