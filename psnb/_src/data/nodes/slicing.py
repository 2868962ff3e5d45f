"""Some of the elements: the first, all but the first, every n-th."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psnb._src.data.block import Block
from psnb._src.data.node import INFINITE, Context, Indexed, Node, NodeIterator, State
from psnb._src.data.nodes.transforms import Every, InOrder, SingleInputIterator
from psnb._src.data.reader import Reader

_READ_AT_ONCE = 4096
"""The most elements that are read to choose from them."""


@dataclass(frozen=True, eq=False)
class Slice(Node):
    """Base of those that are a slice of their input, as Python's slices are of a list."""

    source: Node

    @property
    @abstractmethod
    def rows(self) -> slice:
        """The numbers of the elements; start and step are given, and no number is negative."""

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        indexed = self.indexed()
        if indexed is not None:
            return InOrder(indexed, state)
        return _SliceIterator(self, context, state)

    def indexed(self) -> Indexed | None:
        """Return elements by number, if the input has them so."""
        elements = self.source.indexed()
        return elements and Every(elements, range(elements.count)[self.rows])

    def cardinality(self) -> int:
        """Return how many are left."""
        count, stop = self.source.cardinality(), self.rows.stop
        if stop == 0 or (count == INFINITE and stop is not None):
            return stop
        return count if count < 0 else len(range(count)[self.rows])


@dataclass(frozen=True, eq=False)
class Take(Slice):
    """The first ``count``."""

    name: ClassVar[str] = "take"

    count: int

    @property
    def rows(self) -> slice:
        """Begins with the first."""
        return slice(0, self.count, 1)


@dataclass(frozen=True, eq=False)
class Skip(Slice):
    """All but the first ``count``."""

    name: ClassVar[str] = "skip"

    count: int

    @property
    def rows(self) -> slice:
        """Goes on to the end."""
        return slice(self.count, None, 1)


@dataclass(frozen=True, eq=False)
class EveryNth(Slice):
    """Those whose number leaves ``index`` when divided by ``num_shards``."""

    name: ClassVar[str] = "shard"

    num_shards: int
    index: int

    @property
    def rows(self) -> slice:
        """Leaves out those between."""
        return slice(self.index, None, self.num_shards)


class _SliceIterator(SingleInputIterator[Slice]):
    def next_block(self, limit: int) -> Block | None:
        reader, rows = self._reader, self._node.rows
        missing = rows.start - reader.position
        if missing > 0 and reader.skip(missing) < missing:
            return None
        if rows.stop is not None:
            limit = min(limit, rows.stop - reader.position)
        if rows.step == 1:
            return reader.take(limit) if limit > 0 else None
        while (block := reader.take(min(limit * rows.step, _READ_AT_ONCE))) is not None:
            first = reader.position - block.count
            chosen = np.arange((rows.start - first) % rows.step, block.count, rows.step)
            if len(chosen):
                return block.take(chosen)
        return None


# A dataset several times.


@dataclass(frozen=True, eq=False)
class Repeat(Node):
    """``count`` times, or for ever."""

    name: ClassVar[str] = "repeat"

    source: Node
    count: int | None = None

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        return _RepeatIterator(self, context, state)

    def cardinality(self) -> int:
        """Return that of the input so many times."""
        once = self.source.cardinality()
        if once == 0 or self.count == 0:
            return 0
        if self.count is None:
            return INFINITE
        return once * self.count if once > 0 else once


class _RepeatIterator(NodeIterator):
    """The state: which time it is, whether there was an element in it, and the reader's."""

    def __init__(self, node: Repeat, context: Context, state: State) -> None:
        self._node, self._context = node, context
        self._time: int
        self._any: bool
        self._time, self._any, inner = state or (0, False, None)
        self._reader = self._open(inner)

    def next_block(self, limit: int) -> Block | None:
        while self._node.count is None or self._time < self._node.count:
            block = self._reader.take(limit)
            if block is not None:
                self._any = True
                return block
            if not self._any:
                return None  # for ever nothing
            self._reader.close()
            self._time, self._any = self._time + 1, False
            self._reader = self._open(None)
        return None

    def state(self) -> State:
        return [self._time, self._any, self._reader.state()]

    def close(self) -> None:
        self._reader.close()

    def _open(self, state: State) -> Reader:
        return Reader(self._node.source, self._context.child(0).repeated(self._time), state)
