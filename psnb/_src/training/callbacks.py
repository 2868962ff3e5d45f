"""Callbacks that end training early, and that set learning rates by the epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal

from psnb._src.training.history import EpochRow
from psnb._src.training.trainer import Callback, Trainer
from psnb._src.utils.checks import integer
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError


class EarlyStopping(Callback):
    """Ends training when a metric has not improved for some epochs.

    If training is resumed, the epochs of the history count, as if it had never stopped: training
    that this has ended is ended again immediately, unless ``patience`` is larger now.

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


class LearningRateScheduler(Callback):
    """Sets the learning rate of parameters before each epoch, as Keras's does.

    Rates that change with every update are a `Schedule` of the optimizer itself:
    ``psnb.Adagrad(psnb.CosineDecay(0.05, 10_000))``.

    Parameters
    ----------
    schedule : callable
        Takes the number of an epoch, from 1 on, and returns its learning rate.
    parameters : iterable of str, optional
        The names of variables and embeddings; by default all that have an optimizer.

    Raises
    ------
    ConfigurationError
        If ``schedule`` is not a function; while training, if there is no such parameter, or a rate
        is out of range.
    """

    def __init__(
        self, schedule: Callable[[int], float], parameters: Iterable[str] | None = None
    ) -> None:
        if not callable(schedule):
            raise ConfigurationError(
                f"LearningRateScheduler takes a function of the epoch, found {shown(schedule)}"
            )
        self._schedule = schedule
        self._parameters = None if parameters is None else tuple(parameters)

    def on_epoch_begin(self, trainer: Trainer, epoch: int) -> None:
        """Set the rates of the epoch."""
        parameters = trainer.coordinator.strategy.parameters
        names = self._parameters
        if names is None:
            names = tuple(name for name, each in parameters.items() if each.optimizer is not None)
        for name in names:
            trainer.coordinator.set_learning_rate(name, float(self._schedule(epoch)))
