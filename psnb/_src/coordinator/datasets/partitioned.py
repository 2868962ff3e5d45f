"""PartitionedDataset: a dataset in the workers' memory; each worker has some of its partitions."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from psnb._src.coordinator.broadcast import Broadcasts
from psnb._src.coordinator.closures.options import DEFAULT_RETRIES, ScheduleOptions, WorkerPredicate
from psnb._src.coordinator.closures.remote_value import RemoteValue
from psnb._src.coordinator.core import CoordinatorCore
from psnb._src.coordinator.datasets.epoch import give_up
from psnb._src.coordinator.datasets.leased import (
    Epochs,
    LeasedDataset,
    LeasedIterator,
    WholeSplits,
    anyone,
)
from psnb._src.coordinator.values import PerWorkerDataset, PerWorkerValues
from psnb._src.data.dataset import Dataset
from psnb._src.data.memory.base import DatasetInMemory
from psnb._src.data.memory.in_memory import InMemoryDataset
from psnb._src.data.memory.memory import Memory, StoreContents
from psnb._src.data.memory.store import MemoryStatistics
from psnb._src.data.memory.stores import Call, Stores
from psnb._src.data.nodes.partitions import KnownPartitions, Partitions
from psnb._src.data.queue_dataset import QueueDataset
from psnb._src.data.spec import Spec
from psnb._src.data.splits import file_bytes, files_of, identity, partitions_of, sharded
from psnb._src.data.splits import splits as cut
from psnb._src.utils.checks import choice
from psnb._src.utils.text import counted, shown
from psnb._src.worker import resources
from psnb._src.worker.context import InputContext
from psnb._src.worker.resources import make_dataset
from psnb.errors import ClosureCancelledError, ConfigurationError, WorkerLostError


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


class WorkerStores(Stores):
    """A `Memory` on each worker.

    Parameters
    ----------
    memory : PerWorkerValues
        The `Memory` of each worker.
    broadcasts : Broadcasts
        Calls each worker.
    """

    def __init__(self, memory: PerWorkerValues, broadcasts: Broadcasts) -> None:
        super().__init__()
        self._memory, self._broadcasts = memory, broadcasts

    def names(self) -> list[str]:
        """Return the names of the workers."""
        return sorted(self._broadcasts.worker_names())

    def ask(self, calls: Iterable[Call]) -> list[StoreContents]:
        """Make calls; every worker must answer."""
        found, cancelled = [], None
        for worker, remote in self._run(calls, all_or_none=True):
            if remote is None:
                raise WorkerLostError(f"worker {worker!r} has left, with a part of the dataset")
            try:
                found.append(remote.fetch())
            except ClosureCancelledError as error:  # because another call failed, which says why
                cancelled = error
        if cancelled is not None:
            raise cancelled
        return found

    def try_to_ask(self, calls: Iterable[Call]) -> dict[str, StoreContents]:
        """Make calls; return the answers of the workers that answered."""
        found = {}
        for worker, remote in self._run(calls):
            try:
                if remote is not None:
                    found[worker] = remote.fetch()
            except WorkerLostError:
                continue
        return found

    def _run(
        self, calls: Iterable[Call], *, all_or_none: bool = False
    ) -> list[tuple[str, RemoteValue | None]]:
        named = [(worker, method, (self._memory, *args)) for worker, method, args in calls]
        return self._broadcasts.run(named, all_or_none=all_or_none)


_LAST = -(1 << 62)


class _LoadInProgress:
    """A generation that is being read by whichever workers are free."""

    def __init__(
        self, core: CoordinatorCore, memory: PerWorkerValues, generation: int, partitions: int
    ) -> None:
        self.generation, self._core, self._anyone = generation, core, anyone()
        # After all that is queued: it may be read while something else trains.
        options = ScheduleOptions(DEFAULT_RETRIES, _LAST, self._anyone, detached=True)
        self._remotes = [
            core.schedule(Memory.load, (memory, generation, number), {}, options)
            for number in range(partitions)
        ]

    def wait(self) -> None:
        """Wait for the end; raise the first error, also if parts of a partition do not fit."""
        known = KnownPartitions()
        with self._core.progress():
            for remote in self._remotes:
                known.add(remote.fetch().read)

    def end(self) -> None:
        """Cancel partitions that wait to be read, and wait for those that are being read."""
        give_up(self._core, [self._anyone], self._remotes, "the dataset is not loaded any more")


class PartitionedDataset(DatasetInMemory, Epochs):
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

    def __init__(self, core: CoordinatorCore, dataset: InMemoryDataset, partitions: int) -> None:
        super().__init__()
        sources = cut(dataset.source, partitions)
        self._core = core
        self._source = dataset.source  # what is lost is read again, so it must be there
        # Only their spec is used: what workers iterate over is in their memory.
        self._batches = dataset.source.ragged_batch(dataset.batch_size)
        arguments = dataset.seed, dataset.batch_size, dataset.memory_limit, uuid.uuid4().hex
        make = resources.make_worker_memory
        self._memory = PerWorkerValues(core.resources, make, (sources, *arguments))
        self._workers = WorkerStores(self._memory, core.broadcasts)
        self._partitions = len(sources)
        self._known = {"splits": partitions, "of": identity(sources), "batch": dataset.batch_size}

    @property
    def element_spec(self) -> Spec:
        """Shapes and dtypes of the batches; see `psnb.data.Dataset.element_spec`."""
        return self._batches.element_spec

    def statistics(self) -> PartitionStatistics:
        """Return how many examples are in memory, and how much of it they take.

        As of the last call of another method; cheap, any thread. Paddle's ``get_memory_data_size``
        and ``get_shuffle_data_size`` are ``examples`` here.
        """
        contents = self._workers.contents
        workers = {name: each.held for name, each in sorted(contents.items())}
        held = {partition for each in workers.values() for partition in each.partitions}
        return PartitionStatistics(self._partitions, self._partitions - len(held), workers)

    def _begin(self, state: Mapping[str, Any] | None) -> LeasedIterator:
        owners = self._restored()
        # Of the order of the examples, too: it must have been shuffled with the same seeds.
        dataset = {**self._known, "shuffled": self._layout.fingerprint}
        epoch = self._core.leases.open(self._partitions, state, owners, dataset)
        arguments, batches = (self._memory, self._generation, self._layout), self._batches
        make = resources.make_memory_iterator
        parts = self._core.resources, self._core.leases
        return LeasedIterator(*parts, epoch, make, arguments, lambda: batches.element_spec)

    def whole_splits(self) -> WholeSplits:
        """Return the partitions for closures that read one each; for psnb only."""
        owners, present = self._restored(), self._core.leases.present

        def chooser(owner: str) -> WorkerPredicate:
            # If its owner is lost, another worker makes the partition again.
            return lambda worker: worker.name == owner or owner not in present()

        arguments = self._memory, self._generation, self._layout
        make = resources.make_memory_splits
        choosers = [chooser(owners[number]) for number in range(self._partitions)]
        return WholeSplits(PerWorkerValues(self._core.resources, make, arguments), choosers)

    def __repr__(self) -> str:
        now = self.statistics()
        return (
            f"<psnb.PartitionedDataset of {counted(now.examples, 'example')} in "
            f"{counted(now.partitions, 'partition')} on {counted(len(now.workers), 'worker')}>"
        )

    @property
    def _stores(self) -> WorkerStores:
        return self._workers

    def _load(self, generation: int) -> _LoadInProgress:
        return _LoadInProgress(self._core, self._memory, generation, self._partitions)

    @property
    def _files(self) -> list[str]:
        return files_of(self._source.node)

    def _free(self, generation: int) -> None:
        self._workers.call_all(Memory.keep_only, generation)


_SPLITS = 8
"""Splits for each worker, by default."""


_PARTITIONS = 2
"""The same of a Dask collection that has fewer partitions."""


def _check_partitions(
    core: CoordinatorCore, found: Partitions, in_memory: bool, sharding: str
) -> None:
    """Raise ConfigurationError if the partitions of a Dask collection cannot be read in a way."""
    source: Any = found.source
    source.require_of(core.strategy.client)
    if in_memory and not source.persisted:
        raise ConfigurationError(
            "what is in the memory of workers is read again when one is lost: persist() the "
            "collection first"
        )
    if not in_memory and sharding != "dynamic":
        raise ConfigurationError(
            f"sharding={sharding!r} reads parts by rows or all of them on each worker, and a Dask "
            "collection has partitions with places: use sharding='dynamic'"
        )


_WORTH_SHARING = 1 << 20
"""Bytes of files from which it matters that all workers read."""


def _warn_of_idle_workers(source: Dataset, parts: int, workers: int) -> None:
    if parts < workers and file_bytes(source.node) >= _WORTH_SHARING:
        warnings.warn(
            f"the dataset has {counted(parts, 'part')} for {counted(workers, 'worker')}: "
            f"{workers - parts} of them will have nothing to do. Compressed files are not cut, and "
            "Parquet is by its row groups only: write more files, or smaller row groups "
            "(row_group_size= of pandas and pyarrow)",
            stacklevel=4,
        )


def make_dataset_of(
    core: CoordinatorCore, source: Any, sharding: str, splits: int | None, workers: int
) -> PerWorkerDataset | LeasedDataset | PartitionedDataset:
    """Make a dataset on the workers; see `ClusterCoordinator.create_per_worker_dataset`."""
    choice("sharding", sharding, ("none", "static", "dynamic"))
    if isinstance(source, QueueDataset):
        source = source.dataset
    whole = source.source if isinstance(source, InMemoryDataset) else source
    found = partitions_of(whole.node) if isinstance(whole, Dataset) else None
    if found is not None:
        _check_partitions(core, found, isinstance(source, InMemoryDataset), sharding)
    # Partitions have places, and a part of one that is moved costs as much as the whole.
    least = (_SPLITS if found is None else _PARTITIONS) * max(1, workers)
    if found is not None:
        least = max(least, len(found.parts))
    wanted = least if splits is None else splits
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
        return PartitionedDataset(core, source, wanted)
    if sharding != "none":
        if not isinstance(source, Dataset):
            raise ConfigurationError(
                f"sharding={shown(sharding)} takes a psnb.data.Dataset, found {shown(source)}"
            )
        if sharding == "dynamic":
            parts = cut(source, wanted)
            _warn_of_idle_workers(source, len(parts), workers)
            return LeasedDataset(core, source, parts, wanted)
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
    return PerWorkerDataset(core.resources, make_dataset, (source,))
