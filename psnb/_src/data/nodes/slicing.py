"""Some of the elements: the first, all but the first, every n-th."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psnb._src.data.block import Block
from psnb._src.data.node import INFINITE, Context, Indexed, Node, NodeIterator, State
from psnb._src.data.nodes.transforms import Every, InOrder, SingleInputIterator
from psnb._src.data.reader import Reader


@dataclass(frozen=True, eq=False)
class Take(Node):
    """The first ``count``."""

    name: ClassVar[str] = "take"

    source: Node
    count: int

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        indexed = self.indexed()
        if indexed is not None:
            return InOrder(indexed, state)
        return _TakeIterator(self, context, state)

    def indexed(self) -> Indexed | None:
        """Return elements by number, if the input has them so."""
        elements = self.source.indexed()
        return elements and Every(elements, 0, 1, min(self.count, elements.count))

    def cardinality(self) -> int:
        """Return how many there are at most."""
        count = self.source.cardinality()
        if count == INFINITE:
            return self.count
        return min(count, self.count) if self.count else 0


@dataclass(frozen=True, eq=False)
class Skip(Node):
    """All but the first ``count``."""

    name: ClassVar[str] = "skip"

    source: Node
    count: int

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        indexed = self.indexed()
        if indexed is not None:
            return InOrder(indexed, state)
        return _SkipIterator(self, context, state)

    def indexed(self) -> Indexed | None:
        """Return elements by number, if the input has them so."""
        elements = self.source.indexed()
        return elements and Every(elements, self.count, 1, elements.count - self.count)

    def cardinality(self) -> int:
        """Return how many are left."""
        count = self.source.cardinality()
        return count if count < 0 else max(0, count - self.count)


@dataclass(frozen=True, eq=False)
class EveryNth(Node):
    """Those whose number leaves ``index`` when divided by ``num_shards``."""

    name: ClassVar[str] = "shard"

    source: Node
    num_shards: int
    index: int

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        indexed = self.indexed()
        if indexed is not None:
            return InOrder(indexed, state)
        return _ShardIterator(self, context, state)

    def indexed(self) -> Indexed | None:
        """Return elements by number, if the input has them so."""
        elements = self.source.indexed()
        if elements is None:
            return None
        return Every(elements, self.index, self.num_shards, self._count(elements.count))

    def cardinality(self) -> int:
        """Return how many are left."""
        count = self.source.cardinality()
        return count if count < 0 else max(0, self._count(count))

    def _count(self, count: int) -> int:
        return -(-(count - self.index) // self.num_shards)


class _TakeIterator(SingleInputIterator):
    def __init__(self, node: Take, context: Context, state: State) -> None:
        super().__init__(node.source, context, state)
        self._count = node.count

    def next_block(self, limit: int) -> Block | None:
        limit = min(limit, self._count - self._reader.position)
        return self._reader.take(limit) if limit > 0 else None


class _SkipIterator(SingleInputIterator):
    def __init__(self, node: Skip, context: Context, state: State) -> None:
        super().__init__(node.source, context, state)
        self._count = node.count

    def next_block(self, limit: int) -> Block | None:
        while self._reader.position < self._count:
            if self._reader.take(min(1024, self._count - self._reader.position)) is None:
                return None
        return self._reader.take(limit)


class _ShardIterator(SingleInputIterator):
    def __init__(self, node: EveryNth, context: Context, state: State) -> None:
        super().__init__(node.source, context, state)
        self._node = node

    def next_block(self, limit: int) -> Block | None:
        every, index = self._node.num_shards, self._node.index
        while (block := self._reader.take(min(limit * every, 4096))) is not None:
            first = self._reader.position - block.count
            rows = np.arange((index - first) % every, block.count, every)
            if len(rows):
                return block.take(rows)
        return None


@dataclass(frozen=True, eq=False)
class Repeat(Node):
    """The elements of a dataset ``count`` times, or for ever."""

    name: ClassVar[str] = "repeat"

    source: Node
    count: int | None = None

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin."""
        return _RepeatIterator(self, context, state)

    def cardinality(self) -> int:
        """Return that of the input times the repetitions."""
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
                return None  # repeating nothing would never end
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
