"""LeasedDataset: a dataset whose parts workers lease, each example once an epoch."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from psnb._src.coordinator.closures.options import WorkerPredicate
from psnb._src.coordinator.core import CoordinatorCore
from psnb._src.coordinator.datasets.dask_source import PartitionFeed
from psnb._src.coordinator.scheduling.lease_registry import LeaseRegistry
from psnb._src.coordinator.scheduling.leases import Progress
from psnb._src.coordinator.values import PerWorkerIterator, PerWorkerValues, ResourceRegistry
from psnb._src.data.dataset import Dataset
from psnb._src.data.node import Node, nothing_in
from psnb._src.data.nodes.shuffle import Shuffle
from psnb._src.data.spec import Spec
from psnb._src.data.splits import files_of, identity, partitions_of
from psnb._src.monitor.progress_line import WorkDone
from psnb._src.monitor.training_clock import EpochCount
from psnb._src.utils.text import counted
from psnb._src.worker.resources import make_leased_iterator
from psnb.errors import ConfigurationError, DatasetError


class WholeSplits(NamedTuple):
    """The splits of a dataset, in order.

    Attributes
    ----------
    datasets : PerWorkerValues
        On each worker the list of them, as datasets.
    choosers : sequence of callable
        For each split, which workers may read it; no two are the same object.
    files : sequence of str
        What they read, if one file at least must have a record.
    """

    datasets: PerWorkerValues
    choosers: Sequence[WorkerPredicate]
    files: Sequence[str] = ()


class LeasedIterator(PerWorkerIterator):
    """One epoch; closures take from it with ``next``, and the workers share its splits.

    A closure that finds nothing left, or nothing at the moment, gets a StopIteration. If it raises
    that before it has written anything, it ends without an error.
    """

    def __init__(
        self,
        resources: ResourceRegistry,
        leases: LeaseRegistry,
        epoch: int,
        make: Callable[..., Any],
        args: tuple[Any, ...],
        spec: Callable[[], Spec],
        length: int | None = None,
        files: Sequence[str] = (),
    ) -> None:
        self._leases, self.epoch = leases, epoch
        weakref.finalize(self, leases.close, epoch)
        super().__init__(resources, make, (*args, epoch), spec=spec)
        # Whether `run_epoch` may find it over: its state was, or a call was cut short and is made
        # again, while the closures that it had scheduled have used the rest.
        self.may_be_over = self.exhausted
        self.length = length
        """How many elements it has; None if that is unknown."""
        self._files = files  # what it reads, if one file at least must have a record

    def require_rest(self) -> None:
        """Raise ConfigurationError if every example was used, and not by a call cut short."""
        if self.exhausted and not self.may_be_over:
            raise ConfigurationError(
                "run_epoch: every example of this epoch was used already, so nothing would run. "
                "Begin another epoch: run_epoch(step, iter(dataset))"
            )

    def check_any(self) -> None:
        """Raise DatasetError if it is over, and none of its files had a record."""
        found = self.progress()
        if self._files and found.over and not found.visits:
            raise nothing_in(self._files)

    def progress(self) -> Progress:
        """Return the progress of the epoch; cheap, any thread."""
        return self._leases.progress(self.epoch)

    def count(self) -> EpochCount:
        """Return how much of the epoch is done, for views; cheap, any thread."""
        found = self.progress()
        length = found.visits if found.over else self.length
        if length is not None:  # the last epoch may have been a shorter one
            length = max(length, found.visits)
        return EpochCount(found.visits, length, found.parts)

    def share(self) -> WorkDone:
        """Return how much of the epoch is done, for lines of progress; cheap, any thread."""
        return WorkDone(*self.progress().parts, "parts of the epoch")

    def state(self) -> dict[str, Any]:
        """Return the part of the epoch that is not used yet; `LeasedDataset.iterator` takes it.

        It has JSON's types, for a checkpoint's metadata. Take both while nothing runs, so that they
        fit each other: ``coordinator.drain()``, ``manager.save({"epoch": iterator.state()})``.
        Examples of a closure that was lost with its worker, and will run again, count as not used.
        """
        return self._leases.state(self.epoch)

    def unread(self) -> bool:
        """Return whether there are examples that no closure has taken; cheap, any thread."""
        return self._leases.unread(self.epoch)

    @property
    def exhausted(self) -> bool:
        """Whether every example was used."""
        return self.progress().over


class Epochs(ABC):
    """Base of datasets that are read by leases; ``iter`` of one begins an epoch."""

    _latest: LeasedIterator | None = None

    def __iter__(self) -> LeasedIterator:
        return self.iterator()

    def iterator(self, state: Mapping[str, Any] | None = None) -> LeasedIterator:
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
    def _begin(self, state: Mapping[str, Any] | None) -> LeasedIterator:
        """Return the iterator of an epoch."""


class LeasedDataset(Epochs):
    """A dataset whose parts workers lease; ``iter`` of it begins an epoch.

    Thread-safe.
    """

    def __init__(
        self, core: CoordinatorCore, whole: Dataset, splits: Sequence[Dataset], asked: int
    ) -> None:
        # Not the core: a dataset does not keep its coordinator.
        self._resources, self._leases, self._strategy = core.resources, core.leases, core.strategy
        self._splits = splits
        self._whole = whole  # for its spec: the files of one split may be empty
        read = [partitions_of(split.node) for split in splits]
        self._partitions = [each for each in read if each is not None]
        self._source: Any = self._partitions[0].source if self._partitions else None
        # There may be more or fewer splits than asked for, and another number is cut elsewhere.
        self._known = {"splits": asked, "of": identity(splits)}
        # Sent to each worker once, not with each epoch: arrays in memory may be large.
        self._on_workers = PerWorkerValues(core.resources, list, (list(splits),))

    def _begin(self, state: Mapping[str, Any] | None) -> LeasedIterator:
        order, whole = self._order(), self._whole
        epoch = self._leases.open(len(self._splits), state, None, self._known, order)
        begun = LeasedIterator(
            self._resources,
            self._leases,
            epoch,
            make_leased_iterator,
            (self._on_workers,),
            lambda: whole.element_spec,
            _length(self._splits),
            files_of(whole.node),
        )
        if self._source is not None:
            numbers = [[part.number for part in each.parts] for each in self._partitions]
            feed = PartitionFeed(self._strategy, self._leases, self._source, numbers, epoch)
            weakref.finalize(begun, feed.close)
            feed.begin()
        return begun

    def _order(self) -> list[int] | None:
        """Return in which order splits are read; None if it is that of their numbers.

        A shuffle mixes the rows of a split, and partitions may be sorted, by day for example.
        """
        node: Node | None = self._splits[0].node
        while self._source is not None and node is not None:
            if isinstance(node, Shuffle):
                order = np.random.default_rng(node.seed).permutation(len(self._splits)).tolist()
                return order if self._source.persisted else self._side_by_side(order)
            node = next(iter(node.inputs), None)
        return None

    def _side_by_side(self, order: list[int]) -> list[int]:
        """Return an order in which parts of one partition follow each other: it is computed once.

        Otherwise it would be let go, and computed again, between any two of them.
        """
        first = [each.parts[0].number for each in self._partitions]
        distinct = list(dict.fromkeys(first[split] for split in order))
        places = dict(zip(distinct, range(len(distinct)), strict=True))
        return sorted(order, key=lambda split: places[first[split]])

    @property
    def element_spec(self) -> Spec:
        """Shapes and dtypes of the elements; see `psnb.data.Dataset.element_spec`."""
        return self._whole.element_spec

    def whole_splits(self) -> WholeSplits:
        """Return the splits for closures that read one each; for psnb only."""
        if self._source is not None and not self._source.persisted:
            raise ConfigurationError(
                "this reads each partition of a Dask collection as a whole, and the collection is "
                "computed as an epoch goes on: persist() it first"
            )
        # A new function each: closures are withdrawn by the one that chooses for them.
        choosers = [anyone() for _ in self._splits]
        return WholeSplits(self._on_workers, choosers, files_of(self._whole.node))

    def __repr__(self) -> str:
        return f"<psnb.LeasedDataset of {counted(len(self._splits), 'split')}>"


def _length(splits: Sequence[Dataset]) -> int | None:
    """Return how many elements there are; None if that is not known here."""
    try:
        counts = [split.cardinality() for split in splits]
    except (OSError, DatasetError):  # of files that only the workers see
        return None
    known = [each for each in counts if each is not None and each >= 0]
    return sum(known) if len(known) == len(counts) else None


def anyone() -> WorkerPredicate:
    return lambda worker: True
