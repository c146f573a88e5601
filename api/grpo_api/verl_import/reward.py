"""The reward: the user's function inline, else verl's rule for GSM8K with a clear error for any other row."""

from grpo_api.verl_import.draft import Draft
from grpo_api.verl_import.model import Reader

PATH = "reward.custom_reward_function.path"
NAME = "reward.custom_reward_function.name"
FIELD = "reward.functions[0].python.source"

GSM8K_SOURCE = '''\
# verl's default reward goes by the row's data_source. This is its rule for openai/gsm8k; other rows raise, so that they
# count as errors: write their rule here.
import re


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """1 where the last "#### <number>" of the response's last 300 characters is the ground truth, else 0."""
    if data_source != "openai/gsm8k":
        raise NotImplementedError(f"no rule for data_source {data_source!r}: write one in spec.reward.functions")
    found = re.findall(r"#### (-?[0-9.,]+)", solution_str[-300:])
    return float(bool(found) and found[-1].replace(",", "") == str(ground_truth))
'''
_PLACEHOLDER = """\
# PLACEHOLDER: put the text of {path} here.
def {name}(data_source, solution_str, ground_truth, extra_info=None):
    raise NotImplementedError("PLACEHOLDER: put the reward function into spec.reward.functions")
"""


def build_reward(draft: Draft, read: Reader) -> None:
    setting = draft.given(PATH)
    name = str(draft.value(NAME) or "compute_score")
    if setting is None:
        source, function_name = GSM8K_SOURCE, "verl-default"
        draft.leave(NAME, "without a file it names nothing")
        name = "compute_score"
        text = (
            "no reward function is given, and verl's default goes by each row's data_source: its rule for openai/gsm8k "
            "is written inline (no builtin rule equals it), and rows of any other data_source raise an error and count "
            "for nothing; write their rule, or use a builtin one"
        )
        draft.report.placeholders.append((f"spec.{FIELD}", text))
    else:
        path = str(setting.value)
        read_source = read(path) if path and not setting.doubts else None
        function_name = "custom"
        if read_source is None:
            source = _PLACEHOLDER.format(
                path=" ".join(path.split()), name=name if name.isidentifier() else "compute_score"
            )
            why = draft.why(setting) or "cannot be read here"
            text = f"{setting.shown} ({setting.place}): {why}; put the file's text there"
            draft.report.placeholders.append((f"spec.{FIELD}", text))
        else:
            source = read_source.replace("\r\n", "\n").removeprefix("\ufeff")
        draft.carry(PATH, FIELD, "inlined" if read_source is not None else "a placeholder")
        draft.origins[f"spec.{FIELD}"] = setting.shown
        draft.origins["spec.reward.functions[0].python.function"] = f"{NAME}={name}"
        if draft.given(NAME):
            draft.carry(NAME, "reward.functions[0].python.function")
    python = {"source": source} if name == "compute_score" else {"function": name, "source": source}
    draft.set("reward.functions", [{"name": function_name, "python": python}])
