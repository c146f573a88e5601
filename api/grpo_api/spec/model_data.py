"""`model` and `data`: what is trained, on what."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from grpo_api.base import ApiModel, FreeObject, Path, ShortText, cel, cel_rules, exactly_one


class LoraSpec(ApiModel):
    """Low-rank adapters: the model's own weights stay as they are, and two small matrices beside each chosen one learn.
    There is no dropout: old and new log-probabilities must come from the same function."""

    rank: int = Field(ge=1, le=4096)
    """Rank of the adapters; 16 to 64 are usual."""
    alpha: float = Field(default=16, gt=0, le=1_000_000)
    """The adapters' output counts alpha / rank times."""
    target_modules: list[ShortText] = Field(default=["all-linear"], min_length=1, max_length=64)
    """Names of linear layers within a decoder layer, such as `q_proj`; `all-linear` alone: all of them."""


class ModelSpec(ApiModel):
    """The model that is trained. Its starting weights are also the reference model of `actor.useKlLoss`."""

    model_config = ConfigDict(
        json_schema_extra=cel_rules(
            cel(
                "self.attnImplementation != 'flash_attention_2' || self.dtype == 'bfloat16'",
                "flash_attention_2 takes bfloat16 only: set sdpa, or dtype: bfloat16",
                fieldPath=".attnImplementation",
            )
        )
    )
    path: Path
    """Causal language model in Transformers' format: a directory inside the pod, such as `/models/m`, or a hub id, such
    as `Qwen/Qwen2.5-1.5B-Instruct`."""
    revision: ShortText | None = None
    """Commit, tag or branch of a hub id; the hub's default branch where unset. A directory has none."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of the numbers in forward and backward passes and in the rollout engine; weights and optimizer stay float32.
    Use float32 on CPUs."""
    attn_implementation: Literal["sdpa", "flash_attention_2", "eager"] = "sdpa"
    """Attention of the training passes, by Transformers' names; the rollout engine chooses its own."""
    lora: LoraSpec | None = None
    """Train low-rank adapters instead of all weights. The model without them is the reference, so that a KL takes no
    second copy. Checkpoints hold the adapter in PEFT's format. Learning rates are usually ten times those of full
    training."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Leave off unless you have read that code."""
    tokenizer_path: Path | None = None
    """Directory or hub id of the tokenizer; the model's own where unset."""
    chat_template: str | None = Field(default=None, max_length=65536)
    """Text of a Jinja chat template that replaces the tokenizer's, at most 65536 characters."""


class ReasoningGymSource(ApiModel):
    """A procedurally generated task of the reasoning-gym library; no download."""

    task: ShortText
    """Name of the reasoning-gym dataset, such as `basic_arithmetic`."""
    size: int = Field(ge=1, le=100_000_000)
    """Rows to generate; at least `data.trainBatchSize`."""
    seed: int = Field(default=1, ge=0)
    """Seed of the generator: the same seed gives the same rows."""
    params: FreeObject = Field(default_factory=dict)
    """Further parameters of the task's configuration, by their reasoning-gym names, such as `min_digits: 1`."""


class HubSource(ApiModel):
    """A dataset on a hub that the pods can reach."""

    path: ShortText
    """Hub id, such as `openai/gsm8k`."""
    name: ShortText | None = None
    """Configuration of the dataset, such as `main`; its only one where unset."""
    split: ShortText = "train"
    """Split to read, such as `train` or `train[:1000]`."""
    revision: ShortText | None = None
    """Commit, tag or branch; the default branch where unset."""


Files = Annotated[list[Path] | None, Field(min_length=1, max_length=256)]


class MixedSource(ApiModel):
    """One of several datasets: exactly one of `files`, `hub` or `reasoningGym`."""

    model_config = ConfigDict(
        json_schema_extra=cel_rules(exactly_one("files", "hub", "reasoningGym", example="files: [/data/train.parquet]"))
    )
    files: Files = None
    """As `data.train.files`."""
    hub: HubSource | None = None
    """As `data.train.hub`."""
    reasoning_gym: ReasoningGymSource | None = None
    """As `data.train.reasoningGym`."""
    weight: float | None = Field(default=None, gt=0, le=1_000_000)
    """Share of this dataset among the prompts of each batch, against the other weights; 1 where unset. Not in
    `data.val`, where all rows are taken."""
    prompt_key: ShortText | None = None
    """As `data.promptKey`, for these rows."""
    ground_truth_key: ShortText | None = None
    """As `data.groundTruthKey`, for these rows."""


class DataSource(ApiModel):
    """Rows of prompts: exactly one of `files`, `hub`, `reasoningGym` or `mix`."""

    model_config = ConfigDict(
        json_schema_extra=cel_rules(
            exactly_one("files", "hub", "reasoningGym", "mix", example="files: [/data/train.parquet]")
        )
    )
    files: Files = None
    """Paths of Parquet, JSONL, JSON or CSV files inside the pod, directories of them, or globs; read one after the
    other. All but Parquet may be compressed (.gz, .bz2, .zst)."""
    hub: HubSource | None = None
    """A dataset on a hub that the pods can reach."""
    reasoning_gym: ReasoningGymSource | None = None
    """Rows generated by the reasoning-gym library, without a download."""
    mix: list[MixedSource] | None = Field(default=None, min_length=1, max_length=32)
    """Several datasets at once: mixed by weight in training, all rows of each in validation."""


class DataSpec(ApiModel):
    """Prompts and their batches."""

    model_config = ConfigDict(
        json_schema_extra=cel_rules(
            cel(
                "!has(self.val) || !has(self.val.mix) || self.val.mix.all(one, !has(one.weight))",
                "validation takes all rows of each dataset: remove the weights",
                fieldPath=".val.mix",
            )
        )
    )
    train: DataSource
    """Where the training rows come from: exactly one of `files`, `hub`, `reasoningGym` and `mix`."""
    val: DataSource | None = None
    """Where the validation rows come from (verl's `data.val_files`): exactly one of `files`, `hub`, `reasoningGym`
    and `mix`; no validation where unset. The fields below hold for them too, but for `trainBatchSize`, `shuffle` and
    `seed`."""
    val_batch_size: int = Field(default=1024, ge=1, le=1_048_576)
    """Prompts that a validation samples and scores at a time, each `rollout.valKwargs.n` times. No number of its result
    depends on it."""
    val_max_samples: int | None = Field(default=None, ge=1, le=100_000_000)
    """Validation rows at most, spread evenly over all of them; all where unset."""
    prompt_key: ShortText = "prompt"
    """Column that holds the prompt: a string, or a list of chat messages."""
    ground_truth_key: ShortText = "reward_model.ground_truth"
    """Column that holds the answer for reward functions; dots descend into objects (by default verl's row shape)."""
    data_source_key: ShortText = "data_source"
    """Column that names the row's origin, given to verl-style reward functions."""
    system_prompt: str | None = Field(default=None, max_length=16384)
    """System message put before each prompt; none where unset."""
    prompt_template: str = Field(
        default="{prompt}",
        max_length=16384,
        json_schema_extra=cel_rules(
            cel("self.contains('{prompt}')", "must hold {prompt}, which stands for the row's prompt: add it")
        ),
    )
    """Text of the user message; `{prompt}` stands for the row's prompt. Applies to string prompts."""
    apply_chat_template: bool = True
    """Wrap prompts in the tokenizer's chat template."""
    chat_template_kwargs: FreeObject = Field(default_factory=dict)
    """Arguments of the chat template (verl's `data.apply_chat_template_kwargs`), such as `enable_thinking: false`."""
    train_batch_size: int = Field(ge=1, le=1_048_576)
    """Prompts a step (verl's `data.train_batch_size`); each is answered `rollout.n` times."""
    max_prompt_length: int = Field(default=512, ge=1, le=1_048_576)
    """Tokens at most in a prompt, chat template included."""
    max_response_length: int = Field(default=512, ge=1, le=1_048_576)
    """Tokens at most in a response; longer ones are cut there."""
    overlong_prompts: Literal["Error", "Drop", "TruncateLeft", "TruncateRight"] = "Error"
    """What happens to a prompt longer than `maxPromptLength`: end the job with the row's number, drop the row, or cut
    tokens off its beginning (`TruncateLeft`) or its end. Log and metrics count them."""
    shuffle: bool = True
    """Draw a new order of the rows for each epoch; false keeps theirs."""
    seed: int = Field(default=1, ge=0, le=2**31 - 1)
    """Seed of the row order."""
