"""DeviceWorker: how the workers go through one epoch; Paddle's name for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from psnb._src.coordinator import ClusterCoordinator, LeasedIterator


class DeviceWorker:
    """How the workers go through one epoch: base of `Hogwild` and the others, and of your own.

    Attributes
    ----------
    takes_step : bool
        Whether it trains a step; else it has what it trains.

    Notes
    -----
    It has one method, `train`. `Trainer` calls it for each epoch, in the thread that called
    `Trainer.train_from_dataset`.
    """

    takes_step: ClassVar[bool] = True

    def train(
        self,
        coordinator: ClusterCoordinator,
        step: Callable[..., Any],
        iterator: LeasedIterator,
        watch: Callable[[], object],
    ) -> None:
        """Have every example of an epoch used exactly once.

        Parameters
        ----------
        coordinator : ClusterCoordinator
            Schedules.
        step : callable
            A closure of an iterator, which trains on what it takes.
        iterator : LeasedIterator
            The epoch.
        watch : callable
            To be called in this thread about ten times a second: fetch lines, callbacks, save
            intervals and requests to stop happen in it. It may raise; then nothing new must begin,
            and what it raises is raised. `Trainer` waits for what runs.

        Raises
        ------
        Exception
            What a closure raised, or ``watch``.
        """
        coordinator.run_epoch(step, iterator, progress=False, watch=watch)
