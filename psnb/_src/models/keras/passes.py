"""Passes: calling closures for all batches of a dataset, and returning their results.

In the notebook's thread that asks for results; closures that were scheduled ahead run meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import chain, islice
from typing import Any

from psnb._src.coordinator.closures.remote_value import ClosureStatus, RemoteValue, StepValues
from psnb._src.coordinator.coordinator import ClusterCoordinator, coordinator_core
from psnb._src.coordinator.datasets.epoch import run_epoch, run_in_order
from psnb._src.data.dataset import Dataset
from psnb._src.protocol.modes import Sync
from psnb.errors import ConfigurationError


class Passes:
    """Goes through a dataset on the workers, again and again.

    Workers lease parts and read them; results come as closures end. The notebook reads the batches
    instead, and results come in their order, if that is asked for; in mode `Sync`, so that a round
    has the same batches whichever worker is faster or dies; and of datasets that cannot be cut into
    parts (``take``, ``repeat``, generators).
    """

    def __init__(
        self, coordinator: ClusterCoordinator, data: Dataset, *, in_order: bool = False
    ) -> None:
        self._coordinator, self._data = coordinator, data
        mode = coordinator.strategy.mode
        self._round_size = mode.closures if isinstance(mode, Sync) else None
        self._leased: Any = None
        if not in_order and self._round_size is None:
            with suppress(ConfigurationError):
                self._leased = coordinator.create_per_worker_dataset(data, sharding="dynamic")
        self._under_way: Any = None

    def restart(self) -> None:
        """Let the next call begin with the first batch."""
        self._under_way = None

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
            Takes a batch with ``next`` from its argument; returns None if there is none.
        steps : int or None
            For how many batches; the next call continues after them. None for all.
        begin : callable
            Called with the number of a batch before its result is yielded.
        hold : bool
            In mode `Sync`, call ``begin`` before a batch is scheduled, yield when its round is
            applied, and schedule nothing before all of its round were taken: so a batch's taker
            sees the parameters as they are after it, and ``begin`` changes the parameters for it.
            In other modes there is no such moment, as batches of several workers overlap.
        """
        coordinator, core, count = self._coordinator, coordinator_core(self._coordinator), 0
        held = self._round_size if hold else None
        if self._leased is not None:
            if self._under_way is None or self._under_way.progress().over:
                self._under_way = iter(self._leased)
            wanted = None if steps is None else lambda waiting: count + waiting < steps
            epoch = self._under_way
            ended = run_epoch(core, closure, epoch, (), {}, results=True, wanted=wanted)
        else:
            first = [] if self._under_way is None else [*islice(self._under_way, 1)]
            if not first:  # also where the steps of the call before have used all
                self._under_way = iter(self._data)
            numbered = enumerate(islice(chain(first, self._under_way), steps))

            def schedule(batch: tuple[int, Any]) -> RemoteValue:
                if held:
                    begin(batch[0])
                return coordinator.schedule(closure, (iter([batch[1]]),))

            ended = run_in_order(core, numbered, schedule, held)
        with closing(ended):  # type: ignore[type-var]
            for remote in ended:
                if isinstance(remote, StepValues):
                    for found in remote.take():
                        if found is not None:
                            begin(count)
                            count += 1
                            yield found
                    if remote.done() and remote.status is not ClosureStatus.COMPLETED:
                        coordinator.join(progress=False)  # raises what it or another one raised
                    continue
                if not remote.done():
                    remote.fetch()  # raises what holds it up
                if remote.status is not ClosureStatus.COMPLETED:
                    coordinator.join(progress=False)  # likewise
                if held:
                    remote.fetch()  # waits for its round
                if (found := remote.returned()) is not None:  # its round continues
                    if not held:
                        begin(count)
                    count += 1
                    yield found
        coordinator.join(progress=False)
        if steps is None or (self._leased is None and count < steps):
            self._under_way = None
