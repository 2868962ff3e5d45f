"""DeviceWorker: how the workers go through one epoch; Paddle's name for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from psnb._src.client.local.downpour import PulledVariables, accumulating
from psnb._src.coordinator.coordinator import ClusterCoordinator
from psnb._src.coordinator.datasets.leased import LeasedIterator
from psnb._src.protocol.modes import Geo
from psnb._src.utils.checks import check_fields, integer
from psnb._src.worker.resources import lease_requests
from psnb._src.worker.taken import taken_in_vain
from psnb.errors import ConfigurationError

Step = Callable[..., Any]
"""A closure of an iterator, which trains on what it takes."""

Watch = Callable[[], object]
"""What is called in the trainer's thread while the workers train."""


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
        self, coordinator: ClusterCoordinator, step: Step, iterator: LeasedIterator, watch: Watch
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


def positive(worker: DeviceWorker) -> Callable[[str, Any], int]:
    """Return what checks a device worker's field, a positive whole number."""
    return lambda name, value: integer(f"{type(worker).__name__}: {name}", value, 1)


@dataclass(frozen=True)
class Hogwild(DeviceWorker):
    """Each worker trains on batch after batch, without waiting for others; the default.

    Its threads share the parameters and the dataset's iterator. No update waits for another: the
    values that a step has read may be out of date by as many updates as all workers have threads.
    With more threads than cores, pulling the next batch and committing the last overlap with
    computing; numpy, numba, XLA and PyTorch release the interpreter's lock.

    After Niu et al., *Hogwild!: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent*,
    NIPS 2011; Paddle's ``HogwildWorker``, whose threads share the memory of one process.

    Parameters
    ----------
    threads : int, optional
        How many threads of each worker train at the same time; by default as many as it has.

    Raises
    ------
    ConfigurationError
        If ``threads`` is not a positive integer.
    """

    threads: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, positive(self), "threads")

    def train(
        self, coordinator: ClusterCoordinator, step: Step, iterator: LeasedIterator, watch: Watch
    ) -> None:
        """Train in ``threads`` threads of each worker; see `DeviceWorker.train`."""
        coordinator.use_threads(self.threads)
        try:
            super().train(coordinator, step, iterator, watch)
        finally:
            coordinator.use_threads(None)


@dataclass(frozen=True)
class Downpour(DeviceWorker):
    """Workers compute with variables pulled now and then, and push gradients added up.

    Variables that a step reads as a whole come from the worker's copies. After every ``pull_every``
    batches a separate thread pulls them again, while steps use the last ones; so they are up to
    twice as many batches old. Rows of embeddings are looked up for each batch, as by Paddle.

    A closure takes ``push_every`` batches. The gradients of each variable, and of each row, are
    added up over them and pushed once, as one step of its optimizer. A step does not see what the
    batches before it have pushed. Everything that a closure writes has its effect exactly once, as
    in other closures; if its worker dies, it computes all of its batches again.

    In `Sync` mode each round has one closure, that is ``push_every`` batches, of each worker. Which
    variables it has read depends on time, so two runs are not equal bit for bit.

    After Dean et al., *Large Scale Distributed Deep Networks*, NIPS 2012 (without the replica's own
    steps between two pulls), and Paddle's ``DownpourWorker``.

    Parameters
    ----------
    pull_every : int
        After how many batches of a worker its variables are pulled again.
    push_every : int
        After how many batches gradients are pushed.

    Raises
    ------
    ConfigurationError
        If a number is below 1.
    """

    pull_every: int = 1
    push_every: int = 1

    def __post_init__(self) -> None:
        check_fields(self, positive(self), "pull_every", "push_every")

    def train(
        self, coordinator: ClusterCoordinator, step: Step, iterator: LeasedIterator, watch: Watch
    ) -> None:
        """Train in closures of several batches; see `DeviceWorker.train`.

        Raises
        ------
        ConfigurationError
            If the strategy's mode is `Geo`, where workers have copies of their own, or gradients
            are to be added up that an optimizer clips by their norm.
        """
        if isinstance(coordinator.strategy.mode, Geo):
            raise ConfigurationError(
                "Downpour pushes gradients, and in mode Geo workers send differences instead: take "
                "psnb.Hogwild() there, or another mode"
            )
        clipped = [
            name
            for name, each in coordinator.strategy.parameters.items()
            if each.optimizer is not None and each.optimizer.clipnorm is not None
        ]
        if self.push_every > 1 and clipped:
            raise ConfigurationError(
                f"Downpour(push_every={self.push_every}) adds gradients up, and the optimizers of "
                f"{', '.join(map(repr, clipped))} clip each by its norm: make them without "
                "clipnorm, and clip in the step"
            )
        variables = coordinator.create_per_worker_resource(PulledVariables, (self.pull_every,))
        batches = _Batches(step, self.push_every)
        coordinator.run_epoch(batches, iterator, (variables,), progress=False, watch=watch)


class _Batches:
    """A closure that makes several steps."""

    def __init__(self, step: Callable[..., Any], count: int) -> None:
        self._step, self._count = step, count
        self.__name__ = getattr(step, "__name__", type(step).__name__)

    def __call__(self, iterator: Iterator[Any], variables: PulledVariables) -> None:
        taken = lease_requests().taken
        with accumulating(variables):
            for number in range(self._count):
                variables.begin_batch()
                before = taken.counts.copy()
                try:
                    self._step(iterator)
                except StopIteration as error:
                    if not number:
                        raise  # there was nothing to do at all
                    if count := taken.in_vain(before):
                        raise taken_in_vain(count) from error
                    break
