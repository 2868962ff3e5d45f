"""CSVLog: writes each epoch into a CSV file."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import TYPE_CHECKING

from psnb._src.training.callback import Callback

if TYPE_CHECKING:
    from psnb._src.training.trainer import Trainer
    from psnb._src.training.training_history import EpochRow

_COLUMNS = ("epoch", "batches", "examples", "seconds")


class CSVLog(Callback):
    """Appends a line for each epoch to a CSV file.

    The first epoch that is written decides on the columns. A file that is there already is
    continued, with its own columns. An epoch that was stopped has a line, too, and one more of the
    whole if training goes on with it.

    Parameters
    ----------
    path : str or os.PathLike
        The file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def on_epoch(self, trainer: Trainer, row: EpochRow) -> None:
        """Append a line."""
        values = {name: getattr(row, name) for name in _COLUMNS} | dict(row.metrics)
        names = self._names()
        with self._path.open("a", encoding="utf-8", newline="") as file:
            lines = csv.DictWriter(file, names or list(values), extrasaction="ignore")
            if not names:
                lines.writeheader()
            lines.writerow(values)

    def _names(self) -> list[str]:
        """Return the columns that the file has; none if it is not there."""
        if not self._path.exists():
            return []
        with self._path.open(encoding="utf-8", newline="") as file:
            return next(csv.reader(file), [])
