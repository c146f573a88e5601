"""What a rollout engine does, whichever library samples."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from grpo_api.spec.training import RolloutSpec


@dataclass(frozen=True)
class Sampling:
    """The distribution that tokens are drawn from."""

    temperature: float
    """0: the most likely token."""
    top_p: float = 1.0
    top_k: int = -1
    """Below 1: all tokens."""
    min_p: float = 0.0

    @staticmethod
    def of_training(rollout: RolloutSpec) -> "Sampling":
        """That of the responses which are trained on."""
        return Sampling(rollout.temperature, rollout.top_p, rollout.top_k, rollout.min_p)

    def log_probs(self, logits: torch.Tensor) -> torch.Tensor:
        """(B, V) log-probabilities of (B, V) float32 logits, -inf for tokens that are never drawn. As in vLLM
        (`v1/sample`): temperature, then min-p, top-k and top-p, each on what the one before has left."""
        if self.temperature == 0:
            best = torch.full_like(logits, -torch.inf)
            return best.scatter(-1, logits.argmax(-1, keepdim=True), 0.0)
        logits = logits / self.temperature
        if self.min_p > 0:
            probs = logits.softmax(-1)
            logits = logits.masked_fill(probs < self.min_p * probs.max(-1, keepdim=True).values, -torch.inf)
        if 0 < self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k, dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        if self.top_p < 1:
            ordered, tokens = logits.sort(dim=-1)
            cut = ordered.softmax(-1).cumsum(-1) <= 1 - self.top_p
            cut[:, -1] = False
            logits = logits.masked_fill(cut.scatter(-1, tokens, cut), -torch.inf)
        return logits.log_softmax(-1)


@dataclass(frozen=True)
class Request:
    """One response that is wanted."""

    prompt_ids: list[int]
    group: int
    """Number of the prompt within the step."""
    number: int
    """Number of the response within its group."""
    seed: int
    sampling: Sampling | None = None
    """None: that of training."""


@dataclass(frozen=True)
class Response:
    """One sampled response of T tokens, the end-of-sequence token included where it was sampled."""

    group: int
    number: int
    token_ids: list[int]
    log_probs: list[float]
    """T log-probabilities of the distribution that was drawn from; none for a request with a sampling of its own."""
    truncated: bool
    """Cut at `data.maxResponseLength`."""
    baseline: float = 0.0
    """With `remax` the reward of the greedy response to the same prompt; 0 where that has none."""


class RolloutEngine(Protocol):
    asleep_bytes: int
    """Accelerator memory that torch counts as allocated although the engine's sleep has freed it."""

    def generate(self, requests: list[Request]) -> list[Response]:
        """Responses in the order of the requests."""

    def load_weights(self, parameters: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Takes over every parameter, by its Hugging Face name; a tensor is valid until the next one is asked for."""

    def sleep(self) -> None:
        """Frees accelerator memory until `wake`; weights are lost. Does nothing on CPU."""

    def wake(self) -> None:
        """Takes memory for weights again; `load_weights` follows."""


def request_seed(seed: int, step: int, group: int, number: int) -> int:
    """Seed of one response: independent of how responses are spread over engines."""
    digest = hashlib.blake2b(f"{seed}/{step}/{group}/{number}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1
