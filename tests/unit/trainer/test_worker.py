"""The worker's memory figures, with torch's counters as a fake card gives them."""

from pathlib import Path

import pytest
import torch

from grpo_trainer.workers.worker import Worker
from tests.unit.trainer.trainer_support import make_spec


class Card:
    """torch's counters: a sleeping engine's 50 bytes still count as allocated."""

    allocated = peak = 60

    def use(self, allocated: int) -> None:
        self.allocated, self.peak = allocated, max(self.peak, allocated)

    def reset(self) -> None:
        self.peak = self.allocated


class Engine:
    def __init__(self, card: Card):
        self.card, self.asleep_bytes = card, 0

    def generate(self, requests: list[object]) -> list[object]:
        self.card.use(70)
        self.card.use(60)
        return []

    def sleep(self) -> None:
        self.asleep_bytes = 50

    def wake(self) -> None:
        pass

    def load_weights(self, parameters: object) -> None:
        self.asleep_bytes = 0


class Actor:
    def full_parameters(self) -> list[object]:
        return []


def test_peak_leaves_out_what_sleep_has_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card()
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: card.allocated)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: card.peak)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", card.reset)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    worker = Worker(make_spec(tmp_path), 0, 1, 0)
    worker.device = torch.device("cuda", 0)
    worker._engine, worker._actor = Engine(card), Actor()
    for update, expected in ((90, 70), (130, 80)):  # 90 - 50 is less than the rollout's 70, 130 - 50 more
        worker.generate([])
        worker.rest()
        card.use(update)
        card.use(60)
        worker.sync()
        assert worker.memory().items() >= {"gpu": 60, "gpu_peak": expected}.items()
