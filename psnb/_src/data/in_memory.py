"""InMemoryDataset: examples that are read once and shuffled in memory, after Paddle's class.

Threads: ``psnb-load-…``, as many as asked for, read after `preload_into_memory` has returned; they
end when all is read, or the dataset is gone. All methods are for one thread at a time.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import weakref
from collections.abc import Sequence
from typing import Any, Self

import psutil

from psnb._src.checks import integer
from psnb._src.data import nodes
from psnb._src.data.dataset import Dataset
from psnb._src.data.formats import MAX_RECORD_BYTES, MultiSlot, Slot, list_files
from psnb._src.data.iterator import DatasetIterator
from psnb._src.data.memory import Loading, Memory, MemoryStatistics, ShufflePlan
from psnb._src.data.node import Node
from psnb._src.data.seeds import as_seed
from psnb._src.data.splits import splits
from psnb.errors import ConfigurationError

_NAME, _PIECES = "InMemoryDataset", 8


def _check_steady(node: Node) -> None:
    """Raise if a chain may give its elements in another order each time."""
    free = isinstance(node, nodes.Map) and node.deterministic is False
    if free or (isinstance(node, nodes.WithOptions) and not node.options.deterministic):
        raise ConfigurationError(
            f"{node.label()}: what is kept in memory must come in the same order each time; leave "
            "deterministic=False out"
        )
    for each in node.inputs:
        _check_steady(each)


class InMemoryDataset:
    """Examples that are read into memory once, and then shuffled and gone through at will.

    On its own it lies in the memory of this process. `ClusterCoordinator.create_per_worker_dataset`
    of one spreads it over the workers, with the same methods: see `PartitionedDataset`.

    A shuffle gives every example a place that follows from the seed and from where the example was
    read, so the same seed gives the same order each time.

    Parameters
    ----------
    files : path or sequence of paths
        What to read, in Paddle's MultiSlot text; with patterns, anything that fsspec opens. For
        other sources see `of`.
    slots : sequence of Slot
        What a line has, in this order. Dense ones become arrays, sparse ones `Ragged`.
    batch_size : int
        Lines a batch; the last one may have fewer, on a cluster the last one of each piece.
    threads : int
        How many parts of the files are read at the same time; on a cluster, as many as its workers
        have threads.
    pipe_command : str, optional
        A command of the shell that each file goes through.
    memory_limit : int, optional
        Bytes of memory for the examples, of each worker on a cluster; what is more goes to files
        in a temporary folder. A piece that is being read comes on top of that. By default half of
        what the machine has, or of what Dask grants a worker: with two datasets, give each less.
    max_record_bytes : int
        How long a line may be; longer ones are refused, and no memory is taken for them.

    Raises
    ------
    DatasetError
        If no file matches.
    ConfigurationError
        If an argument cannot be.
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
        """Keep the examples of another dataset, which has to give the same each time.

        Parameters
        ----------
        dataset : Dataset
            Examples, not batches; a chain that can be cut into parts: see `psnb.data.splits`.
        batch_size, threads, memory_limit
            As for the class.
        """
        if not isinstance(dataset, Dataset):
            raise ConfigurationError(
                f"InMemoryDataset.of takes a psnb.data.Dataset, found {dataset!r}"
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
        # Shuffles in the source that have no seed are the same for the same chain.
        self.seed = int(source.node.fingerprint(), 16)
        self._memory: Memory | None = None
        self._generations = itertools.count(1)
        self._generation = 0  # 0: nothing is in memory
        self._layout = ShufflePlan(0)
        self._loading: Loading | None = None

    def load_into_memory(self) -> None:
        """Read everything, in place of what was read before.

        Raises
        ------
        DatasetError
            If something cannot be read, naming file and record; what was in memory is there still.
        """
        self.preload_into_memory()
        self.wait_preload_done()

    def preload_into_memory(self) -> None:
        """Begin to read everything, and return at once; nothing if that was begun already."""
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
        except BaseException:
            loading.stop()
            loading.join()
            memory.forget(loading.generation)
            raise
        self._become(loading.generation, ShufflePlan(memory.pieces))

    def local_shuffle(self, seed: int | None = None) -> None:
        """Shuffle what is in this process: here the same as `global_shuffle`."""
        self.global_shuffle(seed)

    def global_shuffle(self, seed: int | None = None) -> None:
        """Shuffle all examples among each other.

        Takes memory for them twice while it runs; what is beyond ``memory_limit`` goes to files.

        Parameters
        ----------
        seed : int, optional
            Makes the order the same each time.

        Raises
        ------
        ConfigurationError
            If nothing is in memory.
        DatasetError
            If there is no room; everything is as it was then.
        """
        memory = self._loaded()
        generation = next(self._generations)
        layout = self._layout.shuffled(as_seed("global_shuffle", seed))
        try:
            memory.begin(generation, range(memory.pieces))
            here = [None] * memory.pieces
            for number in range(memory.pieces):
                memory.scatter(self._generation, number, generation, layout, here, _nowhere)
        except BaseException:
            memory.forget(generation)
            raise
        self._become(generation, layout)

    def release_memory(self) -> None:
        """Forget all examples; `load_into_memory` reads them again. Idempotent."""
        if self._loading is not None:
            self._loading.stop()
            self._loading.join()
            self._loading = None
        self._memory, self._generation = None, 0

    def statistics(self) -> MemoryStatistics:
        """Return how many examples are in memory, and how much of it they take.

        Waits for what is being read. What Paddle has as ``get_memory_data_size`` and
        ``get_shuffle_data_size`` is ``examples``.

        Raises
        ------
        ConfigurationError
            If nothing is in memory.
        """
        return self._loaded().statistics(self._generation)

    def batches(self) -> Dataset:
        """Return the batches as a chain, to go on with.

        Raises
        ------
        ConfigurationError
            If nothing is in memory.
        """
        memory = self._loaded()
        return memory.examples(self._generation, self._layout, range(memory.pieces))

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


def _nowhere(place: str, data: bytes) -> None:
    raise AssertionError("everything stays in this process")
