"""What tests of trainers share: a step that counts each example in a table, and who listens."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import psnb
from tests.integration.helpers import wait_for_file

auc = psnb.metrics.AUC()


def visits_of(strategy: psnb.ParameterServerStrategy, rows: int) -> psnb.Embedding:
    """Return a table that counts: pushing -1 to a row adds one to it."""
    return strategy.embedding("visits", 1, rows=rows, initializer=0.0, optimizer=psnb.SGD(1.0))


def numbers(table: psnb.Embedding, rows: int) -> list[float]:
    return table.lookup(np.arange(rows))[:, 0].tolist()


def counting(table: psnb.Embedding, meet: Callable[[], None] = bool) -> Callable[[Any], None]:
    """Return a step that counts each example, and meets somebody in the middle."""

    def step(iterator: Any) -> None:
        ids = next(iterator)
        table.push(ids, -np.ones((len(ids), 1), np.float32))
        labels = ids % 2
        mean = float(np.mean(ids))
        psnb.report(examples=len(ids), programs=1.0, loss=mean, auc=auc(labels, (ids % 4) / 4.0))
        if 150 in ids:
            meet()

    return step


def holding(step: Callable[[Any], None], first: int, go_on: Path) -> Callable[[Any], None]:
    """Return a step that holds examples from a number on until a file is there."""

    def held(iterator: Any) -> None:
        ids = next(iterator)
        if ids[0] >= first:
            wait_for_file(go_on)
        step(iter([ids]))

    return held


def slow_until_saved(
    step: Callable[[Any], None], first: int, folder: Path
) -> Callable[[Any], None]:
    """Return a step that takes longer for examples from a number on until a checkpoint is there.

    It cannot wait for that: to save is to wait for steps.
    """

    def slow(iterator: Any) -> None:
        ids = next(iterator)
        if ids[0] >= first and not any(folder.glob("ckpt-*")):
            time.sleep(0.05)
        step(iter([ids]))

    return slow


class Heard(psnb.Callback):
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_begin(self, trainer: psnb.Trainer) -> None:
        self.heard.append("begin")

    def on_batch(self, trainer: psnb.Trainer, snapshot: psnb.TrainingSnapshot) -> None:
        if self.heard[-1] != "batch":
            self.heard.append("batch")

    def on_epoch(self, trainer: psnb.Trainer, row: psnb.EpochRow) -> None:
        self.heard.append(f"epoch {row.epoch}")

    def on_checkpoint(self, trainer: psnb.Trainer, path: Path) -> None:
        self.heard.append("checkpoint")

    def on_failure(self, trainer: psnb.Trainer, error: Exception) -> None:
        self.heard.append(f"failure {type(error).__name__}")

    def on_end(self, trainer: psnb.Trainer, history: psnb.TrainingHistory) -> None:
        self.heard.append(f"end {len(history.rows)}")
