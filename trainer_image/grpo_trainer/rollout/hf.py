"""Sampling by plain Transformers: slow, for debugging. A whole copy of the model on each rank."""

from collections.abc import Iterator

import torch

from grpo_api.job import GRPOJobSpec
from grpo_trainer.rollout.base import Request, Response
from grpo_trainer.workers.model_loading import load_model


class HfEngine:
    """Token by token with the cache of keys and values, one response at a time: each has its own seed."""

    asleep_bytes = 0

    def __init__(self, spec: GRPOJobSpec, device: torch.device):
        self._device = device
        self._temperature = spec.rollout.temperature
        self._max_tokens = spec.data.max_response_length
        eager = spec.model.model_copy(update={"attn_implementation": "eager"})
        self._lm = load_model(eager, device).to(device, getattr(torch, spec.model.dtype)).eval()
        ends = self._lm.generation_config.eos_token_id
        self._ends = set(ends if isinstance(ends, list) else [ends])

    @torch.no_grad()
    def generate(self, requests: list[Request]) -> list[Response]:
        return [self._sample(request) for request in requests]

    def _sample(self, request: Request) -> Response:
        generator = torch.Generator(self._device).manual_seed(request.seed)
        tokens: list[int] = []
        log_probs: list[float] = []
        inputs, cache = torch.tensor([request.prompt_ids], device=self._device), None
        while len(tokens) < self._max_tokens and not (tokens and tokens[-1] in self._ends):
            output = self._lm(inputs, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            every = torch.log_softmax(output.logits[0, -1].float() / self._temperature, dim=-1)
            token = torch.multinomial(every.exp(), 1, generator=generator)
            tokens.append(int(token))
            log_probs.append(float(every[token]))
            inputs = token[None]
        return Response(request.group, request.number, tokens, log_probs, tokens[-1] not in self._ends)

    @torch.no_grad()
    def load_weights(self, parameters: Iterator[tuple[str, torch.Tensor]]) -> None:
        own = dict(self._lm.named_parameters())
        for name, tensor in parameters:
            own[name].copy_(tensor)

    def sleep(self) -> None:
        """Keeps its memory: for debugging, simplicity is worth more."""

    def wake(self) -> None:
        """Nothing to take back."""
