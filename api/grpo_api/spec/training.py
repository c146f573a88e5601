"""`algorithm`, `rollout`, `actor`, `ref` and `trainer`: how the model is trained."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from grpo_api.base import ApiModel, FreeObject, cel, cel_rules, exactly_one

Batch = Field(default=None, ge=1, le=1_048_576)

AdvEstimator = Literal[
    "grpo",
    "dr_grpo",
    "rloo",
    "opo",
    "gpg",
    "max_rl",
    "grpo_passk",
    "gdpo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "gae",
]


ImportPath = Annotated[
    str, Field(max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$")
]
"""`package.module:function`."""


class KlCtrlSpec(ApiModel):
    """How strongly the KL counts in the reward, and whether that adapts."""

    type: Literal["fixed", "adaptive"] = "fixed"
    """`fixed`: always `klCoef`. `adaptive`: `klCoef` at first, then raised while the KL is above `targetKl` and lowered
    while it is below."""
    kl_coef: float = Field(default=0.001, ge=0, le=100)
    """Factor of the KL in the reward."""
    target_kl: float = Field(default=0.1, gt=0, le=1000)
    """KL a token, in nats, that `adaptive` steers to."""
    horizon: int = Field(default=10_000, ge=1, le=1_000_000_000)
    """Responses over which `adaptive` changes its factor by at most a fifth."""


class FilterGroupsSpec(ApiModel):
    """DAPO's dynamic sampling: groups whose rewards are all equal teach nothing and are sampled anew."""

    enable: bool = False
    """Sample further prompts until `data.trainBatchSize` groups have differing rewards."""
    max_num_gen_batches: int = Field(default=10, ge=1, le=1000)
    """Batches of `data.trainBatchSize` prompts that a step may sample. With fewer groups at its end than a batch the
    step trains on those; with none the job fails."""


RolloutRs = Literal[
    "none",
    "token_k1",
    "token_k2",
    "token_k3",
    "seq_sum_k1",
    "seq_sum_k2",
    "seq_sum_k3",
    "seq_mean_k1",
    "seq_mean_k2",
    "seq_mean_k3",
    "seq_max_k2",
    "seq_max_k3",
]


class RolloutCorrectionSpec(ApiModel):
    """Importance sampling against the difference between the policy that sampled, in the rollout engine, and the one
    that trains: token losses are multiplied by the ratio of the two probabilities."""

    rollout_is: Literal["token", "sequence", "none"] = "token"
    """`token`: each token by its own ratio; `sequence`: all by the product over the response; `none`: metrics only."""
    rollout_is_threshold: float = Field(default=2.0, gt=0, le=1e6)
    """Upper bound of the weights; larger ones are truncated to it."""
    rollout_is_threshold_lower: float | None = Field(default=None, gt=0, le=1e6)
    """Where set, weights below this and above `rolloutIsThreshold` become 0 instead (IcePop's mask)."""
    rollout_rs: RolloutRs = "none"
    """Rejection: the policy loss leaves tokens out whose policies are too far apart, or responses, by the sum, mean or
    greatest of their tokens' figures. `k1` is the log ratio, `k2` half its square, `k3` ratio - 1 - log ratio."""
    rollout_rs_threshold: float = Field(default=2.0, gt=0, le=1e6)
    """Greatest figure that is kept. With `k1` a ratio of probabilities: those from 1 / rolloutRsThreshold to it are
    kept, of the geometric mean over the tokens with `seq_mean_k1`."""
    rollout_rs_threshold_lower: float | None = Field(default=None, gt=0, le=1e6)
    """Least ratio that is kept with `k1`, where not 1 / rolloutRsThreshold."""


class AlgorithmSpec(ApiModel):
    """How rewards become advantages."""

    adv_estimator: AdvEstimator = "grpo"
    """Advantage estimator. Against the own group's rewards: `grpo`, `dr_grpo` (not divided by their deviation), `rloo`
    (the mean of the others), `opo` (mean weighted by length), `gpg`, `max_rl` (divided by the mean), `grpo_passk`
    (only the best response), `gdpo` (each reward function by itself), `reinforce_plus_plus_baseline` (whitened over
    the step). Against the whole step: `reinforce_plus_plus`. Against a greedy response to the same prompt: `remax`.
    `gae` without a critic takes each token's reward as its value. Formulas and sources are in docs/algorithms.md."""
    adv_estimator_path: ImportPath | None = None
    """An estimator of your own instead of `advEstimator`: a function that the pods can import, such as
    `my_package.advantages:mine`. What it takes and returns is in docs/algorithms.md."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide a group's centred rewards by their standard deviation; false gives Dr.GRPO's advantage. Read by `grpo`,
    `grpo_passk` and `gdpo`."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount of a reward for each token before it. Read by `reinforce_plus_plus` and `gae`."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """GAE's lambda: 0 looks at the next token's reward alone, 1 at all later ones. Read by `gae`."""
    use_kl_in_reward: bool = False
    """Take the KL against the reference model off each token's reward, before advantages. It takes memory for a second
    copy of the weights, and a pass of log-probabilities by each model."""
    kl_penalty: Literal["kl", "abs", "mse", "low_var_kl"] = "kl"
    """Estimator of that KL, as `actor.klLossType` explains."""
    kl_ctrl: KlCtrlSpec = Field(default_factory=KlCtrlSpec)
    """Its coefficient; read only with `useKlInReward`."""
    filter_groups: FilterGroupsSpec = Field(default_factory=FilterGroupsSpec)
    """DAPO's dynamic sampling."""
    rollout_correction: RolloutCorrectionSpec = Field(default_factory=RolloutCorrectionSpec)
    """Correction of the difference between rollout engine and trainer."""
    mask_truncated_responses: bool = False
    """Leave responses that were cut at `data.maxResponseLength` out of the loss (DAPO's overlong filtering). Their
    rewards still count in their groups."""


class ValKwargsSpec(ApiModel):
    """How responses are sampled in validation; nothing is trained on them."""

    model_config = ConfigDict(
        json_schema_extra=cel_rules(
            cel(
                "!has(self.n) || self.n == 1 || (has(self.temperature) && self.temperature > 0.0)",
                "several responses need a temperature above 0, or all are the same: set temperature, or n: 1",
                fieldPath=".n",
            )
        )
    )
    n: int = Field(default=1, ge=1, le=4096)
    """Responses a validation prompt. Put the key in quotes, as that of `rollout.n`."""
    temperature: float = Field(default=0.0, ge=0, le=2)
    """Sampling temperature of validation; 0 takes the most likely token each time (greedy)."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the fewest tokens whose probabilities add up to this share; 1 takes all. Read above temperature 0."""
    top_k: int = Field(default=-1, ge=-1, le=1_000_000)
    """Sample from so many most likely tokens; -1 or 0 takes all. Read above temperature 0."""


class RolloutSpec(ApiModel):
    """How responses are sampled: `n` for each prompt, by engines that hold the current policy's weights."""

    engine: Literal["vllm", "hf"] = "vllm"
    """`vllm`; or `hf`, plain Transformers, slow and for debugging, with a whole model on each GPU. sglang is not in
    this API yet."""
    n: int = Field(default=8, ge=2, le=4096)
    """Responses a prompt: the group whose rewards are compared. Put the key in quotes, `"n": 8`: kubectl reads a bare n
    as false."""
    tensor_model_parallel_size: int = Field(default=1, ge=1, le=64)
    """GPUs of one node that share a rollout engine and its weights; divides `trainer.nGpusPerNode`."""
    temperature: float = Field(default=1.0, gt=0, le=2)
    """Sampling temperature. The policy that is trained is the tempered distribution, all of it."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the fewest tokens whose probabilities add up to this share; 1 takes all. With this, `topK` or `minP`
    the policy that samples is no longer the one that is trained: see docs/algorithms.md before you set them."""
    top_k: int = Field(default=-1, ge=-1, le=1_000_000)
    """Sample from so many most likely tokens; -1 or 0 takes all."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Sample from tokens at least so likely, as a share of the most likely one's probability; 0 takes all."""
    gpu_memory_utilization: float = Field(default=0.5, gt=0, le=1)
    """Share of a GPU's memory, as a ratio from 0 to 1, for the rollout engine's weights and KV cache. On CPUs,
    VLLM_CPU_KVCACHE_SPACE (GiB) sizes the cache instead."""
    enforce_eager: bool = False
    """Skip CUDA graphs and compilation: a faster start, slower sampling. Always so on CPUs."""
    log_prob_micro_batch_size_per_gpu: int | None = Batch
    """Responses in one log-probability round on each GPU; divides the step's responses on each GPU. Excludes
    `logProbMaxTokenLenPerGpu`."""
    log_prob_max_token_len_per_gpu: int | None = Batch
    """Tokens at most in one log-probability round on each GPU, prompts included; at least maxPromptLength +
    maxResponseLength. 16384 where neither is set."""
    seed: int = Field(default=1, ge=0, le=2**31 - 1)
    """Seed of the sampler; every response has its own, made from this one, the step and its place."""
    val_kwargs: ValKwargsSpec = Field(default_factory=ValKwargsSpec)
    """Sampling in validation (`data.val`)."""
    engine_args: FreeObject = Field(default_factory=dict)
    """Further vLLM engine arguments, by their Python names, such as `max_num_seqs: 256`; vLLM checks them when it
    starts."""


class OptimSpec(ApiModel):
    """AdamW and its schedule."""

    lr: float = Field(default=1e-6, gt=0, le=1)
    """Peak learning rate, such as 1e-6."""
    weight_decay: float = Field(default=0.01, ge=0, le=1)
    """Decoupled weight decay, a factor of the learning rate."""
    betas: list[Annotated[float, Field(ge=0, lt=1)]] = Field(default=[0.9, 0.999], min_length=2, max_length=2)
    """Adam's two decay rates, of the mean and of the square, each from 0 to below 1."""
    lr_warmup_steps: int = Field(default=0, ge=0, le=1_000_000)
    """Optimizer updates (not steps) over which the learning rate rises from 0."""
    lr_scheduler_type: Literal["constant", "cosine", "linear"] = "constant"
    """Course of the learning rate after the warm-up, over the job's updates."""


class FsdpSpec(ApiModel):
    """Sharding (FSDP2)."""

    reshard_after_forward: bool = True
    """Free gathered parameters after forward and gather them again for backward: less memory, more traffic."""


LossMode = Literal["vanilla", "gspo", "cispo", "sapo", "geo_mean", "dppo_tv", "dppo_kl", "gpg", "clip_cov", "kl_cov"]
LossAggMode = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
KlType = Literal["kl", "abs", "mse", "low_var_kl", "kl+", "abs+", "low_var_kl+"]


class PolicyLossSpec(ApiModel):
    """What a token costs, given its advantage and the ratio of its new and old probabilities."""

    model_config = ConfigDict(
        json_schema_extra=cel_rules(
            cel(
                "!has(self.clipCovLb) || !has(self.clipCovUb) || self.clipCovLb < self.clipCovUb",
                "clipCovLb must be less than clipCovUb: no covariance is between them",
                fieldPath=".clipCovLb",
            )
        )
    )
    loss_mode: LossMode = "vanilla"
    """`vanilla`: PPO's clipped ratio; `gspo`: the ratio of the whole response; `cispo`: clipped ratios as weights;
    `sapo`: a smooth gate for the clip; `geo_mean`: GMPO's geometric mean of ratios; `dppo_tv`, `dppo_kl`: tokens
    left out by how far their probability moved; `gpg`: no ratio at all; `clip_cov`, `kl_cov`: tokens left out, or held
    by a KL, whose probability and advantage vary together the most. `sapo` and `geo_mean` are means over responses
    of means over tokens, whatever `lossAggMode` says. Formulas and sources are in docs/algorithms.md."""
    loss_path: ImportPath | None = None
    """A loss of your own instead of `lossMode`: a function that the pods can import, such as `my_package.losses:mine`.
    What it takes and returns is in docs/algorithms.md."""
    clip_cov_ratio: float = Field(default=0.0002, gt=0, le=1)
    """Share of a mini-batch's tokens that `clip_cov` leaves out, one at least."""
    clip_cov_lb: float = Field(default=1.0, ge=-1e6, le=1e6)
    """Covariance above which `clip_cov` may leave a token out; below `clipCovUb`."""
    clip_cov_ub: float = Field(default=5.0, ge=-1e6, le=1e6)
    """Covariance below which `clip_cov` may leave a token out."""
    kl_cov_ratio: float = Field(default=0.0002, gt=0, le=1)
    """Share of a mini-batch's tokens that `kl_cov` penalises, one at least: those with the greatest covariance."""
    ppo_kl_coef: float = Field(default=0.1, ge=0, le=100)
    """Factor of the penalty of `kl_cov`, the absolute log ratio of new and old probability."""


class ActorSpec(ApiModel):
    """The policy's update."""

    ppo_mini_batch_size: int = Field(ge=1, le=1_048_576)
    """Prompts in one optimizer update (verl's `ppo_mini_batch_size`), each with its `rollout.n` responses; divides
    `data.trainBatchSize`."""
    ppo_micro_batch_size_per_gpu: int | None = Batch
    """Responses in one forward and backward pass on each GPU; divides the mini-batch's responses on each GPU. Excludes
    `ppoMaxTokenLenPerGpu`."""
    ppo_max_token_len_per_gpu: int | None = Batch
    """Tokens at most in one forward and backward pass on each GPU, prompts included; at least maxPromptLength +
    maxResponseLength. 16384 where neither is set."""
    ppo_epochs: int = Field(default=1, ge=1, le=64)
    """Passes over a step's responses, each of trainBatchSize / ppoMiniBatchSize updates."""
    policy_loss: PolicyLossSpec = Field(default_factory=PolicyLossSpec)
    """The policy loss."""
    clip_ratio: float = Field(default=0.2, gt=0, le=1)
    """Clip range: the probability ratio is held between 1 - clipRatio and 1 + clipRatio. A bound on its logarithm with
    the loss `geo_mean`, on the divergence with `dppo_tv` and `dppo_kl`; not read by `sapo` and `gpg`."""
    clip_ratio_low: float | None = Field(default=None, gt=0, le=10)
    """Clip range below 1; `clipRatio` where unset. From 1 on there is no bound below, as is usual with `cispo`."""
    clip_ratio_high: float | None = Field(default=None, gt=0, le=10)
    """Clip range above 1 (DAPO's clip-higher); `clipRatio` where unset."""
    clip_ratio_c: float = Field(default=3.0, gt=1, le=100)
    """Dual-clip bound of the loss `vanilla`: the most that the ratio may weigh where the advantage is negative. With
    `dppo_tv` and `dppo_kl` the most it may weigh anywhere (20 is usual there). Other losses do not read it."""
    tau_pos: float = Field(default=1.0, gt=0, le=100)
    """Temperature of the loss `sapo` where the advantage is positive: a higher one makes its gate narrower."""
    tau_neg: float = Field(default=1.05, gt=0, le=100)
    """Temperature of the loss `sapo` elsewhere."""
    loss_agg_mode: LossAggMode = "token-mean"
    """How token losses become one number: the mean or the sum over tokens; or the mean over responses of each one's
    sum, mean, or sum divided by `data.maxResponseLength`. Counts are over the whole mini-batch, across GPUs."""
    use_kl_loss: bool = False
    """Add to the loss a KL penalty against the reference model, which takes memory for a second copy of the weights."""
    kl_loss_coef: float = Field(default=0.001, ge=0, le=100)
    """Coefficient of the KL loss; read only with `useKlLoss`."""
    kl_loss_type: KlType = "low_var_kl"
    """Estimator of the KL divergence a token: `kl` (k1, the log ratio), `abs` (its absolute value), `mse` (k2, half its
    square) or `low_var_kl` (k3, never negative and of low variance). With a `+`, such as `low_var_kl+`, the value is
    that estimator's and the gradient is that of `mse`, which is right on average, unlike those of k1 and k3."""
    entropy_coeff: float = Field(default=0.0, ge=0, le=100)
    """Coefficient of the entropy bonus."""
    grad_clip: float = Field(default=1.0, gt=0, le=1e6)
    """Norm of the whole gradient above which it is scaled down to it."""
    optim: OptimSpec = Field(default_factory=OptimSpec)
    """AdamW and its schedule."""
    fsdp: FsdpSpec = Field(default_factory=FsdpSpec)
    """Sharding of weights, gradients and optimizer over all GPUs."""


class RefSpec(ApiModel):
    """The frozen reference model; loaded only with `actor.useKlLoss` or `algorithm.useKlInReward`."""

    log_prob_micro_batch_size_per_gpu: int | None = Batch
    """Responses in one round of the reference model on each GPU; divides the step's responses on each GPU. As for the
    rollout where neither is set."""
    log_prob_max_token_len_per_gpu: int | None = Batch
    """Tokens at most in one round of the reference model on each GPU. Excludes `logProbMicroBatchSizePerGpu`."""


class TrainerSpec(ApiModel):
    """Length and size of the run: exactly one of `totalSteps` and `totalEpochs`."""

    model_config = ConfigDict(
        json_schema_extra=cel_rules(exactly_one("totalSteps", "totalEpochs", example="totalSteps: 100"))
    )
    total_steps: int | None = Field(default=None, ge=1, le=10_000_000)
    """Steps to train; a step is one batch of prompts sampled, scored and learned from."""
    total_epochs: int | None = Field(default=None, ge=1, le=100_000)
    """Passes over the training rows; a last batch that is not full is left out of each."""
    nnodes: int = Field(default=1, ge=1, le=512)
    """Pods of the gang, each on a node of its own or not, as the scheduler places them."""
    n_gpus_per_node: int = Field(default=1, ge=1, le=16)
    """GPUs a pod; one worker process runs on each."""
    save_freq: int = Field(default=20, ge=-1, le=10_000_000)
    """Steps between checkpoints; the last step is always saved. -1 or 0 saves the last step only."""
    test_freq: int = Field(default=20, ge=-1, le=10_000_000)
    """Steps between validations; the last step is always validated. -1 or 0: none after the first step. Read only with
    `data.val`."""
    val_before_train: bool = True
    """Validate the model before the first step, too. Read only with `data.val`."""
