"""JSONLinesLog: writes what happens in training into a file of JSON lines."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psnb._src.excerpt import error_text
from psnb._src.remote_path import Place
from psnb._src.training.callback import Callback

if TYPE_CHECKING:
    from psnb._src.training.callback import TrainingSnapshot
    from psnb._src.training.trainer import Trainer
    from psnb._src.training.training_history import EpochRow, TrainingHistory


class JSONLinesLog(Callback):
    """Appends a line for all that happens: ``{"time": …, "event": "epoch", "epoch": 1, …}``.

    Events are ``"begin"``, ``"batch"`` (now and then), ``"epoch"``, ``"checkpoint"``,
    ``"failure"`` and ``"end"``. A metric that is no finite number is null. An epoch that was
    stopped has a line, too, and one more of the whole if training goes on with it.

    Parameters
    ----------
    path : str or os.PathLike
        The file; it is continued if it is there already.
    every : float
        Seconds between two ``"batch"`` lines, at least.
    """

    def __init__(self, path: str | os.PathLike[str], every: float = 10.0) -> None:
        self._path, self._every = Path(path), every
        self._told = -math.inf

    def on_begin(self, trainer: Trainer) -> None:
        """Append a line; the first ``"batch"`` of each training has one."""
        self._told = -math.inf
        self._append("begin", {"coordinator": trainer.coordinator.name})

    def on_batch(self, trainer: Trainer, snapshot: TrainingSnapshot) -> None:
        """Append a line, if the last one is old enough."""
        now = time.monotonic()
        if now - self._told >= self._every:
            self._told = now
            where = {"epoch": snapshot.epoch, "batch": snapshot.batch}
            self._append("batch", {**where, **_finite(snapshot.metrics)})

    def on_epoch(self, trainer: Trainer, row: EpochRow) -> None:
        """Append a line."""
        counts = {"batches": row.batches, "examples": row.examples, "seconds": row.seconds}
        self._append("epoch", {"epoch": row.epoch, **counts, **_finite(row.metrics)})

    def on_checkpoint(self, trainer: Trainer, path: Place) -> None:
        """Append a line."""
        self._append("checkpoint", {"path": str(path)})

    def on_failure(self, trainer: Trainer, error: Exception) -> None:
        """Append a line."""
        self._append("failure", {"error": error_text(error)})

    def on_end(self, trainer: Trainer, history: TrainingHistory) -> None:
        """Append a line."""
        self._append("end", {"epochs": len(history.rows), "stopped": history.stopped})

    def _append(self, event: str, values: Mapping[str, Any]) -> None:
        line = json.dumps({"time": time.time(), "event": event, **values}, allow_nan=False)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}
