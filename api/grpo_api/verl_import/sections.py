"""Keys that are read together: names, data, estimator, engine, batch sizes, schedule, checkpoints."""

import re
from typing import get_args

from grpo_api.names import MAX_JOB_NAME_LENGTH
from grpo_api.spec.training import AdvEstimator, RolloutRs, RolloutSpec
from grpo_api.verl_import.draft import ENGINE_KWARGS, KL_COEF, TEMPLATE_KWARGS, Draft
from grpo_api.verl_import.keys import ACTOR, CARRIED, KL_TYPES, LOSS_MODES, MODEL, REF, ROLLOUT, ROLLOUT_CORRECTION

DEFAULT_MODEL = "deepseek-ai/deepseek-llm-7b-chat"
"""Hub id of the model that verl's default path names."""
PLACEHOLDER = "/REPLACE-ME"
DEFAULT_FILES = f"{PLACEHOLDER}/data/rlhf/gsm8k/train.parquet"
CLAIM_SIZE = "50Gi"
_TRUNCATION = {"error": "Error", "left": "TruncateLeft", "right": "TruncateRight"}
_ESTIMATORS = {name: name for name in get_args(AdvEstimator) if name not in ("gae", "gdpo")}
_ESTIMATORS |= {"grpo_vectorized": "grpo", "rloo_vectorized": "rloo"}
_NO_ESTIMATOR = {
    "gae": "needs a critic, which this API does not have yet",
    "gdpo": "takes its rewards from the keys of one function's answer in verl, here from several reward.functions",
}


def job_name(draft: Draft, name: str | None) -> str:
    """The given name, else one made from the experiment's or the project's."""
    made = None
    for key in ("trainer.experiment_name", "trainer.project_name"):
        setting = draft.given(key)
        if setting is None:
            continue
        clean = re.sub(r"[^a-z0-9]+", "-", str(setting.value).lower()).strip("-")
        clean = re.sub(r"^[^a-z]+", "", clean)[:MAX_JOB_NAME_LENGTH].strip("-")
        if name is None and made is None and clean:
            made = clean
            draft.carry(key, "metadata.name", f"as {clean}")
        else:
            draft.leave(key, "the job has one name")
    return name or made or "verl-import"


def model_and_data(draft: Draft) -> None:
    put_paths(draft, MODEL + "path", "model.path", DEFAULT_MODEL, "verl's default is a copy of this one")
    put_paths(draft, "data.train_files", "data.train.files", [DEFAULT_FILES], f"{DEFAULT_FILES} is no file")
    for key in draft.settings:
        _as_it_stands(draft, key, TEMPLATE_KWARGS, "data.chatTemplateKwargs.", "not set; the template's own defaults")
    _validation(draft)
    files = [*(draft.get("data.train.files") or []), *(draft.get("data.val.files") or [])]
    named = [draft.get("model.path"), *files]
    here = [value for value in named if value and value[0] == "/" and not value.startswith(PLACEHOLDER)]
    if here:
        draft.report.notes.append(
            f"{', '.join(here)}: read inside the pods; mount a volume there with spec.template.podOverlay, or change "
            "the path"
        )
    actor, engine = ACTOR + "fsdp_config.dtype", ROLLOUT + "dtype"
    draft.simple(engine if draft.given(engine) and not draft.given(actor) else actor)
    draft.leave(engine, "one type here: the actor's")
    dropped, truncation = "data.filter_overlong_prompts", "data.truncation"
    if draft.value(dropped):
        draft.put("data.overlongPrompts", "Drop", dropped)
        draft.leave(truncation, "prompts that are too long are dropped before")
    else:
        word = str(draft.value(truncation)).lower()
        if word in _TRUNCATION:
            draft.put("data.overlongPrompts", _TRUNCATION[word], truncation)
        else:
            draft.set("data.overlongPrompts", "Error")
            draft.change(
                truncation, f"data.overlongPrompts has no {word} yet: a prompt that is too long ends the job (Error)"
            )
        draft.leave(dropped, "false here, too")


def lora(draft: Draft) -> None:
    """Adapters, where a rank asks for them."""
    rank, alpha, targets = (MODEL + name for name in ("lora_rank", "lora_alpha", "target_modules"))
    if not draft.value(rank):
        for key in (rank, alpha, targets):
            draft.leave(key, "no adapters, here as there: the rank is 0")
        return
    draft.put("model.lora.rank", draft.value(rank), rank)
    draft.put("model.lora.alpha", draft.value(alpha), alpha)
    chosen = draft.value(targets)
    draft.put("model.lora.targetModules", chosen if isinstance(chosen, list) else [chosen], targets)


def _validation(draft: Draft) -> None:
    """verl always validates; here the input must name its rows."""
    keys = ("trainer.test_freq", "trainer.val_before_train", "data.val_max_samples", "data.val_batch_size")
    sampling = ("n", "temperature", "top_p", "top_k")
    if draft.given("data.val_files") is None:
        for key in (*keys, *(f"{ROLLOUT}val_kwargs.{name}" for name in sampling)):
            draft.leave(key, "no data.val_files given, so nothing is validated")
        return
    put_paths(draft, "data.val_files", "data.val.files", [], "")
    draft.put("trainer.testFreq", draft.value(keys[0]), keys[0])
    draft.put("trainer.valBeforeTrain", draft.value(keys[1]), keys[1])
    count = draft.value(keys[2])
    if isinstance(count, int) and count > 0:
        draft.put("data.valMaxSamples", count, keys[2], "spread evenly over the rows; verl takes other ones")
    else:
        draft.leave(keys[2], "all rows, here too")
    key = f"{ROLLOUT}val_kwargs.n"
    if draft.value(f"{ROLLOUT}val_kwargs.temperature") == 0 and draft.value(key) != 1:
        draft.put("rollout.valKwargs.n", 1, key, "1: at temperature 0 all of a prompt's responses are the same")
    else:
        draft.put("rollout.valKwargs.n", draft.value(key), key)


def put_paths(draft: Draft, key: str, path: str, default: str | list[str], default_text: str) -> None:
    """A path or several; a placeholder where the input gives none, or a script's variable in it is not known."""
    setting = draft.given(key)
    if setting is None:
        draft.put(path, default, key)
        draft.report.placeholders.append((f"spec.{path}", f"the input names none; {default_text}"))
        return
    given = setting.value if isinstance(setting.value, list) else [setting.value]
    homeless = "HOME" not in draft.env and any(str(item).startswith("~") for item in given)
    unknown = homeless or bool(setting.doubts) or not all(str(item).strip() for item in given)
    if unknown:
        why = draft.why(setting) or ("~ is nobody's home in a pod" if homeless else "it is empty")
        draft.report.placeholders.append((f"spec.{path}", f"{setting.shown} ({setting.place}): {why}"))
        paths = [f"{PLACEHOLDER}/{str(item).strip().lstrip('~/')}".rstrip("/") for item in given]
    else:
        value = draft.value(key)
        paths = [_home(draft, item or "") for item in (value if isinstance(value, list) else [value])]
    far = [item for item in paths if item.startswith(("hdfs://", "s3://", "gs://"))]
    if far:
        draft.report.placeholders.append((f"spec.{path}", f"{', '.join(far)}: no path in the pods; put it on a volume"))
    note = "a placeholder" if unknown else ""
    if len(paths) > 1 and path == "data.train.files":
        note = note or f"{len(paths)} files, one after the other, as in verl; data.train.mix would mix them by weight"
    draft.put(path, paths if isinstance(default, list) else paths[0], key, note)


def _home(draft: Draft, path: str) -> str:
    home = draft.env.get("HOME")
    return f"{home}{path[1:]}" if home and path.startswith("~/") else path


def estimator_and_engine(draft: Draft) -> None:
    key = "algorithm.adv_estimator"
    word = str(draft.value(key)).lower()
    if word in _ESTIMATORS:
        draft.put("algorithm.advEstimator", _ESTIMATORS[word], key)
    else:
        draft.set("algorithm.advEstimator", "grpo")
        why = _NO_ESTIMATOR.get(word, "is no estimator of this API yet")
        draft.change(key, f"{word} {why}: trained with grpo instead, whose advantage is the score against its group")
    _kl_in_reward(draft)
    _sampling(draft)
    key = ROLLOUT + "name"
    word = str(draft.value(key)).lower()
    if word in ("vllm", "hf"):
        draft.put("rollout.engine", word, key)
    else:
        draft.set("rollout.engine", "vllm")
        draft.change(key, f"{word} is no engine of this API yet: vllm samples instead")
    key = ROLLOUT + "n"
    number = draft.value(key)
    if number == 1:
        ours = RolloutSpec().n
        draft.set("rollout.n", ours)
        text = (
            f"one response has no group to compare with: {ours} responses a prompt instead, {ours} times the sampling"
        )
        draft.change(key, text)
    else:
        draft.put("rollout.n", number, key)
    for key in draft.settings:
        engine_args = CARRIED[key].path.startswith("rollout.engineArgs") if key in CARRIED else False
        if (engine_args or key.startswith(ENGINE_KWARGS)) and draft.get("rollout.engine") == "hf":
            draft.leave(key, "vLLM's, and the engine is hf")
        else:
            _as_it_stands(draft, key, ENGINE_KWARGS, "rollout.engineArgs.", "not set; the engine's own default")


def _as_it_stands(draft: Draft, key: str, prefix: str, path: str, unset: str) -> None:
    """A key below `prefix`, whatever its name, to the same below `path`; `unset` is why one without a value is left."""
    if key.startswith(prefix) and (setting := draft.given(key)):
        draft.set(path + key.removeprefix(prefix), setting.value)
        draft.carry(key, path + key.removeprefix(prefix))
    elif f"{key}.".startswith(prefix):
        draft.leave(key, unset)


def _sampling(draft: Draft) -> None:
    """Group filter and rollout correction."""
    key = "algorithm.filter_groups.max_num_gen_batches"
    bound = draft.value(key)
    if isinstance(bound, int) and bound > 0:
        draft.put("algorithm.filterGroups.maxNumGenBatches", bound, key)
    else:
        draft.leave(key, "no bound in verl; ours stands")
    key = ROLLOUT_CORRECTION + "rollout_is"
    setting = draft.given(key)
    word = "none" if setting is None else str(draft.value(key)).lower()
    if word in ("token", "sequence", "none"):
        draft.put("algorithm.rolloutCorrection.rolloutIs", word, key)
    else:
        draft.fault(setting or draft.settings[key], "must be one of token, sequence, null")
    _thresholds(
        draft, "rollout_is_threshold", "algorithm.rolloutCorrection.rolloutIsThreshold", "2.0, or two, such as 0.5_5.0"
    )
    key = ROLLOUT_CORRECTION + "rollout_rs"
    option = str(draft.value(key) or "none").lower()
    threshold = ROLLOUT_CORRECTION + "rollout_rs_threshold"
    if option in ("none", "null"):
        draft.leave(key, "no rejection, here as there")
        draft.leave(threshold, "no rejection, here as there")
    elif option in get_args(RolloutRs):
        draft.put("algorithm.rolloutCorrection.rolloutRs", option, key)
        _thresholds(draft, "rollout_rs_threshold", "algorithm.rolloutCorrection.rolloutRsThreshold", "2.0, or 0.5_2.0")
    else:
        draft.change(key, f"algorithm.rolloutCorrection.rolloutRs takes one option, not {option}: nothing is rejected")
        draft.leave(threshold, "nothing is rejected")


def _thresholds(draft: Draft, name: str, path: str, example: str) -> None:
    """An upper threshold, or a lower and an upper one with `_` between."""
    setting = draft.given(ROLLOUT_CORRECTION + name)
    if setting is None:
        return
    lower, _, upper = str(draft.value(ROLLOUT_CORRECTION + name)).rpartition("_")
    try:
        draft.put(path, float(upper), ROLLOUT_CORRECTION + name)
        if lower:
            draft.set(f"{path}Lower", float(lower))
    except ValueError:
        draft.fault(setting, f"must be a number, such as {example}")


def _kl_in_reward(draft: Draft) -> None:
    """The type of the KL in the reward. Its value has no gradient, so that verl's straight-through forms say nothing
    more; users of other tools write a coefficient here."""
    key = "algorithm.kl_penalty"
    setting = draft.given(key)
    if setting is not None and isinstance(setting.value, int | float):
        draft.leave(key, f"verl has a type of KL here, such as kl or low_var_kl; for a coefficient, set {KL_COEF}")
        return
    word = str(draft.value(key)).lower()
    if word in KL_TYPES:
        draft.put("algorithm.klPenalty", KL_TYPES[word].removesuffix("+"), key)
    elif draft.value("algorithm.use_kl_in_reward") is True:
        draft.set("algorithm.klPenalty", "kl")
        draft.change(key, f"algorithm.klPenalty has no {word} yet: kl is used")


def clip(draft: Draft) -> None:
    """The clip ranges; those of a loss that we have not mean another thing and stay out.

    verl's low and high are 0.2 by default and win over clip_ratio; what a user sets alone is meant, though.
    """
    keys = [ACTOR + name for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c")]
    loss = draft.given(ACTOR + "policy_loss.loss_mode")
    if loss is not None and loss.value not in LOSS_MODES:
        for key in keys:
            if draft.given(key):
                draft.change(
                    key,
                    f"belongs to verl's loss {loss.value}; the clipped PPO loss keeps {CARRIED[key].default or 0.2}",
                )
        return
    for key in keys:
        draft.simple(key)
    both, low, high = (draft.given(key) for key in keys[:3])
    if both and draft.value(keys[0]) != 0.2 and not (low and high):
        draft.report.notes.append(
            f"{both.place}: {both.shown} clips both sides here; verl 0.3 and later clip at 0.2 unless clip_ratio_low "
            "and clip_ratio_high are set, too"
        )


def parallel(draft: Draft) -> None:
    key = ROLLOUT + "tensor_model_parallel_size"
    gpus, size = draft.number("trainer.n_gpus_per_node"), draft.value(key)
    if draft.get("rollout.engine") == "hf" and size != 1:
        draft.put("rollout.tensorModelParallelSize", 1, key, "1: the engine hf holds the whole model on each GPU")
        return
    if isinstance(size, int) and size > 0 and gpus % size:
        if draft.given(key) is None:
            draft.put(
                "rollout.tensorModelParallelSize", 1, key, f"1, because it does not divide the {gpus} GPUs of a node"
            )
            return
        if size % gpus == 0:
            draft.put("rollout.tensorModelParallelSize", gpus, key, f"{gpus}: an engine stays within a node here")
            return
    draft.put("rollout.tensorModelParallelSize", size, key)


def batch_sizes(draft: Draft) -> None:
    gpus = draft.number("trainer.nnodes") * draft.number("trainer.n_gpus_per_node")
    n = draft.get("rollout.n")
    n = n if isinstance(n, int) and n > 0 else 1
    step, mini = draft.number("data.train_batch_size") * n, draft.number(ACTOR + "ppo_mini_batch_size") * n
    reference = draft.value(ACTOR + "use_kl_loss") is True or draft.value("algorithm.use_kl_in_reward") is True
    _rounds(draft, "actor", ACTOR + "ppo_", ACTOR + "use_dynamic_bsz", mini, gpus, True)
    _rounds(draft, "rollout", ROLLOUT + "log_prob_", ROLLOUT + "log_prob_use_dynamic_bsz", step, gpus, True)
    _rounds(draft, "ref", REF + "log_prob_", REF + "log_prob_use_dynamic_bsz", step, gpus, reference)


def _rounds(draft: Draft, section: str, prefix: str, dynamic: str, responses: int, gpus: int, write: bool) -> None:
    """One pair of micro-batch size and token budget; verl takes the budget where `dynamic` is true."""
    stem = f"{section}.{'ppoM' if section == 'actor' else 'logProbM'}"
    micro_path, budget_path = f"{stem}icroBatchSizePerGpu", f"{stem}axTokenLenPerGpu"
    micro, old_micro, budget = (
        f"{prefix}{end}" for end in ("micro_batch_size_per_gpu", "micro_batch_size", "max_token_len_per_gpu")
    )
    if draft.value(dynamic) is True:
        longest = draft.number("data.max_prompt_length") + draft.number("data.max_response_length")
        tokens = draft.value(budget)
        note = ""
        if isinstance(tokens, int) and 0 < tokens < longest:
            note = f"{longest}, because a GPU's round must hold a whole sequence (no sequence parallelism here)"
            tokens = longest
        if write or draft.given(budget):
            draft.put(budget_path, tokens, budget, note)
        if draft.given(dynamic):
            draft.carry(dynamic, budget_path, "" if write else "only read with useKlLoss")
        for key in (micro, old_micro):
            draft.leave(key, f"verl does not read it, either, where {dynamic.rpartition('.')[2]} is true")
        return
    draft.leave(dynamic, "false here, too: the micro-batch size holds")
    draft.leave(budget, f"verl does not read it, either, where {dynamic.rpartition('.')[2]} is false")
    key, note = micro, ""
    size = draft.value(micro)
    if size is None and draft.given(old_micro):
        key, whole = old_micro, draft.number(old_micro)
        size = max(whole // gpus, 1)
        note = f"{whole} over {gpus} GPUs = {size} a GPU"
    if isinstance(size, int) and size > 0 and responses % gpus == 0 and (responses // gpus) % size:
        each = responses // gpus
        fits = max(divisor for divisor in range(1, min(size, each) + 1) if each % divisor == 0)
        note = f"{fits}, because it must divide the {each} responses on each GPU; the gradients are the same"
        size = fits
    draft.put(micro_path, size, key, note)
    draft.leave(old_micro, "the size per GPU is given, too")


def schedule(draft: Draft) -> None:
    """Length of the run and the warm-up, which verl counts in steps and we in updates."""
    steps, epochs = "trainer.total_training_steps", "trainer.total_epochs"
    total = draft.value(steps)
    if total is not None:
        draft.put("trainer.totalSteps", total, steps)
        draft.leave(epochs, "total_training_steps decides; verl would end sooner where the rows of its epochs run out")
    else:
        draft.put("trainer.totalEpochs", draft.value(epochs), epochs)
    train, mini = draft.number("data.train_batch_size"), draft.number(ACTOR + "ppo_mini_batch_size")
    updates = max(train // mini, 1) * draft.number(ACTOR + "ppo_epochs")
    warmup, ratio = ACTOR + "optim.lr_warmup_steps", ACTOR + "optim.lr_warmup_steps_ratio"
    count, share = draft.value(warmup), draft.value(ratio)
    path = "actor.optim.lrWarmupSteps"
    if isinstance(count, int) and count > 0:
        draft.put(
            path,
            count * updates,
            warmup,
            f"{count} steps x {updates} updates = {count * updates}" if updates > 1 else "",
        )
        draft.leave(ratio, "lr_warmup_steps decides")
        return
    if isinstance(share, int | float) and share > 0 and isinstance(total, int):
        made = int(share * total) * updates
        draft.put(path, made, ratio, f"{share} of {total} steps x {updates} updates = {made}")
    elif isinstance(share, int | float) and share > 0:
        text = f"the number of steps is not known before the rows are counted: no warm-up; set {path}"
        draft.change(ratio, f"{text} to the share of them x {updates} updates a step")
    else:
        draft.leave(ratio, "no warm-up here, too")
    draft.leave(warmup, "no warm-up steps: the ratio decides")


def checkpoints(draft: Draft) -> None:
    key = "trainer.save_freq"
    every = draft.value(key)
    if isinstance(every, int) and every > 0:
        draft.put("trainer.saveFreq", every, key)
        draft.set("checkpoint.claimTemplate", {"size": CLAIM_SIZE})
        kept = "" if draft.given("trainer.max_actor_ckpt_to_keep") else "; the 2 newest are kept, verl keeps all"
        draft.report.notes.append(
            f"spec.checkpoint.claimTemplate: a claim of {CLAIM_SIZE} is asked for, because checkpoints are saved; set "
            f"its size and storage class{kept}"
        )
        return
    draft.put("trainer.saveFreq", -1 if isinstance(every, int) else None, key)
    draft.report.notes.append(
        "spec.checkpoint: verl saves nothing with save_freq -1, so no claim is asked for; a restart begins at step 0"
    )
