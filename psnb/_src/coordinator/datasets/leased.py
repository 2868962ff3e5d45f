"""Datasets that are read by leases: every example is used exactly once per epoch."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from psnb._src.coordinator.closures import Chooser
from psnb._src.coordinator.datasets.lease_registry import LeaseRegistry
from psnb._src.coordinator.datasets.leases import Progress
from psnb._src.coordinator.datasets.per_worker import (
    PerWorkerIterator,
    PerWorkerValues,
    ResourceRegistry,
)
from psnb._src.coordinator.datasets.whole_splits import WholeSplits
from psnb._src.data import Dataset, Spec, identity
from psnb._src.excerpt import counted
from psnb._src.monitor import EpochCount, Share, WorkerStatistics
from psnb._src.runtime import make_leased_iterator
from psnb.errors import ConfigurationError, DatasetError


class LeasedIterator(PerWorkerIterator):
    """One epoch; closures take from it with ``next``, and the workers share its splits.

    A closure that finds nothing left, or nothing at the moment, gets a StopIteration. If it raises
    that before it has written anything, it ends without an error.
    """

    def __init__(
        self,
        registry: ResourceRegistry,
        leases: LeaseRegistry,
        epoch: int,
        make: Callable[..., Any],
        args: tuple[Any, ...],
        spec: Callable[[], Spec],
    ) -> None:
        self._leases, self._epoch = leases, epoch
        weakref.finalize(self, leases.close, epoch)
        super().__init__(registry, make, (*args, epoch), spec=spec)
        # Whether `run_epoch` may find it over: its state was, or a call was cut short and is made
        # again, while the closures that it had scheduled have used the rest.
        self.may_be_over = self.exhausted
        self.length: int | None = None
        """How many elements it has; None if that is unknown."""

    def require_rest(self) -> None:
        """Raise ConfigurationError if every example was used, and not by a call cut short."""
        if self.exhausted and not self.may_be_over:
            raise ConfigurationError(
                "run_epoch: every example of this epoch was used already, so nothing would run. "
                "Begin another epoch: run_epoch(step, iter(dataset))"
            )

    def progress(self) -> Progress:
        """Return the progress of the epoch; cheap, any thread."""
        return self._leases.progress(self._epoch)

    def count(self) -> EpochCount:
        """Return how much of the epoch is done, for views; cheap, any thread."""
        found = self.progress()
        length = found.visits if found.over else self.length
        if length is not None:  # the last epoch may have been a shorter one
            length = max(length, found.visits)
        return EpochCount(found.visits, length, found.parts)

    def share(self) -> Share:
        """Return how much of the epoch is done, for lines of progress; cheap, any thread."""
        return Share(*self.progress().parts, "parts of the epoch")

    def state(self) -> dict[str, Any]:
        """Return the part of the epoch that is not used yet; `LeasedDataset.iterator` takes it.

        It has JSON's types, for a checkpoint's metadata. Take both while nothing runs, so that they
        fit each other: ``coordinator.drain()``, ``manager.save({"epoch": iterator.state()})``.
        Examples of a closure that was lost with its worker, and will run again, count as not used.
        """
        return self._leases.state(self._epoch)

    def unread(self) -> bool:
        """Return whether there are examples that no closure has taken; cheap, any thread."""
        return self._leases.unread(self._epoch)

    def suits(self, worker: WorkerStatistics, lane: int | None = None) -> bool:
        """Return whether a closure that takes from this should go to a worker; cheap."""
        return self._leases.suits(self._epoch, worker.name, lane)

    @property
    def seats(self) -> int | None:
        """How many closures a round has; None if there are no rounds, and so no order."""
        return self._leases.seats

    def lanes(self) -> list[int]:
        """Return the lanes in which there is something to read, if there are rounds."""
        return self._leases.lanes(self._epoch)

    @property
    def exhausted(self) -> bool:
        """Whether every example was used."""
        return self.progress().over


Epoch = TypeVar("Epoch", bound=LeasedIterator)


class Epochs(ABC, Generic[Epoch]):
    """Base of datasets that are read by leases; ``iter`` of one begins an epoch."""

    _latest: Epoch | None = None

    def __iter__(self) -> Epoch:
        return self.iterator()

    def iterator(self, state: Mapping[str, Any] | None = None) -> Epoch:
        """Begin an epoch, or go on with one, also one of another notebook with the same dataset.

        Parameters
        ----------
        state : mapping, optional
            From the `LeasedIterator.state` of that epoch.

        Raises
        ------
        ConfigurationError
            If the state belongs to a dataset that was cut or shuffled in another way, or if the
            dataset must be in memory and is not.
        """
        begun, latest = self._begin(state), self._latest
        if begun.length is None and latest is not None:
            begun.length = latest.count().batches  # the same elements in another order
        self._latest = begun
        return begun

    def progress(self) -> Progress:
        """Return the progress of the latest epoch: splits done, leased and left, and visits.

        Raises
        ------
        ConfigurationError
            If no epoch was begun.
        """
        if self._latest is None:
            raise ConfigurationError("no epoch was begun: iterator = iter(dataset)")
        return self._latest.progress()

    @abstractmethod
    def whole_splits(self) -> WholeSplits:
        """Return the splits for closures that read one each; for psnb only."""

    @abstractmethod
    def _begin(self, state: Mapping[str, Any] | None) -> Epoch:
        """Return the iterator of an epoch."""


class LeasedDataset(Epochs[LeasedIterator]):
    """A dataset whose parts workers lease; ``iter`` of it begins an epoch.

    Thread-safe.
    """

    def __init__(
        self,
        registry: ResourceRegistry,
        leases: LeaseRegistry,
        splits: Sequence[Dataset],
        asked: int,
    ) -> None:
        self._registry, self._leases, self._splits = registry, leases, splits
        # There may be more or fewer splits than asked for, and another number is cut elsewhere.
        self._known = {"splits": asked, "of": identity(splits)}
        self._whole: PerWorkerValues | None = None

    def _begin(self, state: Mapping[str, Any] | None) -> LeasedIterator:
        epoch = self._leases.open(len(self._splits), state, dataset=self._known)
        arguments = make_leased_iterator, (list(self._splits),), partial(_spec, self._splits)
        begun = LeasedIterator(self._registry, self._leases, epoch, *arguments)
        begun.length = _length(self._splits)
        return begun

    @property
    def element_spec(self) -> Spec:
        """Shapes and dtypes of the elements; see `psnb.data.Dataset.element_spec`."""
        return _spec(self._splits)

    def whole_splits(self) -> WholeSplits:
        """Return the splits for closures that read one each; for psnb only."""
        if self._whole is None:
            self._whole = PerWorkerValues(self._registry, list, (self._splits,))
        return WholeSplits(self._whole, [_anyone() for _ in self._splits])

    def __repr__(self) -> str:
        return f"<psnb.LeasedDataset of {counted(len(self._splits), 'split')}>"


def _spec(splits: Sequence[Dataset]) -> Spec:
    return splits[0].element_spec


def _length(splits: Sequence[Dataset]) -> int | None:
    """Return how many elements there are; None if that is not known here."""
    try:
        counts = [split.cardinality() for split in splits]
    except (OSError, DatasetError):  # of files that only the workers see
        return None
    known = [each for each in counts if each is not None and each >= 0]
    return sum(known) if len(known) == len(counts) else None


def _anyone() -> Chooser:
    """Return a new function: closures are withdrawn by the function that chooses for them."""
    return lambda worker: True
