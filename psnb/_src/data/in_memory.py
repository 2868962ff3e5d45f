"""InMemoryDataset: examples are read once and shuffled in memory, like Paddle's class.

Threads: ``psnb-load-…``, as many as ``threads`` says, read in the background after
`preload_into_memory`. They end when everything is read, or the dataset is deleted. Only one thread
at a time may call the methods.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Self

import psutil

from psnb._src.data.dataset import Dataset, Paths
from psnb._src.data.formats.files import MAX_RECORD_BYTES, list_files
from psnb._src.data.formats.multi_slot import MultiSlot, Slot
from psnb._src.data.memory import Loading, Memory, MemoryStatistics, ShufflePlan
from psnb._src.data.node import Node
from psnb._src.data.nodes.transforms import Map, WithOptions
from psnb._src.data.random import as_seed
from psnb._src.data.reader import DatasetIterator
from psnb._src.data.splits import splits
from psnb._src.utils.checks import integer
from psnb._src.utils.foreign_names import SaysWhatToUse
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError

_NAME, _PIECES = "InMemoryDataset", 8


def _check_steady(node: Node) -> None:
    """Raise if a chain may give its elements in a different order each time."""
    free = isinstance(node, Map) and node.deterministic is False
    if free or (isinstance(node, WithOptions) and not node.options.deterministic):
        raise ConfigurationError(
            f"{node.label()}: what is kept in memory must come in the same order each time; leave "
            "deterministic=False out"
        )
    for each in node.inputs:
        _check_steady(each)


class InMemoryDataset(SaysWhatToUse):
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
        self._begin(source, batch_size, threads, memory_limit)

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
        made._begin(dataset, batch_size, threads, memory_limit)
        return made

    def _begin(
        self, source: Dataset, batch_size: int, threads: int, memory_limit: int | None
    ) -> None:
        self.batch_size = integer(f"{_NAME}: batch_size", batch_size, 1)
        self.threads = integer(f"{_NAME}: threads", threads, 1)
        self.memory_limit = (
            None if memory_limit is None else integer(f"{_NAME}: memory_limit", memory_limit, 1)
        )
        _check_steady(source.node)
        self.source = source
        # Shuffles in the source without a seed are the same for the same chain.
        self.seed = int(source.node.fingerprint(), 16)
        self._memory: Memory | None = None
        self._generations = itertools.count(1)
        self._generation = 0  # 0: nothing is in memory
        self._layout = ShufflePlan(0)
        self._loading: Loading | None = None

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

    def load_into_memory(self) -> None:
        """Read everything, and replace what was read before.

        Raises
        ------
        DatasetError
            If something cannot be read; the error names file and record. What was in memory stays.
        """
        self.preload_into_memory()
        self.wait_preload_done()

    def preload_into_memory(self) -> None:
        """Begin to read everything, and return at once; does nothing if it has begun already."""
        if self._loading is not None:
            return
        if self._memory is None:
            limit = self.memory_limit or psutil.virtual_memory().total // 2
            sources = splits(self.source, _PIECES)
            arguments = sources, self.seed, self.batch_size, limit, tempfile.gettempdir()
            self._memory = Memory(*arguments)
        self._loading = Loading(self._memory, next(self._generations), self.threads)
        weakref.finalize(self, self._loading.stop)

    def wait_preload_done(self) -> None:
        """Wait until everything is read.

        Raises
        ------
        DatasetError
            As for `load_into_memory`.
        ConfigurationError
            If `preload_into_memory` was not called.
        """
        if self._loading is None:
            raise ConfigurationError("nothing is being read: preload_into_memory() begins it")
        loading, self._loading = self._loading, None
        memory = loading.memory
        try:
            loading.wait()
        except BaseException:  # an interrupt, too: threads end with what they load
            loading.stop()
            loading.join()
            memory.forget(loading.generation)
            raise
        self._become(loading.generation, ShufflePlan(memory.partitions))

    def local_shuffle(self, seed: int | None = None) -> None:
        """Shuffle the examples of this process; here the same as `global_shuffle`."""
        self.global_shuffle(seed)

    def global_shuffle(self, seed: int | None = None) -> None:
        """Shuffle all examples among each other.

        It needs memory for them twice while it runs; what exceeds ``memory_limit`` goes to files.

        Parameters
        ----------
        seed : int, optional
            The same seed gives the same order.

        Raises
        ------
        ConfigurationError
            If nothing is in memory.
        DatasetError
            If there is no room; then nothing is changed.
        """
        memory = self._loaded()
        generation = next(self._generations)
        layout = self._layout.shuffled(as_seed("global_shuffle", seed))
        try:
            memory.begin(generation, range(memory.partitions))
            here = [None] * memory.partitions
            for number in range(memory.partitions):
                memory.scatter(self._generation, number, generation, layout, here, _nowhere)
        except BaseException:  # whatever ends it: the examples stay where they were
            memory.forget(generation)
            raise
        self._become(generation, layout)

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
        self._loaded()
        names = slot_names(slots)
        self._layout = self._layout.exchanging(names, as_seed("slots_shuffle", seed))

    @property
    def shuffled_slots(self) -> tuple[str, ...]:
        """The slots of the latest `slots_shuffle`."""
        return () if self._layout.exchange is None else self._layout.exchange.slots

    def release_memory(self) -> None:
        """Forget all examples; `load_into_memory` reads them again. Idempotent."""
        if self._loading is not None:
            self._loading.stop()
            self._loading.join()
            self._loading = None
        self._memory, self._generation, self._layout = None, 0, ShufflePlan(0)

    def statistics(self) -> MemoryStatistics:
        """Return how many examples are in memory, and how much memory they take.

        Waits until reading has ended. Paddle's ``get_memory_data_size`` and
        ``get_shuffle_data_size`` correspond to ``examples``.

        Raises
        ------
        ConfigurationError
            If nothing is in memory.
        """
        return self._loaded().statistics(self._generation)

    def batches(self) -> Dataset:
        """Return the batches as a dataset, to which further methods can be applied.

        Raises
        ------
        ConfigurationError
            If nothing is in memory.
        """
        memory = self._loaded()
        return memory.examples(self._generation, self._layout, range(memory.partitions))

    def __iter__(self) -> DatasetIterator:
        return iter(self.batches())

    def iterator(self, state: dict[str, Any] | None = None) -> DatasetIterator:
        """Return an iterator over the batches; see `Dataset.iterator`."""
        return self.batches().iterator(state)

    def __repr__(self) -> str:
        return f"InMemoryDataset of {self.batch_size} examples a batch\n{self.source!r}"

    def _loaded(self) -> Memory:
        if self._loading is not None:
            self.wait_preload_done()
        if self._memory is None or not self._generation:
            raise ConfigurationError("nothing is in memory: call load_into_memory() first")
        return self._memory

    def _become(self, generation: int, layout: ShufflePlan) -> None:
        assert self._memory is not None  # it was filled
        self._generation, self._layout = generation, layout
        self._memory.keep_only(generation)


def slot_names(slots: Any) -> tuple[str, ...]:
    """Return the slots of `InMemoryDataset.slots_shuffle`, checked."""
    names = None if isinstance(slots, str) or not isinstance(slots, Iterable) else tuple(slots)
    if names is None or not all(isinstance(each, str) for each in names):
        raise ConfigurationError(
            f"slots_shuffle takes a list of names of slots, found {shown(slots)}"
        )
    return names


def _nowhere(place: str, data: bytes) -> None:
    raise AssertionError("everything stays in this process")


class QueueDataset(SaysWhatToUse):
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
        Lines per batch; the last one of each file may have fewer.
    threads : int
        Files that are read at the same time, each by a thread of its own.
    pipe_command : str, optional
        A shell command that each file is piped through.
    max_record_bytes : int
        Limit of a line in bytes; longer ones are refused before memory is allocated for them.
    queue_size : int, optional
        How many batches of a file are read ahead, by a thread of its own; by default 2 with several
        threads, else none. Paddle's queue holds 100.

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
