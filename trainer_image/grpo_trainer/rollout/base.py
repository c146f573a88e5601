"""What a rollout engine does, whichever library samples."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class Request:
    """One response that is wanted."""

    prompt_ids: list[int]
    group: int
    """Number of the prompt within the step."""
    number: int
    """Number of the response within its group."""
    seed: int


@dataclass(frozen=True)
class Response:
    """One sampled response of T tokens, the end-of-sequence token included where it was sampled."""

    group: int
    number: int
    token_ids: list[int]
    log_probs: list[float]
    """T log-probabilities of the tempered distribution."""
    truncated: bool
    """Cut at `data.maxResponseLength`."""


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
