"""Memory: the part of an in-memory dataset in one process.

It reads partitions from their sources, sends the examples that a shuffle moves, receives examples
from others, and makes lost partitions again from the sources. Requests carry the generation and the
`ShufflePlan`, so it need not be informed of changes. Thread-safe.
"""

from __future__ import annotations

import itertools
import pickle
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, NoReturn

import cloudpickle
import numpy as np

from psnb._src.data.block import read_only
from psnb._src.data.dataset import Dataset
from psnb._src.data.memory.shuffle_plan import ShufflePlan, numbered
from psnb._src.data.memory.store import (
    MemoryStatistics,
    MemoryStore,
    NumberedExamples,
    joined,
    over,
)
from psnb._src.data.node import Context, Counters, Node, PartsIterator, State
from psnb._src.data.reader import Reader
from psnb._src.data.spec import Spec, element_spec
from psnb.errors import ConfigurationError, WorkerLostError


class _HeldIterator(PartsIterator):
    """The state: which partition, and how many examples of it were returned."""

    def __init__(self, node: InMemoryPartitions, context: Context, state: State) -> None:
        self._node = node
        self._at: int
        self._at, self._used = state or (0, 0)

    def state(self) -> State:
        return [self._at, self._used]

    def _advance(self) -> bool:
        """Read the next partition that has examples; the one of a state may have no more."""
        node = self._node
        if self._block is not None:
            self._at, self._used, self._block = self._at + 1, 0, None
        while self._at < len(node.partitions):
            chunk = node.memory.read(node.generation, node.layout, node.partitions[self._at])
            if chunk is not None:
                self._block = read_only(chunk.block)
                return True
            self._at, self._used = self._at + 1, 0
        return False


@dataclass(frozen=True, eq=False)
class InMemoryPartitions(Node):
    """The examples of some partitions; ``version``, a short text, identifies ``layout``."""

    name: ClassVar[str] = "in_memory"
    iterator: ClassVar[Any] = _HeldIterator

    memory: Memory = field(repr=False)
    generation: int = field(repr=False)
    layout: ShufflePlan = field(repr=False)
    partitions: tuple[int, ...]
    version: str

    def spec(self, run: bool) -> Spec:
        block = self.iterate(Context(seed=0)).next_block(1) if run else None
        return None if block is None else element_spec(block.element(0))


_READ_AT_ONCE = 1 << 13
_AT_ONCE_BYTES, _PART_BYTES = 1 << 22, 1 << 16
"""Bytes that are scattered at a time: the first number, or the second for each partition, whichever
is more. Smaller parts would get smaller with each shuffle."""


class StoreContents(NamedTuple):
    """What a `Memory` has of a generation.

    Attributes
    ----------
    address : str
        Where other processes send examples.
    part : str
        Changes when the process was started again and has lost its partitions.
    held : MemoryStatistics
        Its partitions.
    sent : int
        How many examples it has put into their new partitions, if this answers `Memory.scatter`.
    read : sequence of list
        What partitions of a Dask collection it has read, if this answers `Memory.load`.
    """

    address: str
    part: str
    held: MemoryStatistics
    sent: int = 0
    read: Sequence[list[Any]] = ()


class Memory:
    """Holds partitions.

    Parameters
    ----------
    sources : sequence of Dataset
        The sources of the partitions. Each must give the same elements each time.
    seed : int
        For shuffles in the sources without their own seed.
    batch_size : int
        Examples per batch.
    limit : int
        Bytes of memory; see `MemoryStore`.
    folder : str
        For the data beyond the limit.
    address : str
        Where other processes send examples.
    sender : callable, optional
        Returns what sends examples to other processes, if there are any: ``send(address, data)``
        sends an argument for `receive`, and may return before it has arrived; ``settle()`` waits
        until everything has arrived, and raises if something has not.

    Attributes
    ----------
    partitions : int
        How many the dataset has.
    """

    def __init__(
        self,
        sources: Sequence[Dataset],
        seed: int,
        batch_size: int,
        limit: int,
        folder: str,
        address: str = "",
        sender: Callable[[], Any] | None = None,
    ) -> None:
        self._sources, self._seed, self._batch_size = sources, seed, batch_size
        self._address, self._sender = address, sender
        self._part = uuid.uuid4().hex
        self.partitions = len(sources)
        self._store = MemoryStore(limit, folder)
        # One thread at a time makes lost partitions. Held while sources are read, as threads that
        # wait for it need what is read then.
        self._making = threading.Lock()
        # Partitions being read have negative generations, so that they are not visible yet.
        self._unfinished = itertools.count(-1, -1)
        self._newest = 0
        self._forgotten: set[int] = set()

    # Each of the methods up to `forget` is called by `Stores`, perhaps from another process, and
    # returns the partitions that are here then.

    def survey(self, generation: int, sent: int = 0) -> StoreContents:
        """Return the partitions of a generation that are here."""
        return StoreContents(self._address, self._part, self._store.statistics(generation), sent)

    def load(self, generation: int, number: int) -> StoreContents:
        """Read a partition from its source, and replace the old one; all of it or nothing.

        Raises
        ------
        DatasetError
            If the source cannot be read, or there is no room.
        """
        read = self._make(generation, ShufflePlan(self.partitions), [number])
        return self.survey(generation)._replace(read=read)

    def make(self, generation: int, layout: ShufflePlan, numbers: Iterable[int]) -> StoreContents:
        """Make partitions that are not here; reads each source that they come from once.

        Raises
        ------
        DatasetError
            As for `load`, or if the generation is over.
        """
        self.ensure(generation, layout, numbers)
        return self.survey(generation)

    def begin(self, generation: int, numbers: Iterable[int]) -> StoreContents:
        """Note which partitions of a generation belong here."""
        for number in numbers:
            self._store.begin(generation, number)
        return self.survey(generation)

    def scatter(
        self,
        generation: int,
        number: int,
        new: int,
        layout: ShufflePlan,
        addresses: Sequence[str],
    ) -> StoreContents:
        """Send the examples of a partition to their places in another plan; the partition stays.

        Parameters
        ----------
        generation, number : int
            The partition.
        new : int
            The generation of the other plan.
        layout : ShufflePlan
            The other plan.
        addresses : sequence of str
            The address of each of its partitions.

        Raises
        ------
        WorkerLostError
            If the partition was lost, or a process that examples go to cannot be reached.
        DatasetError
            If there is no room for them.
        """
        if not self._store.has(generation, number):
            raise WorkerLostError(f"the worker at {self._address} was started again")
        sender = None if self._sender is None else self._sender()
        sent = 0
        at_once = max(_AT_ONCE_BYTES, self.partitions * _PART_BYTES)
        for part in _parts(self._store.chunks(generation, number), at_once):
            partitions = np.full(len(part.numbers), number)
            targets = layout.stages[-1].destinations(partitions, part.numbers)
            parcels: dict[str, list[tuple[int, NumberedExamples]]] = {}
            for target, some in _split(part, targets):
                sent += len(some.numbers)
                address = addresses[target]
                if address == self._address:
                    self._store.put(new, target, some)
                else:
                    parcels.setdefault(address, []).append((target, some))
            for address, several in parcels.items():
                assert sender is not None  # all of one process have its address
                # Elements may be of a class that a notebook defines.
                sender.send(address, cloudpickle.dumps((new, several), protocol=5))
        if sender is not None:
            sender.settle()
        return self.survey(generation, sent)

    def keep_only(self, generation: int) -> StoreContents:
        """Free the partitions of all other generations."""
        self._newest = generation
        self._store.keep_only(generation)
        return self.survey(generation)

    def forget(self, generation: int, current: int) -> StoreContents:
        """Free the partitions of a generation that failed; return the current one's here."""
        self._forgotten.add(generation)
        self._store.forget(generation)
        return self.survey(current)

    def receive(self, data: bytes) -> None:
        """Add examples that were sent here.

        Raises
        ------
        DatasetError
            If there is no room, or the generation is over.
        """
        generation, parcels = pickle.loads(data)
        self._check(generation)
        for number, chunk in parcels:
            self._store.put(generation, number, chunk)

    def examples(self, generation: int, layout: ShufflePlan, numbers: Iterable[int]) -> Dataset:
        """Return the examples of partitions, in batches; missing partitions are made again."""
        held = InMemoryPartitions(self, generation, layout, tuple(numbers), layout.fingerprint)
        return Dataset(held).ragged_batch(self._batch_size)

    def ensure(self, generation: int, layout: ShufflePlan, numbers: Iterable[int]) -> None:
        """Make partitions that are not here, as `make` does, without a look at all that are."""
        self._check(generation)
        with self._making:
            missing = [each for each in numbers if not self._store.has(generation, each)]
            if missing:
                self._make(generation, layout, missing)

    def read(self, generation: int, layout: ShufflePlan, number: int) -> NumberedExamples | None:
        """Return a partition in order; None if it is empty.

        Raises
        ------
        DatasetError
            If the generation is over, a lost partition cannot be made again, or the plan exchanges
            slots that there are not.
        """
        self.ensure(generation, layout, [number])
        found = self._store.read(generation, number, layout)
        if found is None or layout.exchange is None:
            return found
        return found.exchanged(layout.exchange)

    def __reduce__(self) -> NoReturn:
        raise ConfigurationError("what a dataset holds in memory stays in its process")

    def _check(self, generation: int) -> None:
        if generation < self._newest or generation in self._forgotten:
            raise over()

    def _make(
        self, generation: int, layout: ShufflePlan, numbers: Sequence[int]
    ) -> list[list[Any]]:
        """Make partitions from the sources; return what partitions of Dask these have read."""
        unfinished, read = next(self._unfinished), list[list[Any]]()
        try:
            for number in numbers:
                self._store.begin(unfinished, number)
            for source in layout.sources(numbers):
                for chunk in self._read(source, read):
                    partitions = layout.destinations(source, chunk.numbers)
                    mine = np.flatnonzero(np.isin(partitions, numbers))
                    if len(mine) < len(partitions):
                        chunk, partitions = chunk.take(mine), partitions[mine]
                    for partition, part in _split(chunk, partitions):
                        self._store.put(unfinished, partition, part)
            self._check(generation)
            for number in numbers:
                self._store.rename(unfinished, number, generation)
        except BaseException:  # whatever ends it: nothing unfinished is left
            self._store.forget(unfinished)
            raise
        return read

    def _read(self, source: int, read: list[list[Any]]) -> Iterator[NumberedExamples]:
        counters = Counters(partitions=read)
        context = Context(self._seed, counters=counters)
        with closing(Reader(self._sources[source].node, context)) as reader:
            while (block := reader.take(_READ_AT_ONCE)) is not None:
                numbers = numbered(source, reader.position - block.count, block.count)
                # Without origins, which would often take more memory than the examples.
                yield NumberedExamples(numbers, block._replace(origin=None))


def _parts(chunks: Iterable[NumberedExamples], size: int) -> Iterator[NumberedExamples]:
    """Yield chunks of about ``size`` bytes each; the last may be smaller."""
    held: list[NumberedExamples] = []
    held_bytes = 0
    for chunk in chunks:
        count = len(chunk.numbers)
        step = max(1, count * size // max(1, chunk.nbytes))
        for start in range(0, count, step):
            part = chunk.part(start, start + step)
            held.append(part)
            held_bytes += part.nbytes
            if held_bytes >= size:
                yield joined(held)
                held, held_bytes = [], 0
    if held:
        yield joined(held)


def _split(
    chunk: NumberedExamples, partitions: np.ndarray
) -> Iterator[tuple[int, NumberedExamples]]:
    """Yield the examples of each partition."""
    if not len(partitions):
        return
    if (partitions == partitions[0]).all():
        yield int(partitions[0]), chunk
        return
    order = np.argsort(partitions, kind="stable")
    found, begins = np.unique(partitions[order], return_index=True)
    ends = [*begins[1:].tolist(), len(order)]
    for partition, begin, end in zip(found.tolist(), begins.tolist(), ends, strict=True):
        # Copies, because a view would keep the whole chunk alive.
        yield partition, chunk.take(order[begin:end])
