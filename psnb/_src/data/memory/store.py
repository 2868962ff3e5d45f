"""MemoryStore: the partitions in one process, in memory or in files, within a limit of memory.

Partitions belong to a generation. A shuffle makes the next generation; the old one stays unchanged
until the shuffle has succeeded everywhere. Thread-safe.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import cloudpickle
import numpy as np

from psnb._src.data.block import Block, column_bytes, concatenate, take
from psnb._src.data.memory.shuffle_plan import ShufflePlan, SlotShuffle
from psnb._src.data.nesting import paths
from psnb._src.utils.text import shown
from psnb.errors import DatasetError


class NumberedExamples(NamedTuple):
    """Examples of one partition.

    Attributes
    ----------
    numbers : numpy.ndarray
        See `numbered`; uint64 ``(n,)``.
    block : Block
        The examples.
    """

    numbers: np.ndarray
    block: Block

    @property
    def nbytes(self) -> int:
        """Approximate bytes of memory."""
        return int(self.numbers.nbytes + sum(map(column_bytes, self.block.columns)))

    def take(self, places: np.ndarray) -> NumberedExamples:
        """Copy some examples together."""
        return NumberedExamples(self.numbers[places], self.block.take(places))

    def exchanged(self, exchange: SlotShuffle) -> NumberedExamples:
        """Return these examples with some columns' values exchanged.

        Raises
        ------
        DatasetError
            If they are not dicts with such columns, or there is one example only.
        """
        nesting = self.block.nesting
        keys = nesting.keys if nesting is not None and nesting.kind is dict else ()
        missing = [name for name in exchange.slots if name not in keys]
        if nesting is None or missing:
            raise DatasetError(
                f"slots_shuffle: there is no slot {shown(missing[0])}; there are "
                f"{shown(list(keys))}"
            )
        if len(self.numbers) == 1:
            raise DatasetError(
                "slots_shuffle: a partition of the dataset has one example only, which has none to "
                "exchange values with: use more examples, or fewer partitions (splits=)"
            )
        donors = exchange.donors(self.numbers)
        owners = [
            key for key, child in zip(keys, nesting.children, strict=True) for _ in paths(child)
        ]
        columns = tuple(
            take(column, donors) if owner in exchange.slots else column
            for owner, column in zip(owners, self.block.columns, strict=True)
        )
        return NumberedExamples(self.numbers, self.block._replace(columns=columns))

    def part(self, start: int, stop: int) -> NumberedExamples:
        """Return consecutive examples, as views."""
        return NumberedExamples(self.numbers[start:stop], self.block.part(start, stop))


def joined(chunks: Sequence[NumberedExamples]) -> NumberedExamples:
    """Return the examples of all chunks, in order; there must be at least one chunk."""
    if len(chunks) == 1:
        return chunks[0]
    numbers = np.concatenate([chunk.numbers for chunk in chunks])
    return NumberedExamples(numbers, concatenate([chunk.block for chunk in chunks]))


def over() -> DatasetError:
    """Return the error for access to examples that were dropped."""
    return DatasetError(
        "the dataset was loaded, shuffled or released since this iteration began: begin another "
        "one, iter(dataset)"
    )


class Partition:
    """Collects chunks as they come, and returns them in the order of a `ShufflePlan`.

    Attributes
    ----------
    examples, bytes_in_memory, bytes_on_disk : int
        Its size; may be read without the lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the chunks and the file
        self._path = ""
        self._chunks: list[NumberedExamples] = []
        self._ordered = self._dropped = False
        self.examples = self.bytes_in_memory = self.bytes_on_disk = 0

    def add(self, chunk: NumberedExamples) -> None:
        with self._lock:
            self._chunks.append(chunk)
            self._ordered = False
            self.examples += len(chunk.numbers)
            self.bytes_in_memory += chunk.nbytes

    def chunks(self) -> Iterator[NumberedExamples]:
        """Yield all chunks that are there now, in any order.

        Raises
        ------
        DatasetError
            If the partition was dropped, or the file cannot be read.
        """
        with self._lock:  # the chunks in memory may be spilled meanwhile
            self._check()
            in_memory, end = list(self._chunks), self.bytes_on_disk
        yield from self._written(end)
        yield from in_memory

    def read(self, layout: ShufflePlan) -> NumberedExamples | None:
        """Return all examples in order; None if there are none. Needs memory for them twice.

        Chunks in memory are kept in this order: all calls must pass the same plan.

        Raises
        ------
        DatasetError
            As for `chunks`.
        """
        with self._lock:
            self._check()
            if not self.examples:
                return None
            if self._ordered:
                return self._chunks[0]
            written = list(self._written(self.bytes_on_disk))
            together = joined([*written, *self._chunks])
            found = together.take(layout.order(together.numbers))
            if not written:
                self._chunks, self._ordered = [found], True
                self.bytes_in_memory = found.nbytes
            return found

    def spill(self, make_path: Callable[[], str]) -> None:
        """Write the chunks in memory to a file; ``make_path`` names it the first time.

        Raises
        ------
        DatasetError
            If that fails; then nothing is lost.
        """
        with self._lock:
            end = self.bytes_on_disk
            try:
                self._path = self._path or make_path()
                # Not appended, so that the rest of a failed write is overwritten.
                with open(self._path, "r+b" if end else "wb") as file:
                    file.seek(end)
                    for chunk in self._chunks:
                        cloudpickle.dump(chunk, file, protocol=5)
                    file.truncate()
                    size = file.tell()
            except OSError as error:
                raise DatasetError(
                    f"{self.bytes_in_memory:,} bytes of a dataset are beyond its memory_limit and "
                    f"cannot be written to disk: {error}. Free room there, raise "
                    "memory_limit, or use more workers"
                ) from error
            self._chunks, self._ordered = [], False
            self.bytes_in_memory, self.bytes_on_disk = 0, size

    def drop(self) -> None:
        """Forget everything; idempotent."""
        with self._lock:
            self._chunks, self._dropped = [], True
            if self.bytes_on_disk:
                with contextlib.suppress(OSError):
                    os.remove(self._path)
            self.examples = self.bytes_in_memory = self.bytes_on_disk = 0

    def _check(self) -> None:
        if self._dropped:
            raise over()

    def _written(self, end: int) -> Iterator[NumberedExamples]:
        if not end:
            return
        try:
            with open(self._path, "rb") as file:
                while file.tell() < end:
                    yield pickle.load(file)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise DatasetError(
                f"{self._path}, where a dataset keeps what is beyond its memory_limit, cannot be "
                f"read any more: {error}. Load the dataset again"
            ) from error


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    """The part of a dataset in a process.

    Attributes
    ----------
    examples : int
        How many examples.
    bytes_in_memory, bytes_on_disk : int
        Their size; examples beyond the limit are on disk.
    memory_limit : int
        Bytes of memory that they may take.
    partitions : tuple of int
        The numbers of the partitions here.
    """

    examples: int
    bytes_in_memory: int
    bytes_on_disk: int
    memory_limit: int
    partitions: tuple[int, ...]


class MemoryStore:
    """Keeps chunks by generation and partition; beyond the limit, the largest ones go to disk.

    Parameters
    ----------
    limit : int
        Bytes of memory. A partition that is read takes more, as long as a caller uses it.
    folder : str
        Where to make a folder for files, which is removed with this object.
    """

    def __init__(self, limit: int, folder: str) -> None:
        self._limit, self._parent = limit, folder
        self._lock = threading.Lock()  # guards the dict, for a moment each
        self._spilling = threading.Lock()  # one thread at a time makes room, and the folder
        self._partitions: dict[tuple[int, int], Partition] = {}
        self._folder: str | None = None
        self._made = 0

    def begin(self, generation: int, number: int) -> Partition:
        """Return a partition, which is here from now on, even if it stays empty."""
        with self._lock:
            return self._partitions.setdefault((generation, number), Partition())

    def rename(self, generation: int, number: int, new: int) -> None:
        """Move a partition to another generation, and replace the one there."""
        self.drop(new, number)
        with self._lock:
            self._partitions[new, number] = self._partitions.pop((generation, number))

    def put(self, generation: int, number: int, chunk: NumberedExamples) -> None:
        """Add to a partition.

        Raises
        ------
        DatasetError
            If it exceeds the limit and cannot be written to a file.
        """
        self.begin(generation, number).add(chunk)
        self._make_room()

    def has(self, generation: int, number: int) -> bool:
        """Return whether a partition is here."""
        return (generation, number) in self._partitions

    def read(self, generation: int, number: int, layout: ShufflePlan) -> NumberedExamples | None:
        """Return a partition in order; None if it is empty; see `Partition`."""
        found = self._found(generation, number).read(layout)
        self._make_room()
        return found

    def chunks(self, generation: int, number: int) -> Iterator[NumberedExamples]:
        """Yield the chunks of a partition, in any order; see `Partition`."""
        return self._found(generation, number).chunks()

    def drop(self, generation: int, number: int) -> None:
        """Forget a partition, if it is here."""
        with self._lock:
            partition = self._partitions.pop((generation, number), None)
        if partition is not None:
            partition.drop()

    def keep_only(self, generation: int) -> None:
        """Forget all other generations but negative ones."""
        for other, number in list(self._partitions):
            if other >= 0 and other != generation:
                self.drop(other, number)

    def forget(self, generation: int) -> None:
        for other, number in list(self._partitions):
            if other == generation:
                self.drop(other, number)

    def statistics(self, generation: int) -> MemoryStatistics:
        """Return the statistics of a generation; the bytes are of all generations."""
        with self._lock:
            all_ = list(self._partitions.values())
            mine = {n: each for (g, n), each in self._partitions.items() if g == generation}
        return MemoryStatistics(
            sum(partition.examples for partition in mine.values()),
            sum(partition.bytes_in_memory for partition in all_),
            sum(partition.bytes_on_disk for partition in all_),
            self._limit,
            tuple(sorted(mine)),
        )

    def _found(self, generation: int, number: int) -> Partition:
        partition = self._partitions.get((generation, number))
        if partition is None:
            raise over()
        return partition

    def _new_path(self) -> str:
        """Return the path for a partition's file; only for the thread that makes room."""
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="psnb-dataset-", dir=self._parent)
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._made += 1
        return os.path.join(self._folder, str(self._made))

    def _make_room(self) -> None:
        with self._spilling:
            while True:
                with self._lock:
                    partitions = list(self._partitions.values())
                if sum(partition.bytes_in_memory for partition in partitions) <= self._limit:
                    return
                max(partitions, key=lambda each: each.bytes_in_memory).spill(self._new_path)
