"""EarlyStopping: ends training when a metric gets no better."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from psnb._src.checks import integer
from psnb._src.excerpt import shown
from psnb._src.training.callback import Callback
from psnb.errors import ConfigurationError

if TYPE_CHECKING:
    from psnb._src.training.trainer import Trainer
    from psnb._src.training.training_history import EpochRow


class EarlyStopping(Callback):
    """Ends training when a metric has not improved for some epochs.

    If training is resumed, the epochs that the history has by then count, as if it had gone on: one
    that this has ended is ended again at once, unless ``patience`` is larger now.

    Parameters
    ----------
    metric : str
        A metric of the history: ``"val_auc"``, for example.
    patience : int
        After how many epochs without an improvement; at least 1.
    mode : {"min", "max"}
        Whether it improves downwards or upwards.
    min_delta : float
        By how much it must change to count as improved.

    Attributes
    ----------
    best : float
        The best value so far; NaN before the first epoch.
    best_epoch : int
        When that was; 0 before.

    Raises
    ------
    ConfigurationError
        If an argument is of the wrong kind; while training, if there is no such metric.
    """

    def __init__(
        self,
        metric: str,
        patience: int = 1,
        mode: Literal["min", "max"] = "min",
        min_delta: float = 0.0,
    ) -> None:
        if mode not in ("min", "max"):
            raise ConfigurationError(
                f"EarlyStopping: mode must be 'min' or 'max', found {shown(mode)}"
            )
        if not min_delta >= 0:
            raise ConfigurationError(
                f"EarlyStopping: min_delta must be >= 0, found {shown(min_delta)}"
            )
        self._metric, self._sign = metric, 1.0 if mode == "max" else -1.0
        self._patience = integer("EarlyStopping: patience", patience, 1)
        self._min_delta = min_delta
        self.best, self.best_epoch = math.nan, 0

    def on_begin(self, trainer: Trainer) -> None:
        """Forget an earlier training, and learn of the epochs that are resumed."""
        self.best, self.best_epoch = math.nan, 0
        for row in trainer.history.rows:
            if self._metric in row.metrics:  # validation may be new
                self._judge(trainer, row)

    def on_epoch(self, trainer: Trainer, row: EpochRow) -> None:
        """Stop if it is enough."""
        if trainer.history.stopped:
            return  # there is nothing to stop, and a part of an epoch says nothing
        if self._metric not in row.metrics:
            raise ConfigurationError(
                f"EarlyStopping: there is no metric {self._metric!r}; found "
                f"{', '.join(row.metrics) or 'none'}"
            )
        self._judge(trainer, row)

    def _judge(self, trainer: Trainer, row: EpochRow) -> None:
        value = row.metrics[self._metric]
        gain = self._sign * (value - self.best)
        if not self.best_epoch or gain > self._min_delta or math.isnan(self.best):
            self.best, self.best_epoch = value, row.epoch
        elif row.epoch - self.best_epoch >= self._patience:
            trainer.stop(
                f"{self._metric} has not improved since epoch {self.best_epoch}: {self.best:.4g}"
            )
