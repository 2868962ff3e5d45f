"""Scheduling closures until an epoch of a leased dataset is over.

Without rounds a few runs are scheduled ahead for each worker. A run is a closure that the worker
calls repeatedly, each time with a commit of its own: so what the notebook does for a step is shared
by all that a worker does in `LONG_SECONDS`. With rounds, of synchronous updates, they are scheduled
round by round, each when all closures of the one before have ended: their numbers, their slots and
how many there are depend on the dataset alone. While the closures of a round are put, it must not
be ended early. That costs no time, as servers apply a round meanwhile.

Elements that the notebook reads itself go to closures in their order, and so do results.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import cycle, islice
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from distributed import Client

from psnb._src.coordinator.closures import DEFAULT_RETRIES, ScheduleOptions, WorkerPredicate
from psnb._src.coordinator.dask_source import PartitionFeed
from psnb._src.coordinator.leases import LeaseRegistry, Progress
from psnb._src.coordinator.queue import BroadcastCalls
from psnb._src.coordinator.remote_value import RemoteValue, StepValues, require_progress
from psnb._src.coordinator.values import PerWorkerIterator, PerWorkerValues, ResourceRegistry
from psnb._src.data.context import nothing_in
from psnb._src.data.dataset import Dataset
from psnb._src.data.node import Node
from psnb._src.data.nodes.partitions import KnownPartitions
from psnb._src.data.nodes.shuffle import Shuffle
from psnb._src.data.spec import Spec
from psnb._src.data.splits import files_of, identity, partitions_of
from psnb._src.monitor.progress_line import WorkDone
from psnb._src.monitor.statistics import WorkerStatistics
from psnb._src.monitor.training_clock import EpochCount
from psnb._src.utils.text import counted
from psnb._src.utils.threads import Inbox, uninterrupted
from psnb._src.worker.resources import make_leased_iterator
from psnb.errors import ConfigurationError, DatasetError, ServerUnresponsiveError


class DatasetServices(NamedTuple):
    """What datasets need from their coordinator.

    Attributes
    ----------
    registry : ResourceRegistry
        The per-worker values.
    leases : LeaseRegistry
        Opens epochs and knows their leases.
    schedule : callable
        Schedules a function with arguments and options.
    pinned : BroadcastCalls
        Calls each worker.
    client : distributed.Client
        The cluster.
    workers : callable
        Returns name by address of the workers that may run closures; awaited on the client's loop.
    progress : callable
        Returns a context in which progress is shown: as its argument says, or where people look.
    """

    registry: ResourceRegistry
    leases: LeaseRegistry
    schedule: Callable[[Callable[..., Any], tuple[Any, ...], ScheduleOptions], RemoteValue]
    pinned: BroadcastCalls
    client: Client
    workers: Callable[[], Awaitable[Mapping[str, str]]]
    progress: Callable[..., AbstractContextManager[None]]


# WholeSplits: the splits of a dataset for closures that read one each, from beginning to end.
#
# There are no leases here: what such a closure returns counts once, and if its worker is lost, it
# reads its split again. So it must change nothing but what a second run replaces.


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


def map_splits(
    function: Callable[..., Any], splits: WholeSplits, services: DatasetServices, shown: bool | None
) -> list[Any]:
    """Call ``function(datasets, number)`` for each split on some worker; return the results.

    Parameters
    ----------
    function : callable
        A closure that changes no parameters. Returns a result, which is false if its split has
        nothing, and what partitions it has read.
    splits : WholeSplits
        What to read.
    services : DatasetServices
        Schedules.
    shown : bool or None
        Whether progress is shown; as for `ClusterCoordinator.join`.

    Raises
    ------
    DatasetError
        If all files are empty, or closures have read a partition that was computed again meanwhile,
        with other rows.
    Exception
        What the first closure that failed raised. Those that have not begun are withdrawn, and
        those that run have ended.
    """
    remotes: list[RemoteValue] = []
    results, partitions = [], KnownPartitions()
    try:
        for number, chooser in enumerate(splits.choosers):
            how = ScheduleOptions(DEFAULT_RETRIES, 0, chooser, detached=True)
            remotes.append(services.schedule(function, (splits.datasets, number), how))

        def share() -> WorkDone:
            return WorkDone(sum(each.done() for each in remotes), len(remotes), "parts")

        with services.progress(shown, share):
            for each in remotes:
                result, read = each.fetch()
                partitions.add(read)
                results.append(result)
    except BaseException:  # an interrupt, too: the other parts are not waited for
        for chooser in splits.choosers:
            services.pinned.withdraw(chooser, "another part of the dataset failed")
        for each in remotes:
            with suppress(ServerUnresponsiveError):  # what that one holds up cannot be waited for
                each.wait()
        raise
    if splits.files and not any(results):
        raise nothing_in(splits.files)
    return results


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
        self.feed: PartitionFeed | None = None
        """Sees to the partitions of a Dask collection."""
        self.files: list[str] = []
        """What it reads, if one file at least must have a record."""

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
        if self.files and found.over and not found.visits:
            raise nothing_in(self.files)

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

    def share(self) -> WorkDone:
        """Return how much of the epoch is done, for lines of progress; cheap, any thread."""
        return WorkDone(*self.progress().parts, "parts of the epoch")

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

    def suits(self, worker: WorkerStatistics, slot: int | None = None) -> bool:
        """Return whether a closure that takes from this should go to a worker; cheap."""
        return self._leases.suits(self._epoch, worker.name, slot)

    @property
    def round_size(self) -> int | None:
        """How many closures a round has; None if there are no rounds, and so no order."""
        return self._leases.round_size

    def slots(self) -> list[int]:
        """Return the slots in which there is something to read, if there are rounds."""
        return self._leases.slots(self._epoch)

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
        self, services: DatasetServices, whole: Dataset, splits: Sequence[Dataset], asked: int
    ) -> None:
        self._registry, self._leases, self._splits = services.registry, services.leases, splits
        self._whole = whole  # for its spec: the files of one split may be empty
        self._cluster = services.client, services.workers
        read = [partitions_of(split.node) for split in splits]
        self._partitions = [each for each in read if each is not None]
        self._source: Any = self._partitions[0].source if self._partitions else None
        # There may be more or fewer splits than asked for, and another number is cut elsewhere.
        self._known = {"splits": asked, "of": identity(splits)}
        # Sent to each worker once, not with each epoch: arrays in memory may be large.
        self._on_workers = PerWorkerValues(services.registry, list, (list(splits),))

    def _begin(self, state: Mapping[str, Any] | None) -> LeasedIterator:
        epoch = self._leases.open(
            len(self._splits), state, dataset=self._known, order=self._order()
        )
        arguments = make_leased_iterator, (self._on_workers,), partial(_spec, self._whole)
        begun = LeasedIterator(self._registry, self._leases, epoch, *arguments)
        begun.length = _length(self._splits)
        begun.files = files_of(self._whole.node)
        if self._source is not None:
            numbers = [[part.number for part in each.parts] for each in self._partitions]
            feed = PartitionFeed(self._source, numbers, *self._cluster, self._leases, epoch)
            begun.feed = feed
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
        places = {
            number: place
            for place, number in enumerate(dict.fromkeys(map(first.__getitem__, order)))
        }
        return sorted(order, key=lambda split: places[first[split]])

    @property
    def element_spec(self) -> Spec:
        """Shapes and dtypes of the elements; see `psnb.data.Dataset.element_spec`."""
        return _spec(self._whole)

    def whole_splits(self) -> WholeSplits:
        """Return the splits for closures that read one each; for psnb only."""
        if self._source is not None and not self._source.persisted:
            raise ConfigurationError(
                "this reads each partition of a Dask collection as a whole, and the collection is "
                "computed as an epoch goes on: persist() it first"
            )
        choosers = [_anyone() for _ in self._splits]
        return WholeSplits(self._on_workers, choosers, files_of(self._whole.node))

    def __repr__(self) -> str:
        return f"<psnb.LeasedDataset of {counted(len(self._splits), 'split')}>"


def _spec(dataset: Dataset) -> Spec:
    return dataset.element_spec


def _length(splits: Sequence[Dataset]) -> int | None:
    """Return how many elements there are; None if that is not known here."""
    try:
        counts = [split.cardinality() for split in splits]
    except (OSError, DatasetError):  # of files that only the workers see
        return None
    known = [each for each in counts if each is not None and each >= 0]
    return sum(known) if len(known) == len(counts) else None


def _anyone() -> WorkerPredicate:
    """Return a new function: closures are withdrawn by the function that chooses for them."""
    return lambda worker: True


_AHEAD = 4
"""Closures that are scheduled for each worker, so that it never waits for the notebook."""

MOST_STEPS = 256
"""Steps of a run, at most."""

MOST_RESULTS = 16
"""The same where the notebook takes what each returns, and may stop by it."""

_LOOK_AGAIN = 0.1
"""Seconds after which idle workers look again: the data of a lost worker may be free by now."""


class EpochServices(NamedTuple):
    """What is needed of a coordinator to run an epoch.

    Attributes
    ----------
    poll : callable
        Begins the saves that are due; cheap.
    withdraw : callable
        Cancels the closures that wait for a worker chosen by a function, with a reason.
    filling : callable
        Returns a context in which the closures of a round are put: `ClosureQueue.filling`.
    workers : callable
        Tells how many workers there are.
    wake : callable
        Lets idle workers look for work.
    inbox : Inbox
        To wait for closures.
    """

    poll: Callable[[], object]
    withdraw: Callable[[WorkerPredicate, str], None]
    filling: Callable[[], AbstractContextManager[None]]
    workers: Callable[[], int]
    wake: Callable[[], None]
    inbox: Inbox


def run_epoch(
    iterator: LeasedIterator,
    schedule: Callable[[WorkerPredicate, int | None], RemoteValue],
    services: EpochServices,
    watch: Callable[[], object] = bool,
    wanted: Callable[[int], bool] = lambda waiting: True,
) -> Iterator[RemoteValue]:
    """Schedule closures, a few at a time, until an epoch is over; yield them as they end.

    They go to workers that have something to read; on others they would find nothing. When this
    ends early, those that have not begun are cancelled, and runs end with the step that they do;
    but a round that was scheduled is run.

    Parameters
    ----------
    iterator : LeasedIterator
        The epoch.
    schedule : callable
        Schedules a closure on whichever worker a function chooses, to take from a slot if there are
        rounds.
    services : EpochServices
        Of the coordinator.
    watch : callable
        Called each time that closures have ended, and ten times a second. What it raises ends this.
    wanted : callable
        Takes how many closures have not been yielded, and returns whether one more is wanted; when
        none is left and none is wanted, that is all.
    """
    suits = iterator.suits  # once: closures are withdrawn by this very object
    slots = [partial(_suits_slot, iterator, slot) for slot in range(iterator.round_size or 0)]

    def fill(waiting: list[RemoteValue]) -> bool:
        over = iterator.progress().over
        if over and any(isinstance(each, StepValues) for each in waiting):
            # What their last steps have returned may be on its way.
            services.withdraw(suits, "the epoch is over")
            return True
        # Nothing may be waiting though there is more: other closures have taken the rest.
        if over or not (waiting or wanted(0)):
            return False
        if iterator.round_size is None:
            while iterator.unread() and _room(waiting, services) and wanted(len(waiting)):
                waiting.append(schedule(suits, None))
        elif not waiting:
            with uninterrupted, services.filling():
                for slot in islice(cycle(iterator.slots()), iterator.round_size):
                    if wanted(len(waiting)):
                        waiting.append(schedule(slots[slot], slot))
        return True

    waiting: list[RemoteValue] = []
    try:
        yield from _ended(waiting, fill, services, watch)
        yield from (each for each in waiting if each.done())
    finally:
        services.withdraw(suits, "the epoch is over")


def run_in_order(
    elements: Iterator[Any],
    schedule: Callable[[Any], RemoteValue],
    services: EpochServices,
    round_size: int | None = None,
) -> Iterator[RemoteValue]:
    """Schedule a closure for each element that is read here; yield them in the elements' order.

    The first one is yielded as well when an unresponsive server holds it up: ``fetch`` raises that.
    When this ends early, what was scheduled is run.

    Parameters
    ----------
    elements : iterator
        Read here, no more of them than are scheduled.
    schedule : callable
        Schedules a closure for an element.
    services : EpochServices
        Of the coordinator.
    round_size : int, optional
        Schedule that many at a time, and wait until all were yielded; by default always a few.
    """

    def fill(waiting: list[RemoteValue]) -> bool:
        room = _room(waiting, services)
        if round_size is not None:
            room = 0 if waiting else round_size
        for element in islice(elements, room):
            waiting.append(schedule(element))
        return bool(waiting)

    return _ended([], fill, services, in_order=True)


def _room(waiting: list[RemoteValue], services: EpochServices) -> int:
    """Return how many more closures are scheduled now."""
    return max(0, _AHEAD * max(1, services.workers()) - len(waiting))


def _ended(
    waiting: list[RemoteValue],
    fill: Callable[[list[RemoteValue]], bool],
    services: EpochServices,
    watch: Callable[[], object] = bool,
    *,
    in_order: bool = False,
) -> Iterator[RemoteValue]:
    """Take closures out of a list as they end, and yield them, while ``fill`` goes on."""
    # They come here by themselves: to look at all that wait, at the end of each turn of the loop,
    # took a third of the notebook's time with 200 workers.
    done: deque[RemoteValue] = deque()
    asked: set[RemoteValue] = set()
    while fill(waiting):
        for each in () if in_order else waiting:
            if each not in asked:
                asked.add(each)
                each.call_back(done.append)
        steps = [each for each in waiting if isinstance(each, StepValues)]
        ready: Callable[[], Any] = partial(_any_done, done, steps)
        if in_order:
            ready = waiting[0].ended_or_blocked
        ended = (in_order and waiting[0].done()) or services.inbox.wait(ready, _LOOK_AGAIN)
        if not ended:
            services.wake()
            require_progress(waiting)
        elif in_order:  # one: the next takes its place before the second is looked at
            yield waiting.pop(0)
        else:
            yield from [each for each in steps if each.arrived and not each.done()]
            while done:
                each = done.popleft()
                waiting.remove(each)
                asked.remove(each)
                yield each
        services.poll()
        watch()


def _suits_slot(iterator: LeasedIterator, slot: int, worker: WorkerStatistics) -> bool:
    return iterator.suits(worker, slot)


def _any_done(done: Sized, steps: list[StepValues]) -> bool:
    return bool(done) or any(each.arrived for each in steps)
