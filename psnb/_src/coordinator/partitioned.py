"""PartitionedDataset: a dataset in the workers' memory; each worker has some of its partitions.

Only the notebook knows generation and layout (see `psnb._src.data.memory`); it sends them with
every call. A shuffle fills the next generation, which becomes the dataset when everything has
arrived; so a shuffle that fails changes nothing.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psnb._src.coordinator.closures import DEFAULT_RETRIES, ScheduleOptions, WorkerPredicate
from psnb._src.coordinator.epoch import (
    DatasetServices,
    Epochs,
    LeasedDataset,
    LeasedIterator,
    WholeSplits,
)
from psnb._src.coordinator.queue import BroadcastCalls
from psnb._src.coordinator.remote_value import RemoteValue
from psnb._src.coordinator.values import PerWorkerDataset, PerWorkerValues
from psnb._src.data.dataset import Dataset
from psnb._src.data.in_memory import InMemoryDataset, QueueDataset, slot_names
from psnb._src.data.memory import MemoryStatistics, ShufflePlan
from psnb._src.data.random import as_seed
from psnb._src.data.spec import Spec
from psnb._src.data.splits import identity, sharded, splits
from psnb._src.data.splits import splits as cut
from psnb._src.monitor.history import WorkerStatistics
from psnb._src.utils.checks import choice
from psnb._src.utils.foreign_names import SaysWhatToUse
from psnb._src.utils.text import counted, shown
from psnb._src.worker import resources
from psnb._src.worker.context import InputContext
from psnb._src.worker.resources import make_dataset
from psnb.errors import ClosureCancelledError, ConfigurationError, InternalError, WorkerLostError


@dataclass(frozen=True, slots=True)
class PartitionStatistics:
    """A dataset in the memory of workers, when it was last asked about.

    Attributes
    ----------
    partitions : int
        Into how many partitions it is cut.
    missing : int
        How many partitions no worker has: they are not loaded yet, or lost.
    workers : mapping of str to MemoryStatistics
        What each worker has, by its name.
    """

    partitions: int
    missing: int
    workers: Mapping[str, MemoryStatistics]

    @property
    def examples(self) -> int:
        """How many examples are in memory (or on disk, if memory is short)."""
        return sum(each.examples for each in self.workers.values())

    @property
    def bytes_in_memory(self) -> int:
        """Bytes that the examples take in the workers' memory."""
        return sum(each.bytes_in_memory for each in self.workers.values())

    @property
    def bytes_on_disk(self) -> int:
        """Bytes beyond ``memory_limit``, which are in files of the workers."""
        return sum(each.bytes_on_disk for each in self.workers.values())


# PartitionOwners: which worker has which partitions of a dataset in memory.
#
# The workers are asked again before each operation: they may die, and come back without partitions.
# A partition that no worker has any more is made again.

_ATTEMPTS = 5

Calls = Iterable[tuple[str, Callable[..., Any], tuple[Any, ...]]]
"""For each call: a worker's name, a function of `runtime.worker_memory`, and its arguments."""


class PartitionOwners:
    """Tells workers what to do with the partitions; for one thread at a time, except `statistics`.

    Parameters
    ----------
    memory : PerWorkerValues
        The `WorkerMemory` of each worker.
    pinned : BroadcastCalls
        Calls each worker.
    """

    def __init__(self, memory: PerWorkerValues, pinned: BroadcastCalls) -> None:
        self._memory, self._pinned = memory, pinned
        self._found: dict[str, resources.WorkerPartitions] = {}

    def statistics(self, partitions: int) -> PartitionStatistics:
        """Return what the workers had at the last call; any thread."""
        found = self._found
        held = {partition for each in found.values() for partition in each.held.partitions}
        workers = {name: each.held for name, each in sorted(found.items())}
        return PartitionStatistics(partitions, partitions - len(held), workers)

    def spread(self, partitions: int) -> dict[int, str]:
        """Return owners for the partitions, spread evenly over the workers."""
        names = sorted(self._found)
        return {partition: names[partition % len(names)] for partition in range(partitions)}

    def run_on_all(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function on all workers, and note what they have; lost workers are left out."""
        names = sorted(self._pinned.worker_names())
        self._found = self._run((worker, function, args) for worker in names)

    def restore(self, generation: int, layout: ShufflePlan) -> dict[int, str]:
        """Ask which worker has which partition, have lost partitions made again; return the owners.

        Raises
        ------
        WorkerLostError
            If there are no workers, or they are lost several times in a row while they make
            partitions.
        DatasetError
            If a partition cannot be made.
        """
        for _ in range(_ATTEMPTS):
            self.run_on_all(resources.survey, generation)
            if not self._found:
                raise WorkerLostError("no worker is there that has, or could have, the dataset")
            owners = {
                partition: name
                for name, each in self._found.items()
                for partition in each.held.partitions
            }
            lost = [partition for partition in range(layout.partitions) if partition not in owners]
            if not lost:
                return owners
            names = sorted(self._found, key=lambda name: len(self._found[name].held.partitions))
            shares = {name: lost[start :: len(names)] for start, name in enumerate(names)}
            self._run(
                (name, resources.make, (generation, layout, share))
                for name, share in shares.items()
                if share
            )
        raise WorkerLostError(
            f"{len(lost)} of {layout.partitions} partitions of the dataset could not be made "
            "again: each time workers were lost. If that is for want of memory, use a lower "
            "memory_limit, or more partitions (splits=)"
        )

    def move(
        self,
        old: int,
        owners: Mapping[int, str],
        new: int,
        layout: ShufflePlan,
        targets: Mapping[int, str],
    ) -> None:
        """Fill a new generation from an old one, and check that everything has arrived.

        Raises
        ------
        WorkerLostError
            If a worker is lost, or was started again.
        DatasetError
            If a worker has no room.
        """
        begun = self._ask(
            (worker, resources.begin, (new, numbers))
            for worker, numbers in by_owner(targets).items()
        )
        where = {found.worker: found.address for found in begun}
        to = new, layout, [where[targets[partition]] for partition in range(layout.partitions)]
        moved = self._ask(
            (owner, resources.scatter, (old, [partition], *to))
            for partition, owner in owners.items()
        )
        there = self._ask((found.worker, resources.survey, (new,)) for found in begun)
        if {found.part for found in there} != {found.part for found in begun}:
            raise WorkerLostError("a worker was started again while examples were sent to it")
        sent = sum(sum(found.sent.values()) for found in moved)
        arrived = sum(found.held.examples for found in there)
        if arrived != sent:
            raise InternalError(f"of {sent} examples that were sent, {arrived} have arrived")

    def _ask(self, calls: Calls) -> list[resources.WorkerPartitions]:
        """Make calls; every worker must answer."""
        named = [(worker, function, (self._memory, *args)) for worker, function, args in calls]
        remotes = self._pinned.run(named, all_or_none=True)
        found, cancelled = [], None
        for (worker, *_), remote in zip(named, remotes, strict=True):
            if remote is None:
                raise WorkerLostError(f"worker {worker!r} has left, with a part of the dataset")
            try:
                found.append(remote.fetch())
            except ClosureCancelledError as error:  # because another call failed, which says why
                cancelled = error
        if cancelled is not None:
            raise cancelled
        return found

    def _run(self, calls: Calls) -> dict[str, resources.WorkerPartitions]:
        """Make calls; return the answers of the workers that answered."""
        named = [(worker, function, (self._memory, *args)) for worker, function, args in calls]
        found = {}
        for (worker, *_), remote in zip(named, self._pinned.run(named), strict=True):
            try:
                if remote is not None:
                    found[worker] = remote.fetch()
            except WorkerLostError:
                continue
        return found


def by_owner(owners: Mapping[int, str]) -> dict[str, list[int]]:
    """Return each owner's partitions."""
    partitions: dict[str, list[int]] = {}
    for partition, owner in sorted(owners.items()):
        partitions.setdefault(owner, []).append(partition)
    return partitions


_LAST = -(1 << 62)
_LOAD_ATTEMPTS = 3
"""How often a shuffle is tried while workers are lost in the middle of it."""


@dataclass(frozen=True)
class _LoadInProgress:
    """A generation that is being read, partition by partition."""

    generation: int
    remotes: list[RemoteValue]
    withdraw: Callable[[], None]

    def end(self) -> None:
        """Cancel partitions that wait to be read, and wait for those that are being read."""
        self.withdraw()
        for remote in self.remotes:
            remote.wait()


class PartitionedDataset(Epochs[LeasedIterator], SaysWhatToUse):
    """An `InMemoryDataset` on the workers; ``iter`` of it begins an epoch.

    `ClusterCoordinator.create_per_worker_dataset` returns it. In an epoch every worker leases the
    partitions that it has, so every example is used exactly once, whatever process dies: partitions
    of a lost worker are made again from the files, on others.

    Workers that join have no partitions until a `global_shuffle`, and the partitions of a lost
    worker go to one other worker: shuffle globally after either.

    In a shuffle workers send examples directly to each other. While it runs, the examples take
    twice the memory; what is beyond ``memory_limit`` goes to files in the worker's folder.

    Methods wait, for free threads on the workers too, except `preload_into_memory`, `statistics`
    and `progress`. Only one thread at a time may call them.
    """

    def __init__(
        self, dataset: InMemoryDataset, partitions: int, services: DatasetServices
    ) -> None:
        sources = splits(dataset.source, partitions)
        self._services = services
        # Only their spec is used: what workers iterate over is in their memory.
        self._batches = dataset.source.ragged_batch(dataset.batch_size)
        arguments = dataset.seed, dataset.batch_size, dataset.memory_limit, uuid.uuid4().hex
        make = resources.make_worker_memory
        self._memory = PerWorkerValues(services.registry, make, (sources, *arguments))
        self._holders = PartitionOwners(self._memory, services.pinned)
        self._partitions = len(sources)
        self._known = {"splits": partitions, "of": identity(sources), "batch": dataset.batch_size}
        self._generations = itertools.count(1)
        self._generation, self._loaded = 0, False
        self._layout = ShufflePlan(self._partitions)
        self._loading: _LoadInProgress | None = None

    @property
    def element_spec(self) -> Spec:
        """Shapes and dtypes of the batches; see `psnb.data.Dataset.element_spec`."""
        return self._batches.element_spec

    def load_into_memory(self) -> None:
        """Have the workers read the whole dataset; it replaces what was read before.

        A worker that is free reads the next partition.

        Raises
        ------
        DatasetError
            If something cannot be read; the message names file and record. What was in memory
            stays.
        WorkerLostError
            If there are no workers, or too many were lost.
        ClosureCancelledError
            If one of your closures fails meanwhile; `ClusterCoordinator.join` raises its error.
        """
        self.preload_into_memory()
        self.wait_preload_done()

    def preload_into_memory(self) -> None:
        """Have the workers begin to read, and return at once; no effect if they are reading.

        They read when nothing else is queued: for example the next dataset during training.
        """
        if self._loading is None:
            generation = next(self._generations)

            def anyone(worker: WorkerStatistics) -> bool:
                return True

            # After all that is queued: it may be read while something else trains.
            options = ScheduleOptions(DEFAULT_RETRIES, _LAST, anyone, detached=True)
            arguments = self._memory, generation
            self._loading = _LoadInProgress(
                generation,
                [
                    self._services.schedule(resources.load, (*arguments, number), options)
                    for number in range(self._partitions)
                ],
                lambda: self._services.pinned.withdraw(
                    anyone, "the dataset is not loaded any more"
                ),
            )

    def wait_preload_done(self) -> None:
        """Wait until everything is read.

        Raises
        ------
        DatasetError, WorkerLostError, ClosureCancelledError
            As for `load_into_memory`.
        ConfigurationError
            If `preload_into_memory` was not called.
        """
        if self._loading is None:
            raise ConfigurationError("nothing is being read: preload_into_memory() begins it")
        loading, self._loading = self._loading, None
        try:
            with self._services.progress():
                for remote in loading.remotes:
                    remote.fetch()
        except BaseException:  # whatever ends it, an interrupt too: what was loaded is forgotten
            loading.end()
            self._holders.run_on_all(resources.forget, loading.generation, self._generation)
            raise
        self._become(loading.generation, ShufflePlan(self._partitions))
        self._loaded = True

    def local_shuffle(self, seed: int | None = None) -> None:
        """Shuffle the examples of each worker; nothing is sent between workers.

        Parameters
        ----------
        seed : int, optional
            Makes the order the same for the same partitions on the same workers.

        Raises
        ------
        ConfigurationError, DatasetError, WorkerLostError
            As for `global_shuffle`.
        """
        self._shuffle(seed, spread=False)

    def global_shuffle(self, seed: int | None = None) -> None:
        """Shuffle all examples, across the workers.

        The partitions are spread evenly over the workers that are there.

        Parameters
        ----------
        seed : int, optional
            Makes the order the same each time, whichever worker has which partitions.

        Raises
        ------
        ConfigurationError
            If nothing is in memory.
        DatasetError
            If a worker has no room; nothing has changed.
        WorkerLostError
            If workers are lost several times in a row; nothing has changed, and their partitions
            are made again from the files.
        """
        self._shuffle(seed, spread=True)

    def slots_shuffle(self, slots: Sequence[str], seed: int | None = None) -> None:
        """Exchange the values of some slots among the examples, to see what they are worth.

        Evaluate a model before and after: the metric is worse by what these slots give. An example
        gets the values of all of them from one other example, at random. It is so for all
        iterations until the next `slots_shuffle`, which begins with the values as they were read,
        or `load_into_memory`. Nothing is moved in memory: a partition's values are exchanged when
        it is read, among its examples, so these must be shuffled globally before.

        Parameters
        ----------
        slots : sequence of str
            Columns of the examples, which are dicts; an empty one ends the exchange.
        seed : int, optional
            The same seed gives the same exchange.

        Raises
        ------
        ConfigurationError
            If nothing is in memory, or it was not shuffled globally; or if slots are not names.
        DatasetError
            From an iteration: if there is no such slot.
        """
        self._check_loaded()
        names = slot_names(slots)
        self._layout = self._layout.exchanging(names, as_seed("slots_shuffle", seed))

    def release_memory(self) -> None:
        """Have the workers forget all examples; `load_into_memory` reads them again. Idempotent."""
        if self._loading is not None:
            self._loading.end()
            self._loading = None
        self._loaded = False
        self._become(next(self._generations), ShufflePlan(self._partitions))

    def statistics(self) -> PartitionStatistics:
        """Return how many examples are in memory, and how much of it they take.

        As of the last call of another method; cheap, any thread. Paddle's ``get_memory_data_size``
        and ``get_shuffle_data_size`` are ``examples`` here.
        """
        return self._holders.statistics(self._partitions)

    def _begin(self, state: Mapping[str, Any] | None) -> LeasedIterator:
        owners = self._restored()
        # Of the order of the examples, too: it must have been shuffled with the same seeds.
        dataset = {**self._known, "shuffled": self._layout.fingerprint}
        epoch = self._services.leases.open(self._partitions, state, owners, dataset)
        services, make = self._services, resources.make_memory_iterator
        arguments = self._memory, self._generation, self._layout
        batches = self._batches
        return LeasedIterator(
            services.registry,
            services.leases,
            epoch,
            make,
            arguments,
            lambda: batches.element_spec,
        )

    def whole_splits(self) -> WholeSplits:
        """Return the partitions for closures that read one each; for psnb only."""
        owners, present = self._restored(), self._services.leases.present

        def chooser(owner: str) -> WorkerPredicate:
            # If its owner is lost, another worker makes the partition again.
            return lambda worker: worker.name == owner or owner not in present()

        arguments = self._memory, self._generation, self._layout
        partitions = PerWorkerValues(
            self._services.registry, resources.make_memory_splits, arguments
        )
        return WholeSplits(
            partitions, [chooser(owners[number]) for number in range(self._partitions)]
        )

    def __repr__(self) -> str:
        now = self.statistics()
        return (
            f"<psnb.PartitionedDataset of {counted(now.examples, 'example')} in "
            f"{counted(now.partitions, 'partition')} on {counted(len(now.workers), 'worker')}>"
        )

    def _shuffle(self, seed: int | None, *, spread: bool) -> None:
        seed = as_seed("global_shuffle" if spread else "local_shuffle", seed)
        for attempt in range(1, _LOAD_ATTEMPTS + 1):
            owners = self._restored()
            generation = next(self._generations)
            try:
                if spread:
                    layout = self._layout.shuffled(seed)
                    targets = self._holders.spread(self._partitions)
                else:
                    layout = self._layout.shuffled(seed, by_owner(owners).values())
                    targets = owners
                self._holders.move(self._generation, owners, generation, layout, targets)
            except BaseException as error:  # whatever ends it: the partitions stay as they were
                self._holders.run_on_all(resources.forget, generation, self._generation)
                if not isinstance(error, WorkerLostError) or attempt == _LOAD_ATTEMPTS:
                    raise
            else:
                self._become(generation, layout)
                return

    def _restored(self) -> dict[int, str]:
        """Ask who has which partition, have lost ones made again; return the owners."""
        self._check_loaded()
        return self._holders.restore(self._generation, self._layout)

    def _check_loaded(self) -> None:
        if self._loading is not None:
            self.wait_preload_done()
        if not self._loaded:
            raise ConfigurationError("nothing is in memory: call load_into_memory() first")

    def _become(self, generation: int, layout: ShufflePlan) -> None:
        self._generation, self._layout = generation, layout
        self._holders.run_on_all(resources.keep_only, generation)


# make_dataset_of: makes the right kind of dataset on the workers from a user's argument.

_SPLITS = 8
"""Splits for each worker, by default."""


def make_dataset_of(
    source: Any, sharding: str, splits: int | None, workers: int, services: DatasetServices
) -> PerWorkerDataset | LeasedDataset | PartitionedDataset:
    """Make a dataset on the workers; see `ClusterCoordinator.create_per_worker_dataset`."""
    choice("sharding", sharding, ("none", "static", "dynamic"))
    wanted = _SPLITS * max(1, workers) if splits is None else splits
    if isinstance(source, QueueDataset):
        source = source.dataset
    if isinstance(source, InMemoryDataset):
        if sharding == "static":
            raise ConfigurationError(
                "an InMemoryDataset is shared by the workers as they load and shuffle it: leave "
                "sharding out"
            )
        if source.shuffled_slots:
            raise ConfigurationError(
                "the slots of this dataset are shuffled in this process only: workers load it "
                "again. Call slots_shuffle of what create_per_worker_dataset returns, after its "
                "global_shuffle"
            )
        return PartitionedDataset(source, wanted, services)
    if sharding != "none":
        if not isinstance(source, Dataset):
            raise ConfigurationError(
                f"sharding={shown(sharding)} takes a psnb.data.Dataset, found {shown(source)}"
            )
        if sharding == "dynamic":
            return LeasedDataset(services.registry, services.leases, cut(source, wanted), wanted)
        sharded(source, 2, 0)  # raises here rather than on the workers
        whole = source

        def share(context: InputContext) -> Dataset:
            return sharded(whole, context.num_workers, context.worker_index)

        source = share
    if not callable(source) and not isinstance(source, Iterable):
        raise ConfigurationError(
            "create_per_worker_dataset takes an iterable or a function that makes one, found "
            f"{source!r}"
        )
    return PerWorkerDataset(services.registry, make_dataset, (source,))
