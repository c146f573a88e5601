"""The batch plan: every number that follows from a spec's batch sizes, in verl's terms.

`data.trainBatchSize` and `actor.ppoMiniBatchSize` count prompts and are multiplied by `rollout.n`; micro-batch sizes
count responses (sequences) on each GPU. Formulas: verl 0.9, `verl/trainer/ppo/ray_trainer.py` and `verl/workers`.
"""

from math import gcd

from grpo_api.base import ApiModel
from grpo_api.errors import FieldError, InvalidJobError
from grpo_api.spec.root import GRPOJobSpec

DEFAULT_MAX_TOKEN_LEN_PER_GPU = 16384
"""Token budget of a round where neither a micro-batch size nor a budget is set (verl's default)."""


class BatchPlan(ApiModel):
    """Derived numbers of one training step."""

    gpus: int
    """GPUs of the gang: nnodes x nGpusPerNode."""
    prompts_per_step: int
    """Prompts a step."""
    responses_per_step: int
    """Prompts x n."""
    rollout_workers: int
    """Rollout engines: GPUs / tensorModelParallelSize."""
    responses_per_rollout_worker: int
    """Responses that each engine samples in a step."""
    responses_per_gpu: int
    """Responses whose log-probabilities each GPU computes in a step."""
    log_prob_rounds_per_gpu: int | None = None
    """Log-probability rounds on each GPU; unset where a token budget cuts them."""
    mini_batch_responses: int
    """Responses an optimizer update, over all GPUs."""
    mini_batch_responses_per_gpu: int
    """The same on each GPU."""
    accumulation_steps: int | None = None
    """Forward-backward passes an update on each GPU; unset where a token budget cuts them."""
    updates_per_step: int
    """Optimizer updates a step, ppoEpochs included."""
    max_tokens_per_micro_batch: int
    """Tokens at most in one forward-backward pass on a GPU."""
    steps_per_epoch: int | None = None
    """Full batches in the training rows, where their number is known from the spec."""
    total_steps: int | None = None
    """Steps of the whole run, where known from the spec."""


def _nearest(size: int, divides: int) -> str:
    """The divisors of `divides` next to `size`, as advice."""
    divisors = [d for d in range(1, divides + 1) if divides % d == 0]
    below = max((d for d in divisors if d < size), default=None)
    above = min((d for d in divisors if d > size), default=None)
    return " or ".join(str(d) for d in (below, above) if d is not None)


def _next_multiples(value: int, of: int) -> str:
    below, above = value // of * of, (value // of + 1) * of
    return f"{below} or {above}" if below else str(above)


def batch_faults(spec: GRPOJobSpec) -> list[FieldError]:
    """Every batch size that does not fit the others, with the nearest values that do."""
    gpus = spec.trainer.nnodes * spec.trainer.n_gpus_per_node
    n = spec.rollout.n
    train, mini, tp = (
        spec.data.train_batch_size,
        spec.actor.ppo_mini_batch_size,
        spec.rollout.tensor_model_parallel_size,
    )
    faults: list[FieldError] = []

    def fault(path: str, value: object, message: str) -> None:
        faults.append(FieldError(f"spec.{path}", value, message))

    if spec.trainer.n_gpus_per_node % tp:
        fault(
            "rollout.tensorModelParallelSize",
            tp,
            f"must divide trainer.nGpusPerNode ({spec.trainer.n_gpus_per_node}); "
            f"try {_nearest(tp, spec.trainer.n_gpus_per_node)}",
        )
    if train % mini:
        fault(
            "actor.ppoMiniBatchSize",
            mini,
            f"must divide data.trainBatchSize ({train} prompts); try {_nearest(mini, train)}",
        )
    if (mini * n) % gpus:
        step = gpus // gcd(gpus, n)
        fault(
            "actor.ppoMiniBatchSize",
            mini,
            f"x rollout.n = {mini} x {n} = {mini * n} responses must be divisible by the {gpus} GPUs "
            f"(trainer.nnodes x trainer.nGpusPerNode); try ppoMiniBatchSize {_next_multiples(mini, step)}",
        )
    gym = spec.data.train.reasoning_gym
    if gym is not None and gym.size < train:
        fault(
            "data.train.reasoningGym.size",
            gym.size,
            f"must fill one batch: data.trainBatchSize is {train} prompts; raise the one or lower the other",
        )
    # Where the mini-batch divides both, so does the train batch, which is a multiple of it.
    for path, micro, per_gpu, what in (
        ("actor.ppoMicroBatchSizePerGpu", spec.actor.ppo_micro_batch_size_per_gpu, mini * n, "mini-batch's"),
        ("rollout.logProbMicroBatchSizePerGpu", spec.rollout.log_prob_micro_batch_size_per_gpu, train * n, "step's"),
        ("ref.logProbMicroBatchSizePerGpu", spec.ref.log_prob_micro_batch_size_per_gpu, train * n, "step's"),
    ):
        if micro is not None and per_gpu % gpus == 0 and (per_gpu // gpus) % micro:
            fault(
                path,
                micro,
                f"must divide the {what} responses on each GPU: {per_gpu} / {gpus} GPUs = {per_gpu // gpus}; "
                f"try {_nearest(micro, per_gpu // gpus)}",
            )
    longest = spec.data.max_prompt_length + spec.data.max_response_length
    for path, budget in (
        ("actor.ppoMaxTokenLenPerGpu", spec.actor.ppo_max_token_len_per_gpu),
        ("rollout.logProbMaxTokenLenPerGpu", spec.rollout.log_prob_max_token_len_per_gpu),
        ("ref.logProbMaxTokenLenPerGpu", spec.ref.log_prob_max_token_len_per_gpu),
    ):
        if budget is not None and budget < longest:
            fault(
                path,
                budget,
                f"must hold one whole sequence: data.maxPromptLength + data.maxResponseLength = {longest}; "
                f"try {longest} or more",
            )
    return faults


def make_batch_plan(spec: GRPOJobSpec) -> BatchPlan:
    """The plan of a spec. Raises InvalidJobError with every fault where the sizes do not fit each other."""
    if faults := batch_faults(spec):
        raise InvalidJobError(faults)
    gpus = spec.trainer.nnodes * spec.trainer.n_gpus_per_node
    train, mini, n = spec.data.train_batch_size, spec.actor.ppo_mini_batch_size, spec.rollout.n
    workers = gpus // spec.rollout.tensor_model_parallel_size
    per_gpu, mini_per_gpu = train * n // gpus, mini * n // gpus
    micro, log_prob_micro = spec.actor.ppo_micro_batch_size_per_gpu, spec.rollout.log_prob_micro_batch_size_per_gpu
    longest = spec.data.max_prompt_length + spec.data.max_response_length
    budget = spec.actor.ppo_max_token_len_per_gpu or max(DEFAULT_MAX_TOKEN_LEN_PER_GPU, longest)
    gym = spec.data.train.reasoning_gym
    steps_per_epoch = gym.size // train if gym else None
    total = spec.trainer.total_steps
    if total is None and steps_per_epoch is not None and spec.trainer.total_epochs is not None:
        total = steps_per_epoch * spec.trainer.total_epochs
    return BatchPlan(
        gpus=gpus,
        prompts_per_step=train,
        responses_per_step=train * n,
        rollout_workers=workers,
        responses_per_rollout_worker=train * n // workers,
        responses_per_gpu=per_gpu,
        log_prob_rounds_per_gpu=per_gpu // log_prob_micro if log_prob_micro else None,
        mini_batch_responses=mini * n,
        mini_batch_responses_per_gpu=mini_per_gpu,
        accumulation_steps=mini_per_gpu // micro if micro else None,
        updates_per_step=train // mini * spec.actor.ppo_epochs,
        max_tokens_per_micro_batch=micro * longest if micro else budget,
        steps_per_epoch=steps_per_epoch,
        total_steps=total,
    )
