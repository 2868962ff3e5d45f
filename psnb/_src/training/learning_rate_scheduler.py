"""LearningRateScheduler: sets learning rates by the epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from psnb._src.excerpt import shown
from psnb._src.training.callback import Callback
from psnb.errors import ConfigurationError

if TYPE_CHECKING:
    from psnb._src.training.trainer import Trainer


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
        If ``schedule`` is no function; while training, if there is no such parameter, or a rate is
        out of range.
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
