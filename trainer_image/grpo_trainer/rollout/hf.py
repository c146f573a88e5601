"""Sampling by plain Transformers: slow, for debugging and for tests. A whole copy of the model on each rank."""

from collections.abc import Iterator
from itertools import groupby

import torch

from grpo_api.job import GRPOJobSpec
from grpo_trainer.rollout.base import Request, Response, Sampling
from grpo_trainer.workers.model_loading import load_model

BATCH = 64
"""Responses to one prompt that are sampled at a time."""


class HfEngine:
    """Token by token with the cache of keys and values, the responses to one prompt together.

    Each response is drawn with a generator of its own, so that its tokens depend on its seed and not on its company
    (but for rounding: a matrix product of other rows may differ in its last bits).
    """

    asleep_bytes = 0

    def __init__(self, spec: GRPOJobSpec, device: torch.device):
        self._device = device
        self._sampling = Sampling.of_training(spec.rollout)
        self._max_tokens = spec.data.max_response_length
        eager = spec.model.model_copy(update={"attn_implementation": "eager"})
        self._lm = load_model(eager, device).to(device, getattr(torch, spec.model.dtype)).eval()
        ends = self._lm.generation_config.eos_token_id
        self._ends = set(ends if isinstance(ends, list) else [ends])

    @torch.no_grad()
    def generate(self, requests: list[Request]) -> list[Response]:
        responses: list[Response] = []
        for _, same in groupby(requests, key=lambda one: (one.prompt_ids, one.sampling)):
            group = list(same)
            for start in range(0, len(group), BATCH):
                responses += self._sample(group[start : start + BATCH])
        return responses

    def _sample(self, requests: list[Request]) -> list[Response]:
        sampling = requests[0].sampling or self._sampling
        generators = [torch.Generator(self._device).manual_seed(one.seed) for one in requests]
        tokens: list[list[int]] = [[] for _ in requests]
        log_probs: list[list[float]] = [[] for _ in requests]
        output = self._lm(torch.tensor([requests[0].prompt_ids], device=self._device), use_cache=True)
        cache = output.past_key_values
        cache.batch_repeat_interleave(len(requests))
        logits = output.logits[:, -1].expand(len(requests), -1)
        going = list(range(len(requests)))
        while True:
            every = sampling.log_probs(logits.float())
            for row, index in enumerate(going):
                token = int(torch.multinomial(every[row].exp(), 1, generator=generators[index]))
                tokens[index].append(token)
                log_probs[index].append(float(every[row, token]))
            rows = [row for row, index in enumerate(going) if not self._ended(tokens[index])]
            if not rows:
                break
            if len(rows) < len(going):
                cache.batch_select_indices(torch.tensor(rows, device=self._device))
                going = [going[row] for row in rows]
            last = torch.tensor([tokens[index][-1:] for index in going], device=self._device)
            logits = self._lm(last, past_key_values=cache, use_cache=True).logits[:, -1]
        return [
            Response(one.group, one.number, said, [] if one.sampling else found, truncated=said[-1] not in self._ends)
            for one, said, found in zip(requests, tokens, log_probs, strict=True)
        ]

    def _ended(self, tokens: list[int]) -> bool:
        return tokens[-1] in self._ends or len(tokens) == self._max_tokens

    @torch.no_grad()
    def load_weights(self, parameters: Iterator[tuple[str, torch.Tensor]]) -> None:
        own = dict(self._lm.named_parameters())
        for name, tensor in parameters:
            own[name].copy_(tensor)

    def sleep(self) -> None:
        """Keeps its memory: for debugging, simplicity is worth more."""

    def wake(self) -> None:
        """Nothing to take back."""
