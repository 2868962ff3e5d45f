"""Datasets in memory: examples are read once and shuffled in memory, like Paddle's class.

Threads: ``psnb-load-…``, as many as ``threads`` says, read in the background after
`preload_into_memory`. They end when everything is read, or the dataset is deleted. Only one thread
at a time may call the methods.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, Self

import psutil

from psnb._src.data.dataset import Dataset, Paths
from psnb._src.data.formats.files import MAX_RECORD_BYTES, list_files
from psnb._src.data.formats.multi_slot import MultiSlot, Slot
from psnb._src.data.memory import Loading, Memory, StoreContents
from psnb._src.data.memory_store import MemoryStatistics
from psnb._src.data.node import Node, nothing_in
from psnb._src.data.random import ShufflePlan, as_seed
from psnb._src.data.reader import DatasetIterator
from psnb._src.data.splits import files_of, is_deterministic, splits
from psnb._src.utils.checks import integer
from psnb._src.utils.foreign_names import FixedAttributes
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError, InternalError, WorkerLostError

# Stores: where the partitions of a dataset are, and moving them.

_ATTEMPTS = 5
"""How often lost partitions are made again while more are lost."""

Call = tuple[str, Callable[..., StoreContents], tuple[Any, ...]]
"""The name of a store, a method of `Memory`, and its arguments."""


class Stores(ABC):
    """A `Memory` in each of some processes; for one thread at a time.

    They are asked anew before each operation: processes may die, and come back without partitions.
    A partition that none has any more is made again.

    Attributes
    ----------
    contents : dict of str to StoreContents
        What each had when all were last called; any thread may read it.
    """

    def __init__(self) -> None:
        self.contents: dict[str, StoreContents] = {}

    @abstractmethod
    def names(self) -> Iterable[str]:
        """Return the names of the stores that are there."""

    @abstractmethod
    def ask(self, calls: Iterable[Call]) -> list[StoreContents]:
        """Make calls; every store must answer."""

    @abstractmethod
    def try_to_ask(self, calls: Iterable[Call]) -> dict[str, StoreContents]:
        """Make calls; return the answers of the stores that were not lost."""

    def call_all(self, method: Callable[..., StoreContents], *arguments: Any) -> None:
        """Call a method of all stores, and note what they have; lost ones are left out."""
        self.contents = self.try_to_ask([(name, method, arguments) for name in self.names()])

    def restore(self, generation: int, layout: ShufflePlan) -> dict[int, str]:
        """Ask which store has which partition, have lost ones made again; return the owners.

        Raises
        ------
        WorkerLostError
            If there are no stores, or they are lost several times in a row while they make
            partitions.
        DatasetError
            If a partition cannot be made.
        """
        for _ in range(_ATTEMPTS):
            self.call_all(Memory.survey, generation)
            if not self.contents:
                raise WorkerLostError("no worker is there that has, or could have, the dataset")
            owners = {
                partition: name
                for name, each in self.contents.items()
                for partition in each.held.partitions
            }
            lost = [partition for partition in range(layout.partitions) if partition not in owners]
            if not lost:
                return owners
            names = sorted(self.contents, key=lambda name: len(self.contents[name].held.partitions))
            shares = {name: lost[start :: len(names)] for start, name in enumerate(names)}
            self.try_to_ask(
                (name, Memory.make, (generation, layout, share))
                for name, share in shares.items()
                if share
            )
        raise WorkerLostError(
            f"{len(lost)} of {layout.partitions} partitions of the dataset could not be made "
            "again: each time workers were lost. If that is for want of memory, use a lower "
            "memory_limit, or more partitions (splits=)"
        )

    def spread(self, partitions: int) -> dict[int, str]:
        """Return owners for the partitions, spread evenly over the stores."""
        names = sorted(self.contents)
        return {partition: names[partition % len(names)] for partition in range(partitions)}

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
            If a store is lost, or its process was started again.
        DatasetError
            If a store has no room.
        """
        belonging = by_owner(targets)
        begun = self.ask(
            (name, Memory.begin, (new, numbers)) for name, numbers in belonging.items()
        )
        where = {name: each.address for name, each in zip(belonging, begun, strict=True)}
        to = new, layout, [where[targets[partition]] for partition in range(layout.partitions)]
        moved = self.ask(
            (owner, Memory.scatter, (old, partition, *to)) for partition, owner in owners.items()
        )
        there = self.ask((name, Memory.survey, (new,)) for name in belonging)
        if {each.part for each in there} != {each.part for each in begun}:
            raise WorkerLostError("a worker was started again while examples were sent to it")
        sent = sum(each.sent for each in moved)
        arrived = sum(each.held.examples for each in there)
        if arrived != sent:
            raise InternalError(f"of {sent} examples that were sent, {arrived} have arrived")


def by_owner(owners: Mapping[int, str]) -> dict[str, list[int]]:
    """Return each owner's partitions."""
    partitions: dict[str, list[int]] = {}
    for partition, owner in sorted(owners.items()):
        partitions.setdefault(owner, []).append(partition)
    return partitions


class LocalStore(Stores):
    """The only store is in this process."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.memory = memory

    def names(self) -> list[str]:
        """Return one name."""
        return [""]

    def ask(self, calls: Iterable[Call]) -> list[StoreContents]:
        """Make calls."""
        return [method(self.memory, *arguments) for _, method, arguments in calls]

    def try_to_ask(self, calls: Iterable[Call]) -> dict[str, StoreContents]:
        """Make calls; it is not lost."""
        return {name: method(self.memory, *arguments) for name, method, arguments in calls}


# DatasetInMemory: what is the same for one process and for workers.
#
# Only it knows generation and layout; it sends them with every call. A shuffle fills the next
# generation, which becomes the dataset when everything has arrived: one that fails changes nothing.

_SHUFFLE_ATTEMPTS = 3
"""How often a shuffle is tried while workers are lost in the middle of it."""


class Load(Protocol):
    """A generation that is being read, partition by partition."""

    @property
    def generation(self) -> int:
        """Return which."""

    def wait(self) -> None:
        """Wait for the end; raise the first error."""

    def end(self) -> None:
        """Begin no more partitions, and wait for those that are being read."""


class DatasetInMemory(FixedAttributes, ABC):
    """Base of the datasets in memory: loading, shuffling and releasing their examples."""

    def __init__(self) -> None:
        self._generations = itertools.count(1)
        self._generation, self._loaded = 0, False
        self._partitions = 0  # unknown, perhaps, until something is loaded
        self._layout = ShufflePlan(0)
        self._loading: Load | None = None

    @property
    @abstractmethod
    def _stores(self) -> Stores:
        """Where the examples are; there may be none before something is loaded."""

    @property
    @abstractmethod
    def _files(self) -> list[str]:
        """The files that are read, if one at least must have a record."""

    @abstractmethod
    def _load(self, generation: int) -> Load:
        """Begin to read everything."""

    @abstractmethod
    def _free(self, generation: int) -> None:
        """Free the memory of all examples; ``generation`` comes after theirs."""

    def load_into_memory(self) -> None:
        """Read everything, and replace what was read before.

        On a cluster, a worker that is free reads the next partition.

        Raises
        ------
        DatasetError
            If something cannot be read; the error names file and record. Or if all files are empty.
            What was in memory stays.
        WorkerLostError
            On a cluster, if there are no workers, or too many were lost.
        ClosureCancelledError
            If one of your closures fails meanwhile; `ClusterCoordinator.join` raises its error.
        """
        self.preload_into_memory()
        self.wait_preload_done()

    def preload_into_memory(self) -> None:
        """Begin to read everything, and return at once; does nothing if it has begun already.

        Workers read when nothing else is queued: for example the next dataset during training.
        """
        if self._loading is None:
            self._loading = self._load(next(self._generations))

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
            loading.wait()
            self._check_any(loading.generation)
        except BaseException:  # whatever ends it, an interrupt too: what was loaded is forgotten
            loading.end()
            self._stores.call_all(Memory.forget, loading.generation, self._generation)
            raise
        self._become(loading.generation, ShufflePlan(self._partitions))
        self._loaded = True

    def _check_any(self, generation: int) -> None:
        if not (files := self._files):
            return
        self._stores.call_all(Memory.survey, generation)
        held = [each.held for each in self._stores.contents.values()]
        # With a worker that is lost some partitions are missing now.
        whole = sum(len(each.partitions) for each in held) == self._partitions
        if whole and not any(each.examples for each in held):
            raise nothing_in(files)

    def local_shuffle(self, seed: int | None = None) -> None:
        """Shuffle the examples of each process; nothing is sent between workers.

        Parameters
        ----------
        seed : int, optional
            Makes the order the same for the same partitions on the same workers.

        Raises
        ------
        ConfigurationError, DatasetError, WorkerLostError
            As for `global_shuffle`.
        """
        self._shuffle("local_shuffle", seed)

    def global_shuffle(self, seed: int | None = None) -> None:
        """Shuffle all examples among each other.

        On a cluster, the partitions are spread evenly over the workers that are there. It needs
        memory for the examples twice while it runs; what exceeds ``memory_limit`` goes to files.

        Parameters
        ----------
        seed : int, optional
            The same seed gives the same order, whichever worker has which partitions.

        Raises
        ------
        ConfigurationError
            If nothing is in memory.
        DatasetError
            If there is no room; then nothing is changed.
        WorkerLostError
            If workers are lost several times in a row; nothing has changed, and their partitions
            are made again from the files.
        """
        self._shuffle("global_shuffle", seed)

    def slots_shuffle(self, slots: Sequence[str], seed: int | None = None) -> None:
        """Exchange the values of some slots among the examples, to see what they are worth.

        Evaluate a model before and after: the metric is worse by what these slots tell. An example
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
            If nothing is in memory, or it was not shuffled globally; or if slots are no names.
        DatasetError
            From an iteration: if there is no such slot.
        """
        self._check_loaded()
        names = _slot_names(slots)
        self._layout = self._layout.exchanging(names, as_seed("slots_shuffle", seed))

    def release_memory(self) -> None:
        """Forget all examples; `load_into_memory` reads them again. Idempotent."""
        if self._loading is not None:
            self._loading.end()
            self._loading = None
        self._generation, self._loaded = next(self._generations), False
        self._layout = ShufflePlan(self._partitions)
        self._free(self._generation)

    def _shuffle(self, how: str, seed: int | None) -> None:
        seed = as_seed(how, seed)
        for attempt in range(1, _SHUFFLE_ATTEMPTS + 1):
            owners = self._restored()
            generation = next(self._generations)
            try:
                if how == "global_shuffle":
                    layout = self._layout.shuffled(seed)
                    targets = self._stores.spread(self._partitions)
                else:
                    layout = self._layout.shuffled(seed, by_owner(owners).values())
                    targets = owners
                self._stores.move(self._generation, owners, generation, layout, targets)
            except BaseException as error:  # whatever ends it: the partitions stay as they were
                self._stores.call_all(Memory.forget, generation, self._generation)
                if not isinstance(error, WorkerLostError) or attempt == _SHUFFLE_ATTEMPTS:
                    raise
            else:
                self._become(generation, layout)
                return

    def _restored(self) -> dict[int, str]:
        """Ask who has which partition, have lost ones made again; return the owners."""
        self._check_loaded()
        return self._stores.restore(self._generation, self._layout)

    def _check_loaded(self) -> None:
        if self._loading is not None:
            self.wait_preload_done()
        if not self._loaded:
            raise ConfigurationError("nothing is in memory: call load_into_memory() first")

    def _become(self, generation: int, layout: ShufflePlan) -> None:
        self._generation, self._layout = generation, layout
        self._stores.call_all(Memory.keep_only, generation)


def _slot_names(slots: Any) -> tuple[str, ...]:
    names = None if isinstance(slots, str) or not isinstance(slots, Iterable) else tuple(slots)
    if names is None or not all(isinstance(each, str) for each in names):
        raise ConfigurationError(
            f"slots_shuffle takes a list of names of slots, found {shown(slots)}"
        )
    return names


# InMemoryDataset: in the memory of this process.

_NAME, _SPLITS = "InMemoryDataset", 8


def _check_steady(node: Node) -> None:
    """Raise if a chain may give its elements in a different order each time."""
    if not is_deterministic(node):
        raise ConfigurationError(
            f"{node.label()}: what is kept in memory must come in the same order each time; leave "
            "deterministic=False out"
        )
    for each in node.inputs:
        _check_steady(each)


class InMemoryDataset(DatasetInMemory):
    """Examples that are read into memory once, then shuffled and iterated any number of times.

    It is in the memory of this process. `ClusterCoordinator.create_per_worker_dataset` spreads it
    over the workers, with the same methods: see `PartitionedDataset`.

    A shuffle computes the place of each example from the seed and from where the example was read,
    so the same seed gives the same order each time.

    Parameters
    ----------
    files : path or sequence of paths
        What to read, in Paddle's MultiSlot text; with patterns, anything that fsspec opens. For
        other sources see `of`.
    slots : sequence of Slot
        The slots of a line, in order. Dense ones become arrays, sparse ones `Ragged`.
    batch_size : int
        Lines per batch. The last batch may have fewer; on a cluster, the last of each partition.
    threads : int
        How many parts of the files are read at the same time; on a cluster, as many as its workers
        have threads.
    pipe_command : str, optional
        A shell command that each file is piped through.
    memory_limit : int, optional
        Bytes of memory for the examples; on a cluster, for each worker. Further examples go to
        files in a temporary folder. A partition that is being read takes memory in addition. By
        default half of the machine's memory, or of a worker's limit in Dask: with two datasets,
        give each less.
    max_record_bytes : int
        Limit of a line in bytes; longer ones are refused before memory is allocated for them.

    Raises
    ------
    DatasetError
        If no file matches.
    ConfigurationError
        If an argument is invalid.
    """

    batch_size: int
    threads: int
    memory_limit: int | None
    source: Dataset
    seed: int

    def __init__(
        self,
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        slots: Sequence[Slot],
        batch_size: int,
        threads: int = 1,
        pipe_command: str | None = None,
        memory_limit: int | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        form = MultiSlot(slots, pipe_command, max_record_bytes=max_record_bytes)
        source = Dataset.from_files(form, list_files(files))
        self._describe(source, batch_size, threads, memory_limit)

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        batch_size: int,
        threads: int = 1,
        memory_limit: int | None = None,
    ) -> Self:
        """Keep the examples of another dataset, which must give the same elements each time.

        Parameters
        ----------
        dataset : Dataset
            Examples, not batches; a chain that can be split: see `psnb.data.splits`.
        batch_size, threads, memory_limit
            As for the class.
        """
        if not isinstance(dataset, Dataset):
            raise ConfigurationError(
                f"InMemoryDataset.of takes a psnb.data.Dataset, found {shown(dataset)}"
            )
        made = object.__new__(cls)
        made._describe(dataset, batch_size, threads, memory_limit)
        return made

    def _describe(
        self, source: Dataset, batch_size: int, threads: int, memory_limit: int | None
    ) -> None:
        super().__init__()
        self.batch_size = integer(f"{_NAME}: batch_size", batch_size, 1)
        self.threads = integer(f"{_NAME}: threads", threads, 1)
        self.memory_limit = (
            None if memory_limit is None else integer(f"{_NAME}: memory_limit", memory_limit, 1)
        )
        _check_steady(source.node)
        self.source = source
        # Shuffles in the source without a seed are the same for the same chain.
        self.seed = int(source.node.fingerprint(), 16)
        self._store: LocalStore | None = None

    def with_files(self, files: Paths) -> Self:
        """Return the same over other files, with nothing in memory; Paddle's ``set_filelist``.

        Parameters
        ----------
        files : path or sequence of paths
            What to read, with patterns.

        Raises
        ------
        DatasetError
            If no file matches a pattern.
        ConfigurationError
            If its source is not made of files, or has several sources of files.
        """
        source = self.source.with_files(files)
        return self.of(source, self.batch_size, self.threads, self.memory_limit)

    @property
    def shuffled_slots(self) -> tuple[str, ...]:
        """The slots of the latest `slots_shuffle`."""
        return () if self._layout.exchange is None else self._layout.exchange.slots

    def statistics(self) -> MemoryStatistics:
        """Return how many examples are in memory, and how much memory they take.

        Waits until reading has ended. Paddle's ``get_memory_data_size`` and
        ``get_shuffle_data_size`` correspond to ``examples``.

        Raises
        ------
        ConfigurationError
            If nothing is in memory.
        """
        self._check_loaded()
        return self._stores.memory.survey(self._generation).held

    def batches(self) -> Dataset:
        """Return the batches as a dataset, to which further methods can be applied.

        Raises
        ------
        ConfigurationError
            If nothing is in memory.
        """
        self._check_loaded()
        partitions = range(self._partitions)
        return self._stores.memory.examples(self._generation, self._layout, partitions)

    def __iter__(self) -> DatasetIterator:
        return iter(self.batches())

    def iterator(self, state: dict[str, Any] | None = None) -> DatasetIterator:
        """Return an iterator over the batches; see `Dataset.iterator`."""
        return self.batches().iterator(state)

    def __repr__(self) -> str:
        return f"InMemoryDataset of {self.batch_size} examples a batch\n{self.source!r}"

    @property
    def _stores(self) -> LocalStore:
        assert self._store is not None  # something was loaded
        return self._store

    def _load(self, generation: int) -> Loading:
        if self._store is None:
            limit = self.memory_limit or psutil.virtual_memory().total // 2
            sources = splits(self.source, _SPLITS)
            arguments = sources, self.seed, self.batch_size, limit, tempfile.gettempdir()
            self._store = LocalStore(Memory(*arguments))
            self._partitions = len(sources)
        loading = Loading(self._store.memory, generation, self.threads)
        weakref.finalize(self, loading.stop)
        return loading

    @property
    def _files(self) -> list[str]:
        return files_of(self.source.node)

    def _free(self, generation: int) -> None:
        self._store = None  # an iteration that has begun keeps what it reads, and goes on


class QueueDataset(FixedAttributes):
    """Batches from files in Paddle's MultiSlot text; nothing is kept in memory.

    Each iteration reads the files once. ``coordinator.create_per_worker_dataset`` with
    ``sharding="dynamic"`` distributes the files over the workers. It is `Dataset.multi_slot` under
    the name that Paddle's users know; to shuffle, see `InMemoryDataset`.

    Parameters
    ----------
    files : path or sequence of paths
        The files to read, with patterns; anything that fsspec opens.
    slots : sequence of Slot
        The slots of a line, in order. Dense ones become arrays, sparse ones `Ragged`.
    batch_size : int
        Lines per batch, also of several files. The last one of each thread may have fewer; on a
        cluster that is in each split.
    threads : int
        How many threads read at the same time, each its share of the files.
    pipe_command : str, optional
        A shell command that each file is piped through.
    max_record_bytes : int
        Limit of a line in bytes; longer ones are refused before memory is allocated for them.
    queue_size : int, optional
        How many batches are read ahead, by a thread of its own, or by each of several; by default 2
        with several, else none. Paddle's queue holds 100.

    Attributes
    ----------
    dataset : Dataset
        The same as a `Dataset`, to which further methods can be applied.

    Raises
    ------
    DatasetError
        If no file matches.
    ConfigurationError
        If an argument is invalid.
    """

    dataset: Dataset

    def __init__(
        self,
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        slots: Sequence[Slot],
        batch_size: int,
        threads: int = 1,
        pipe_command: str | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
        queue_size: int | None = None,
    ) -> None:
        self.dataset = Dataset.multi_slot(
            files, slots, batch_size, threads, pipe_command, max_record_bytes, queue_size
        )

    def with_files(self, files: Paths) -> Self:
        """Return the same over other files; Paddle's ``set_filelist``.

        Parameters
        ----------
        files : path or sequence of paths
            The files to read, with patterns.

        Raises
        ------
        DatasetError
            If no file matches a pattern.
        """
        made = object.__new__(type(self))
        made.dataset = self.dataset.with_files(files)
        return made

    def __iter__(self) -> DatasetIterator:
        return iter(self.dataset)

    def __repr__(self) -> str:
        return f"QueueDataset\n{self.dataset!r}"
