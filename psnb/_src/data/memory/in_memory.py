"""InMemoryDataset: examples are read once into the memory of this process, as Paddle's class does.

Threads: ``psnb-load-…``, as many as ``threads`` says, read in the background after
`preload_into_memory`. They end when everything is read, or the dataset is deleted. Only one thread
at a time may call the methods.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Sequence
from typing import Any, Self

import psutil

from psnb._src.data.dataset import Dataset
from psnb._src.data.file_sources import Paths
from psnb._src.data.formats.files import list_files
from psnb._src.data.formats.multi_slot import MultiSlot, Slot
from psnb._src.data.formats.records import MAX_RECORD_BYTES
from psnb._src.data.iterator import DatasetIterator
from psnb._src.data.memory.base import DatasetInMemory
from psnb._src.data.memory.memory import Memory
from psnb._src.data.memory.store import MemoryStatistics
from psnb._src.data.memory.stores import LocalMemory
from psnb._src.data.nodes.parallel import Workers
from psnb._src.data.nodes.partitions import KnownPartitions
from psnb._src.data.splits import files_of, is_deterministic, splits
from psnb._src.utils.checks import integer
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError

_NAME, _SPLITS = "InMemoryDataset", 8


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
        for node in source.node.walk():
            if not is_deterministic(node):
                raise ConfigurationError(
                    f"{node.label()}: what is kept in memory must come in the same order each "
                    "time; leave deterministic=False out"
                )
        self.source = source
        # Shuffles in the source without a seed are the same for the same chain.
        self.seed = int(source.node.fingerprint(), 16)
        self._store: LocalMemory | None = None

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
    def _stores(self) -> LocalMemory:
        assert self._store is not None  # something was loaded
        return self._store

    def _load(self, generation: int) -> Loading:
        if self._store is None:
            limit = self.memory_limit or psutil.virtual_memory().total // 2
            sources = splits(self.source, _SPLITS)
            arguments = sources, self.seed, self.batch_size, limit, tempfile.gettempdir()
            self._store = LocalMemory(Memory(*arguments))
            self._partitions = len(sources)
        loading = Loading(self._store.memory, generation, self.threads)
        weakref.finalize(self, loading.stop)
        return loading

    @property
    def _files(self) -> list[str]:
        return files_of(self.source.node)

    def _free(self, generation: int) -> None:
        self._store = None  # an iteration that has begun keeps its partitions, and continues


class Loading:
    """Reads all partitions of a generation, in threads."""

    def __init__(self, memory: Memory, generation: int, threads: int) -> None:
        self.generation = generation
        self._workers = Workers(min(threads, max(1, memory.partitions)), "load")
        self._answers = [
            self._workers.submit(memory.load, generation, number)
            for number in range(memory.partitions)
        ]

    def wait(self) -> None:
        """Wait for the end; raise the first error."""
        known = KnownPartitions()
        for answer in self._answers:
            known.add(answer.result().read)
        self.end()

    def stop(self) -> None:
        """Begin no further partitions."""
        for answer in self._answers:
            answer.cancel()
        self._workers.close()

    def end(self) -> None:
        self.stop()
        self._workers.join()
