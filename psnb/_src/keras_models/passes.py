"""Passes: calling closures for all batches of a dataset, and telling what they return.

In the notebook's thread that asks for results; what is scheduled ahead runs meanwhile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from psnb._src.coordinator import (
    ClosureStatus,
    ClusterCoordinator,
    RemoteValue,
    closures_of_epoch,
)
from psnb._src.data import Dataset
from psnb._src.modes import Sync
from psnb.errors import ConfigurationError

_AHEAD = 4
"""Closures for each worker that are scheduled at a time."""

_LOOK_AGAIN = 1.0
"""Seconds after which a closure that has not ended is asked whether a silent server holds it up."""


class Passes(ABC):
    """Goes through a dataset, again and again."""

    @abstractmethod
    def run(
        self,
        closure: Callable[[Iterator[Any]], Any],
        steps: int | None,
        begin: Callable[[int], None],
        *,
        hold: bool = False,
    ) -> Iterator[Any]:
        """Call a closure for all batches, or for the next ones; yield what it returns.

        Parameters
        ----------
        closure : callable
            Takes a batch with ``next`` from what it is given; returns None if there is none.
        steps : int or None
            For how many batches; the next call goes on with those after them. None for all.
        begin : callable
            Is told the number of a batch before what it gave is yielded.
        hold : bool
            In mode `Sync`, tell ``begin`` before a batch is scheduled, yield when its round is
            applied, and schedule nothing before all of its round were taken: so who takes a batch
            sees the parameters as they are after it, and ``begin`` changes what it is trained with.
            In other modes there is no such moment, as batches of several workers overlap.
        """


def passes(coordinator: ClusterCoordinator, data: Dataset) -> Passes:
    """Return how to go through a dataset on the workers.

    In mode `Sync` the notebook reads the batches and hands them out in their order, so that a round
    has the same ones whichever is faster or dies. In others, workers lease parts and read them;
    unless the dataset cannot be cut into parts (``take``, ``repeat``, generators).
    """
    if isinstance(coordinator.strategy.mode, Sync):
        return Ordered(coordinator, data)
    try:
        return Leased(coordinator, data)
    except ConfigurationError:
        return Ordered(coordinator, data)


class Leased(Passes):
    """Workers lease parts of the dataset; results come as closures end."""

    def __init__(self, coordinator: ClusterCoordinator, data: Dataset) -> None:
        self._coordinator = coordinator
        self._data = coordinator.create_per_worker_dataset(data, sharding="dynamic")
        self._under_way: Any = None

    def run(
        self,
        closure: Callable[[Iterator[Any]], Any],
        steps: int | None,
        begin: Callable[[int], None],
        *,
        hold: bool = False,
    ) -> Iterator[Any]:
        """See `Passes.run`."""
        if self._under_way is None or self._under_way.progress().over:
            self._under_way = iter(self._data)
        iterator, count = self._under_way, 0
        ended = closures_of_epoch(
            self._coordinator,
            closure,
            iterator,
            lambda waiting: steps is None or count + waiting < steps,
        )
        with closing(ended):  # type: ignore[type-var]
            for remote in ended:
                if remote.status is not ClosureStatus.COMPLETED:
                    self._coordinator.join(progress=False)  # raises what it raised
                elif (found := remote.returned()) is not None:  # its round goes on
                    begin(count)
                    count += 1
                    yield found
        self._coordinator.join(progress=False)
        if steps is None:
            self._under_way = None


class Ordered(Passes):
    """The notebook reads the batches; results come in their order."""

    def __init__(self, coordinator: ClusterCoordinator, data: Dataset) -> None:
        self._coordinator, self._data = coordinator, data
        self._under_way: Iterator[Any] | None = None

    def run(
        self,
        closure: Callable[[Iterator[Any]], Any],
        steps: int | None,
        begin: Callable[[int], None],
        *,
        hold: bool = False,
    ) -> Iterator[Any]:
        """See `Passes.run`."""
        batches = self._under_way or iter(self._data)
        mode = self._coordinator.strategy.mode
        round_size = mode.closures if hold and isinstance(mode, Sync) else None
        waiting: deque[RemoteValue] = deque()
        left, over = steps, False
        scheduled = taken = 0
        while True:
            # A round that is held is taken to its end first.
            ahead = (round_size or self._ahead()) if not (round_size and waiting) else 0
            while not over and left != 0 and len(waiting) < ahead:
                batch = next(batches, None)
                over = batch is None
                if not over:
                    if round_size:
                        begin(scheduled)
                    waiting.append(self._coordinator.schedule(closure, (iter([batch]),)))
                    left = None if left is None else left - 1
                    scheduled += 1
            if not waiting:
                break
            remote = waiting.popleft()
            while not remote.wait(_LOOK_AGAIN):
                if remote.ended_or_held_up():
                    remote.fetch()  # raises what holds it up
            if remote.status is not ClosureStatus.COMPLETED:
                self._coordinator.join(progress=False)  # raises what it or another one raised
            if round_size:
                remote.fetch()  # waits for its round
            else:
                begin(taken)
            taken += 1
            yield remote.returned()
        self._coordinator.join(progress=False)
        self._under_way = None if over or steps is None else batches

    def _ahead(self) -> int:
        """Return how many batches are scheduled at a time."""
        return _AHEAD * max(1, self._coordinator.strategy.num_workers)
