"""A small sequence classifier of Transformers as a reward function, on the CPU."""

from typing import Any

from grpo_api.rewards.rows import RewardRow


class Classifier:
    """Scores rows by the output of one class. Raises ValueError where the label is not one of the model's."""

    line = file = None

    def __init__(
        self,
        path: str,
        revision: str | None,
        label: str | None,
        output: str,
        input: str,
        max_length: int,
        batch_size: int,
        threads: int,
    ) -> None:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        torch.set_num_threads(threads)
        self.batch_size = batch_size
        self._output, self._input, self._max_length = output, input, max_length
        self._tokenizer: Any = AutoTokenizer.from_pretrained(path, revision=revision, truncation_side="left")
        self._model: Any = AutoModelForSequenceClassification.from_pretrained(
            path, revision=revision, dtype=torch.float32, use_safetensors=True
        ).eval()
        config = self._model.config
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        if config.pad_token_id is None:
            config.pad_token_id = self._tokenizer.pad_token_id
        self._index = _index(label, config.id2label)

    def __call__(self, rows: list[RewardRow]) -> list[float | None]:
        import torch

        options = {"padding": True, "truncation": True, "max_length": self._max_length, "return_tensors": "pt"}
        responses = [row.completion for row in rows]
        if self._input == "pair":
            encoded = self._tokenizer([row.prompt for row in rows], responses, **options)
        elif self._input == "chat":
            texts = [self._tokenizer.apply_chat_template(_messages(row), tokenize=False) for row in rows]
            encoded = self._tokenizer(texts, add_special_tokens=False, **options)
        else:
            encoded = self._tokenizer(responses, **options)
        with torch.inference_mode():
            logits = self._model(**encoded).logits.double()
        if self._output == "probability":
            logits = logits.softmax(-1)
        elif self._output == "sigmoid":
            logits = logits.sigmoid()
        scores: list[float | None] = logits[:, self._index].tolist()
        return scores


def _index(label: str | None, names: dict[int, str]) -> int:
    """Position of the class with that name or number."""
    shown = ", ".join(f"{index} ({name})" for index, name in sorted(names.items()))
    if label is None:
        if len(names) == 1:
            return 0
        raise ValueError(f"classifier.label is not set, and the model has the classes {shown}: set one")
    for index, name in names.items():
        if label in (name, str(index)):
            return int(index)
    raise ValueError(f"classifier.label {label!r} is none of the model's classes {shown}: set one of them")


def _messages(row: RewardRow) -> list[dict[str, Any]]:
    prompt = row.messages or [{"role": "user", "content": row.prompt}]
    return [*prompt, {"role": "assistant", "content": row.completion}]
