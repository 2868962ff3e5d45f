"""Downpour: workers compute with pulled variables, and push the sums of several gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from psnb._src.checks import integer
from psnb._src.coordinator import ClusterCoordinator, LeasedIterator
from psnb._src.modes import Geo
from psnb._src.parameters import PulledVariables, accumulating
from psnb._src.training.device_worker import DeviceWorker
from psnb.errors import ConfigurationError


@dataclass(frozen=True)
class Downpour(DeviceWorker):
    """Workers compute with variables pulled now and then, and push gradients added up.

    Variables that a step reads as a whole come from the worker's copies. After every ``pull_every``
    batches a thread of its own pulls them anew, while steps go on with the last ones; so they are
    up to twice as many batches old. Rows of embeddings are looked up for each batch, as by Paddle.

    A closure takes ``push_every`` batches. The gradients of each variable, and of each row, are
    added up over them and pushed once, as one step of its optimizer. A step does not see what the
    batches before it have pushed. Everything that a closure writes has its effect exactly once, as
    in other closures; if its worker dies, it computes all of its batches again.

    In `Sync` mode each round has one closure, that is ``push_every`` batches, of each worker. Which
    variables it has read depends on time, so two runs are not equal to the bit.

    After Dean et al., *Large Scale Distributed Deep Networks*, NIPS 2012 (without the replica's own
    steps between two pulls), and Paddle's ``DownpourWorker``.

    Parameters
    ----------
    pull_every : int
        After how many batches of a worker its variables are pulled anew.
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
        for name in ("pull_every", "push_every"):
            object.__setattr__(self, name, integer(f"Downpour: {name}", getattr(self, name), 1))

    def train(
        self,
        coordinator: ClusterCoordinator,
        step: Callable[..., Any],
        iterator: LeasedIterator,
        watch: Callable[[], object],
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
        with accumulating(variables):
            for number in range(self._count):
                variables.begin_batch()
                try:
                    self._step(iterator)
                except StopIteration:
                    if not number:
                        raise  # there was nothing to do at all
                    break
