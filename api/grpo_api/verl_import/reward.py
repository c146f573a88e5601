"""The reward: the user's function, inline or as a module of the pods; else a reward model, as a classifier; else the
rule that goes by data source."""

from pathlib import PurePosixPath
from typing import Any

from grpo_api.verl_import.draft import Draft
from grpo_api.verl_import.model import Reader
from grpo_api.verl_import.sections import PLACEHOLDER, put_paths

PATH = "reward.custom_reward_function.path"
NAME = "reward.custom_reward_function.name"
KWARGS = "reward.custom_reward_function.reward_kwargs."
FIELD = "reward.functions[0].python.source"
MODEL = "reward.reward_model."
ENABLE, MODEL_PATH, MODEL_LENGTH = (MODEL + name for name in ("enable", "model_path", "rollout.max_model_len"))
CLASSIFIER = "reward.functions[0].classifier"

_PLACEHOLDER = """\
# PLACEHOLDER: put the text of {path} here.
def {name}(data_source, solution_str, ground_truth, extra_info=None):
    raise NotImplementedError("PLACEHOLDER: put the reward function into spec.reward.functions")
"""


def _no_reward_model(draft: Draft) -> None:
    for key in (MODEL_PATH, MODEL_LENGTH):
        draft.leave(key, "no reward model: enable is false")


def _classifier(draft: Draft) -> None:
    """verl scores with a discriminative model so: the conversation by the model's own chat template, and the last
    class's raw output (0.9, `RewardLoopWorker.compute_score_disrm`)."""
    put_paths(draft, MODEL_PATH, f"{CLASSIFIER}.path", f"{PLACEHOLDER}/reward-model", "verl needs one, too")
    length = draft.value(MODEL_LENGTH)
    note = ""
    if length is None:
        length = draft.number("data.max_prompt_length") + draft.number("data.max_response_length")
        note = "the longest prompt and response"
    draft.put(f"{CLASSIFIER}.maxLength", length, MODEL_LENGTH, note)
    made = draft.spec["reward"].pop("functions[0]")["classifier"]  # an item of a list is no section to write into
    draft.set("reward.functions", [{"name": "reward-model", "classifier": made | {"input": "chat", "output": "logit"}}])
    draft.carry(ENABLE, CLASSIFIER, "a classifier on the head pod's CPU")
    draft.report.notes.append(
        "the reward model runs as a classifier on the head pod's CPU, in float32: one of more than about a billion "
        "parameters is too slow there; serve it (such as with `vllm serve`, whose /classify verl asks) behind a server "
        "of your own and name that in reward.functions[0].http. A model with several classes needs classifier.label; "
        "verl takes the last"
    )


def build_reward(draft: Draft, read: Reader) -> None:
    setting = draft.given(PATH)
    name = str(draft.value(NAME) or "compute_score")
    kwargs = [key for key in draft.settings if key.startswith(KWARGS)]
    if setting is None:
        draft.leave(NAME, "without a file it names nothing")
        for key in kwargs:
            draft.leave(key, "without a file there is no function to give it to")
        if draft.value(ENABLE) is True:
            _classifier(draft)
            return
        _no_reward_model(draft)
        draft.report.notes.append(
            "no reward function is given, and verl's default goes by each row's data_source: the builtin rule verl "
            "does so for GSM8K, MATH, DAPO's and Numina's mathematics and programs; rows of any other source are errors"
        )
        draft.set("reward.functions", [{"name": "verl-default", "builtin": {"rule": "verl"}}])
        return
    if draft.value(ENABLE) is True and (enable := draft.given(ENABLE)):
        draft.fault(
            enable,
            "a reward model beside custom_reward_function, which verl lets ask that model's server, and there is none "
            "here: serve the model (such as with vLLM), give the function its URL in "
            f"{KWARGS.removesuffix('.')}, and add {enable.key}=False",
        )
    _no_reward_model(draft)
    path = str(setting.value)
    source = read(path) if path and not setting.doubts else None
    stem, _, ending = PurePosixPath(path).name.rpartition(".")
    if source is None and not setting.doubts and path.startswith("/") and ending == "py" and stem.isidentifier():
        kind, field = "module", "reward.functions[0].module.path"
        function: dict[str, Any] = {"path": f"{stem}:{name}", "directory": str(PurePosixPath(path).parent)}
        draft.report.notes.append(f"{setting.shown} cannot be read here, so it is read in the pods: mount it there")
        draft.carry(PATH, field, "as a module of the pods")
        if draft.given(NAME):
            draft.carry(NAME, field)
    else:
        kind, field = "python", FIELD
        function = {} if name == "compute_score" else {"function": name}
        if source is None:
            shown = " ".join(path.split())
            text = _PLACEHOLDER.format(path=shown, name=name if name.isidentifier() else "compute_score")
            why = draft.why(setting) or "cannot be read here"
            draft.report.placeholders.append(
                (f"spec.{FIELD}", f"{setting.shown} ({setting.place}): {why}; put the file's text there")
            )
        else:
            text = source.replace("\r\n", "\n").removeprefix("\ufeff")
        function["source"] = text
        draft.carry(PATH, FIELD, "inlined" if source is not None else "a placeholder")
        draft.origins["spec.reward.functions[0].python.function"] = f"{NAME}={name}"
        if draft.given(NAME):
            draft.carry(NAME, "reward.functions[0].python.function")
    draft.origins[f"spec.{field}"] = setting.shown
    params = {}
    for key in kwargs:
        short = key.removeprefix(KWARGS)
        if (given := draft.given(key)) is not None:
            params[short] = given.value
            draft.carry(key, f"reward.functions[0].{kind}.params.{short}")
        else:
            draft.leave(key, "not set")
    if params:
        function["params"] = params
    draft.set("reward.functions", [{"name": "custom", kind: function}])
