"""A trainer, as far as callbacks need one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psnb


class FakeTrainer:
    """What callbacks need of a trainer."""

    def __init__(self) -> None:
        self.stopped: list[str] = []
        self.validates = False
        self.rates: list[tuple[str, float]] = []
        trained = SimpleNamespace(optimizer=object())
        fixed = SimpleNamespace(optimizer=None)
        self.coordinator: Any = SimpleNamespace(
            name="fake",
            strategy=SimpleNamespace(parameters={"w": trained, "fixed": fixed, "users": trained}),
            set_learning_rate=lambda name, value: self.rates.append((name, value)),
        )
        self.history: Any = psnb.TrainingHistory()

    def stop(self, reason: str) -> None:
        self.stopped.append(reason)


def row(epoch: int, **metrics: float) -> psnb.EpochRow:
    return psnb.EpochRow(epoch, metrics, 100, 10, 1.5)
