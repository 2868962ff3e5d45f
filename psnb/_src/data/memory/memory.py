"""Memory: the part of an in-memory dataset in one process.

It reads pieces from their sources, sends the examples that a shuffle moves, receives examples from
others, and makes lost pieces again from the sources. Requests carry the generation and the
`ShufflePlan`, so it need not be informed of changes. Thread-safe.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn

import numpy as np

from psnb._src.data.dataset import Dataset
from psnb._src.data.iteration_context import Context
from psnb._src.data.memory.in_memory_pieces import InMemoryPieces
from psnb._src.data.memory.memory_store import MemoryStatistics, MemoryStore
from psnb._src.data.memory.numbered_examples import NumberedExamples, joined, packed, unpacked
from psnb._src.data.memory.piece import over
from psnb._src.data.memory.shuffle_plan import ShufflePlan, numbered
from psnb._src.data.reader import Reader
from psnb.errors import ConfigurationError

_READ_AT_ONCE = 1 << 13
_AT_ONCE_BYTES, _PART_BYTES = 1 << 22, 1 << 16
"""Bytes that are scattered at a time: the first number, or the second for each piece, whichever is
more. Smaller parts would get smaller with each shuffle."""


class Memory:
    """Holds pieces.

    Parameters
    ----------
    sources : sequence of Dataset
        The sources of the pieces. Each must give the same elements each time.
    seed : int
        For shuffles in the sources without their own seed.
    batch_size : int
        Examples per batch.
    limit : int
        Bytes of memory; see `MemoryStore`.
    folder : str
        For the data beyond the limit.

    Attributes
    ----------
    pieces : int
        How many the dataset has.
    """

    def __init__(
        self, sources: Sequence[Dataset], seed: int, batch_size: int, limit: int, folder: str
    ) -> None:
        self._sources, self._seed, self._batch_size = sources, seed, batch_size
        self.pieces = len(sources)
        self._store = MemoryStore(limit, folder)
        # One thread at a time makes lost pieces. Held while sources are read: threads that wait for
        # it need what is read.
        self._making = threading.Lock()
        # Pieces that are being read have negative generations, so that nobody sees them yet.
        self._unfinished = itertools.count(-1, -1)
        self._newest = 0
        self._forgotten: set[int] = set()

    def load(self, generation: int, number: int) -> None:
        """Read a piece from its source, and replace the old one; all of it or nothing.

        Raises
        ------
        DatasetError
            If the source cannot be read, or there is no room.
        """
        self._make(generation, ShufflePlan(self.pieces), [number])

    def make(self, generation: int, layout: ShufflePlan, numbers: Iterable[int]) -> None:
        """Make pieces that are not here; reads each source that they come from once.

        Raises
        ------
        DatasetError
            As for `load`, or if the generation is over.
        """
        self._check(generation)
        with self._making:
            missing = [each for each in numbers if not self._store.has(generation, each)]
            if missing:
                self._make(generation, layout, missing)

    def begin(self, generation: int, numbers: Iterable[int]) -> None:
        """Note which pieces of a generation belong here."""
        for number in numbers:
            self._store.begin(generation, number)

    def has(self, generation: int, number: int) -> bool:
        """Return whether a piece is here."""
        return self._store.has(generation, number)

    def scatter(
        self,
        generation: int,
        number: int,
        new: int,
        layout: ShufflePlan,
        places: Sequence[str | None],
        send: Callable[[str, bytes], None],
    ) -> dict[int, int]:
        """Send the examples of a piece to their places in another plan; the piece stays.

        Parameters
        ----------
        generation, number : int
            The piece.
        new : int
            The generation of the other plan.
        layout : ShufflePlan
            The other plan.
        places : sequence of str or None
            The place of each of its pieces; None: here.
        send : callable
            Takes a place, and the argument for `receive` there.

        Returns
        -------
        dict
            How many went to each piece.
        """
        counts: dict[int, int] = {}
        at_once = max(_AT_ONCE_BYTES, self.pieces * _PART_BYTES)
        for part in _parts(self._store.chunks(generation, number), at_once):
            pieces = np.full(len(part.numbers), number)
            targets = layout.stages[-1].destinations(pieces, part.numbers)
            parcels: dict[str, list[tuple[int, NumberedExamples]]] = {}
            for target, some in _split(part, targets):
                counts[target] = counts.get(target, 0) + len(some.numbers)
                place = places[target]
                if place is None:
                    self._store.put(new, target, some)
                else:
                    parcels.setdefault(place, []).append((target, some))
            for place, several in parcels.items():
                send(place, packed(new, several))
        return counts

    def receive(self, data: bytes) -> None:
        """Add examples that were sent here.

        Raises
        ------
        DatasetError
            If there is no room, or the generation is over.
        """
        generation, parcels = unpacked(data)
        self._check(generation)
        for number, chunk in parcels:
            self._store.put(generation, number, chunk)

    def examples(self, generation: int, layout: ShufflePlan, numbers: Iterable[int]) -> Dataset:
        """Return the examples of pieces, in batches; pieces that are not here are made again."""
        held = InMemoryPieces(self, generation, layout, tuple(numbers), layout.fingerprint)
        return Dataset(held).ragged_batch(self._batch_size)

    def read(self, generation: int, layout: ShufflePlan, number: int) -> NumberedExamples | None:
        """Return a piece in order; None if it is empty.

        Raises
        ------
        DatasetError
            If the generation is over, a lost piece cannot be made again, or the plan exchanges
            slots that there are not.
        """
        self.make(generation, layout, [number])
        found = self._store.read(generation, number, layout)
        if found is None or layout.exchange is None:
            return found
        return found.exchanged(layout.exchange)

    def keep_only(self, generation: int) -> None:
        """Free the pieces of all other generations."""
        self._newest = generation
        self._store.keep_only(generation)

    def forget(self, generation: int) -> None:
        """Free the pieces of a generation that failed."""
        self._forgotten.add(generation)
        self._store.forget(generation)

    def statistics(self, generation: int) -> MemoryStatistics:
        """Return the statistics of the pieces here."""
        return self._store.statistics(generation)

    def __reduce__(self) -> NoReturn:
        raise ConfigurationError("what a dataset holds in memory stays in its process")

    def _check(self, generation: int) -> None:
        if generation < self._newest or generation in self._forgotten:
            raise over()

    def _make(self, generation: int, layout: ShufflePlan, numbers: Sequence[int]) -> None:
        unfinished = next(self._unfinished)
        try:
            for number in numbers:
                self._store.begin(unfinished, number)
            for source in layout.sources(numbers):
                for chunk in self._read(source):
                    pieces = layout.destinations(source, chunk.numbers)
                    mine = np.flatnonzero(np.isin(pieces, numbers))
                    if len(mine) < len(pieces):
                        chunk, pieces = chunk.take(mine), pieces[mine]
                    for piece, part in _split(chunk, pieces):
                        self._store.put(unfinished, piece, part)
            self._check(generation)
            for number in numbers:
                self._store.rename(unfinished, number, generation)
        except BaseException:
            for number in numbers:
                self._store.drop(unfinished, number)
            raise

    def _read(self, source: int) -> Iterator[NumberedExamples]:
        reader = Reader(self._sources[source].node, Context(self._seed))
        try:
            while (block := reader.take(_READ_AT_ONCE)) is not None:
                first = reader.position - block.count
                # Without origins, which would often take more memory than the examples.
                yield NumberedExamples(
                    numbered(source, first, block.count), block._replace(origin=None)
                )
        finally:
            reader.close()


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


def _split(chunk: NumberedExamples, pieces: np.ndarray) -> Iterator[tuple[int, NumberedExamples]]:
    """Yield the examples of each piece."""
    if not len(pieces):
        return
    if (pieces == pieces[0]).all():
        yield int(pieces[0]), chunk
        return
    order = np.argsort(pieces, kind="stable")
    found, begins = np.unique(pieces[order], return_index=True)
    ends = [*begins[1:].tolist(), len(order)]
    for piece, begin, end in zip(found.tolist(), begins.tolist(), ends, strict=True):
        # Copies, because a view would keep the whole chunk alive.
        yield piece, chunk.take(order[begin:end])
