"""One row of the data as a prompt for the model, and what reward functions get of it."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from grpo_api.rewards.rows import MISSING, RewardRow, look_up
from grpo_api.spec.model_data import DataSpec
from grpo_trainer.data_sources import Rows
from grpo_trainer.errors import UserInputError

log = logging.getLogger(__name__)


@dataclass
class Prompt:
    """One row, ready for the rollout."""

    prompt_ids: list[int]
    """Tokens that the model is given, chat template included."""
    text: str
    """The same as text (uncut); reward functions get it."""
    ground_truth: Any
    data_source: str
    extra_info: dict[str, Any]
    columns: dict[str, Any]
    """The row's columns but the prompt, by name."""
    messages: list[dict[str, Any]] | None
    """The prompt as the chat messages that the row holds, system message included; None where it holds a text."""
    index: int
    """The row's position in the data."""

    def reward_row(self, completion: str, tokens: int) -> RewardRow:
        """What reward functions get for one response to it, of so many tokens."""
        return RewardRow(
            self.text,
            completion,
            self.ground_truth,
            self.data_source,
            self.extra_info,
            self.columns,
            self.messages,
            tokens,
        )


class PromptEncoder:
    """From rows to prompts. Raises UserInputError (`BadData`) with the row and the repair on the first bad row."""

    def __init__(self, spec: DataSpec, tokenizer: Any, rows: Rows, own_keys: str | None = None) -> None:
        """`own_keys` is the source's place in the spec where it may have keys of its own, for messages."""
        self._spec, self._tokenizer, self._rows, self._own_keys = spec, tokenizer, rows, own_keys
        self._keys = (spec.prompt_key, spec.ground_truth_key, spec.data_source_key)
        defaults = {name: DataSpec.model_fields[name].default for name in ("ground_truth_key", "data_source_key")}
        self._truth_is_optional = self._keys[1] == defaults["ground_truth_key"]
        self._source_is_optional = self._keys[2] == defaults["data_source_key"]
        if spec.apply_chat_template and not tokenizer.chat_template:
            raise UserInputError(
                "BadData",
                "the tokenizer has no chat template: set model.chatTemplate, or data.applyChatTemplate to false",
            )
        if spec.system_prompt and not spec.apply_chat_template:
            raise UserInputError(
                "BadData", "data.systemPrompt needs data.applyChatTemplate: true; or put it in promptTemplate"
            )
        first = rows.take([0])[0]
        self._refuse_guess(first)
        extra = first.get("extra_info")
        if first.get("tools") or (isinstance(extra, dict) and extra.get("tools_kwargs")):
            log.warning("%s: its tools are ignored: a response is one text here", rows.name)

    def encode(self, indices: Sequence[int]) -> list[Prompt]:
        """Prompts of the rows at these positions, uncut."""
        if not len(indices):
            return []
        rows = self._rows.take(indices)
        texts = [self._text(index, row) for index, row in zip(indices, rows, strict=True)]
        # A chat template writes its special tokens out itself.
        special = not self._spec.apply_chat_template
        ids = self._tokenizer(texts, add_special_tokens=special)["input_ids"]
        return [
            Prompt(
                prompt_ids=list(tokens),
                text=text,
                ground_truth=self._ground_truth(index, row),
                data_source=self._data_source(index, row),
                extra_info=self._extra_info(index, row),
                columns={key: value for key, value in row.items() if key != self._keys[0]},
                messages=self._messages(row),
                index=int(index),
            )
            for index, row, text, tokens in zip(indices, rows, texts, ids, strict=True)
        ]

    def _text(self, index: int, row: dict[str, Any]) -> str:
        prompt = look_up(row, self._keys[0])
        if prompt is MISSING:
            raise self._missing(index, row, "promptKey", self._keys[0])
        if isinstance(prompt, str) and prompt:
            text = self._spec.prompt_template.replace("{prompt}", prompt)
            if not self._spec.apply_chat_template:
                return text
            messages = [{"role": "user", "content": text}]
        elif (
            isinstance(prompt, list)
            and prompt
            and all(isinstance(m, dict) and {"role", "content"} <= set(m) for m in prompt)
        ):
            if not self._spec.apply_chat_template:
                raise self._bad(
                    index, f"{self._keys[0]} is a list of messages, which needs data.applyChatTemplate: true"
                )
            messages = prompt
        else:
            raise self._bad(
                index,
                f"{self._keys[0]} must be a non-empty string or a list of messages with role and content, "
                f"not {prompt!r:.80}",
            )
        if any(_has_more_than_text(message["content"]) for message in messages):
            raise self._bad(
                index, f"{self._keys[0]} has parts that are no text: images, video and audio have no model here"
            )
        if self._spec.system_prompt:
            messages = [{"role": "system", "content": self._spec.system_prompt}, *messages]
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=True, **self._spec.chat_template_kwargs
                )
            )
        except TemplateError as error:
            raise self._bad(index, f"the chat template refuses its messages: {error}") from error

    def _extra_info(self, index: int, row: dict[str, Any]) -> dict[str, Any]:
        extra = row.get("extra_info")
        if extra is not None and not isinstance(extra, dict):
            raise self._bad(
                index, f"extra_info must be an object, not {extra!r:.80}: reward functions look keys up in it"
            )
        return extra or {}

    def _messages(self, row: dict[str, Any]) -> list[dict[str, Any]] | None:
        prompt = look_up(row, self._keys[0])
        if not isinstance(prompt, list):
            return None
        system = [{"role": "system", "content": self._spec.system_prompt}] if self._spec.system_prompt else []
        return system + prompt

    def _ground_truth(self, index: int, row: dict[str, Any]) -> Any:
        truth = look_up(row, self._keys[1])
        if truth is MISSING or truth is None:
            if self._truth_is_optional and self._keys[1].split(".")[0] not in self._rows.columns:
                return None  # rewards that need none, such as a format's
            raise self._missing(index, row, "groundTruthKey", self._keys[1])
        return truth

    def _data_source(self, index: int, row: dict[str, Any]) -> str:
        source = look_up(row, self._keys[2])
        if source is MISSING or source is None:
            if self._source_is_optional:
                return self._rows.name
            raise self._missing(index, row, "dataSourceKey", self._keys[2])
        return str(source)

    def _refuse_guess(self, row: dict[str, Any]) -> None:
        """A likely answer column beside an absent default key is asked about, never used by guess."""
        likely = [column for column in ("ground_truth", "answer", "solution") if column in self._rows.columns]
        if likely and self._truth_is_optional and look_up(row, self._keys[1]) is MISSING:
            raise UserInputError(
                "BadData",
                f"{self._rows.name} has no {self._keys[1]} (data.groundTruthKey's default); its columns are "
                f"{', '.join(self._rows.columns)}: set {self._place('groundTruthKey')}, such as {likely[0]}",
            )

    def _missing(self, index: int, row: dict[str, Any], field: str, key: str) -> UserInputError:
        return self._bad(
            index,
            f"has no value at {key!r} (data.{field}); its columns are {', '.join(map(str, row))}: "
            f"set {self._place(field)} to the right one, or repair the row",
        )

    def _place(self, field: str) -> str:
        """Where the spec takes a key of these rows."""
        return f"{self._own_keys}.{field}" if self._own_keys and field != "dataSourceKey" else f"data.{field}"

    def _bad(self, index: int, text: str) -> UserInputError:
        return UserInputError("BadData", f"{self._rows.where(int(index))}: {text}")


def _has_more_than_text(content: Any) -> bool:
    return isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type", "text") != "text" for part in content
    )
