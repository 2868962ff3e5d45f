"""Some of the elements, all of them several times, or with their numbers."""

from __future__ import annotations

import logging
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from psnb._src.data.block import BLOCK, Block
from psnb._src.data.nesting import Nest, is_text
from psnb._src.data.node import (
    INFINITE,
    Context,
    Indexed,
    Node,
    NodeIterator,
    Options,
    State,
)
from psnb._src.data.nodes.indexed import Every, Numbers, Zipped
from psnb._src.data.reader import FromStartIterator, Reader, ReadingIterator, SingleInputIterator
from psnb._src.data.spec import ArraySpec, Spec
from psnb.errors import DatasetError

logger = logging.getLogger("psnb")


class _IgnoringIterator(SingleInputIterator["IgnoreErrors"]):
    """The state: how many errors were left out so far, in earlier epochs too, and the reader's."""

    def __init__(self, node: IgnoreErrors, context: Context, state: State) -> None:
        counted, inner = state or (0, None)
        self._counts, self._place = context.counters.errors_ignored, context.place
        self._counts[self._place] = max(counted, self._count)
        super().__init__(node, context, inner)

    def next_block(self, limit: int) -> Block | None:
        while True:
            try:
                return self._reader.take(limit)
            except DatasetError as error:
                self._counts[self._place] += 1
                if self._count == 1:
                    logger.warning("an element is left out, further ones silently: %s", error)

    def state(self) -> State:
        return [self._count, self._reader.state()]

    @property
    def _count(self) -> int:
        return self._counts.get(self._place, 0)


@dataclass(frozen=True, eq=False)
class IgnoreErrors(Node):
    """Goes on after an error; the first is logged, all are counted."""

    name: ClassVar[str] = "ignore_errors"
    iterator: ClassVar[Any] = _IgnoringIterator
    local: ClassVar[bool] = True

    source: Node


@dataclass(frozen=True, eq=False)
class WithOptions(Node):
    """Sets the options for the chain before it; changes no element."""

    name: ClassVar[str] = "with_options"
    local: ClassVar[bool] = True
    one_to_one: ClassVar[bool] = True

    source: Node
    options: Options

    @property
    def counted(self) -> Node:
        return self.source.counted

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        return self.source.iterate(replace(context, options=self.options), state)

    def indexed(self) -> Indexed | None:
        return self.source.indexed()


_PAIR = Nest(tuple, (0, 1), (None, None))


@dataclass(frozen=True, eq=False)
class Enumerate(Node):
    """Pairs of an int64, from ``start`` on, and an element."""

    name: ClassVar[str] = "enumerate"
    iterator: ClassVar[Any] = SingleInputIterator
    one_to_one: ClassVar[bool] = True

    source: Node
    start: int = 0

    def pull(self, reader: Reader, limit: int) -> Block | None:
        block = reader.take(limit)
        if block is None:
            return None
        stop = self.start + reader.position
        columns = np.arange(stop - block.count, stop), *block.columns
        return block._replace(nesting=Nest(tuple, (0, 1), (None, block.nesting)), columns=columns)

    def indexed(self) -> Indexed | None:
        elements = self.source.indexed()
        if elements is None:
            return None
        return Zipped(_PAIR, [Numbers(range(self.start, self.start + elements.count)), elements])

    def spec(self, run: bool) -> Spec:
        spec = self.source.spec(run)
        return None if spec is None else (ArraySpec((), np.dtype(np.int64)), spec)


class _UniqueIterator(FromStartIterator["Unique"]):
    def __init__(self, node: Unique, context: Context, state: State) -> None:
        super().__init__(node, context, state)
        self._seen: set[Any] = set()

    def next_block(self, limit: int) -> Block | None:
        while (missing := self._far - self._reader.position) > 0:
            block = self._reader.take(min(missing, BLOCK))
            if block is None:
                self._far = self._reader.position  # this error is the last one
                raise DatasetError(
                    "unique: the input has fewer elements than when the state was taken"
                )
            self._seen.update(self._keys(block))
        while (block := self._take(limit)) is not None:
            new = []
            for index, key in enumerate(self._keys(block)):
                if key not in self._seen:
                    self._seen.add(key)
                    new.append(index)
            if new:
                return block.take(np.array(new))
        return None

    def state(self) -> State:
        return [max(self._far, self._reader.position), self._raised]

    def _keys(self, block: Block) -> list[Any]:
        """Return the elements of a block as Python's numbers and texts."""
        column = block.columns[0]
        if block.nesting is None and isinstance(column, np.ndarray) and column.ndim == 1:
            keys: list[Any] = column.tolist()
            if column.dtype.kind in "iubSU" or all(map(is_text, keys)):
                return keys
        position = self._reader.position - block.count
        raise self._node.error(
            position,
            "elements must be integers, booleans or texts, one each; map to what distinguishes "
            "them, or use merge_by",
            block.place(0),
        )


@dataclass(frozen=True, eq=False)
class Unique(Node):
    """Leaves out elements that were there before: numbers or texts."""

    name: ClassVar[str] = "unique"
    iterator: ClassVar[Any] = _UniqueIterator

    source: Node


_READ_AT_ONCE = 4096
"""The most elements that are read to choose from them."""


@dataclass(frozen=True, eq=False)
class Slice(Node):
    """Base of the nodes that are a slice of their input, as Python's slices are of a list."""

    iterator: ClassVar[Any] = SingleInputIterator

    source: Node

    @property
    @abstractmethod
    def rows(self) -> slice:
        """The numbers of the elements; start and step are given, and no number is negative."""

    def pull(self, reader: Reader, limit: int) -> Block | None:
        rows = self.rows
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

    def indexed(self) -> Indexed | None:
        elements = self.source.indexed()
        return elements and Every(elements, range(elements.count)[self.rows])

    def cardinality(self) -> int:
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
        return slice(0, self.count, 1)


@dataclass(frozen=True, eq=False)
class Skip(Slice):
    """All but the first ``count``."""

    name: ClassVar[str] = "skip"

    count: int

    @property
    def rows(self) -> slice:
        return slice(self.count, None, 1)


@dataclass(frozen=True, eq=False)
class EveryNth(Slice):
    """The elements whose number leaves ``index`` when divided by ``num_shards``."""

    name: ClassVar[str] = "shard"

    num_shards: int
    index: int

    @property
    def rows(self) -> slice:
        return slice(self.index, None, self.num_shards)


class _RepeatIterator(ReadingIterator):
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

    def _open(self, state: State) -> Reader:
        return Reader(self._node.source, self._context.child(0).repeated(self._time), state)


@dataclass(frozen=True, eq=False)
class Repeat(Node):
    """``count`` times, or for ever."""

    name: ClassVar[str] = "repeat"
    iterator: ClassVar[Any] = _RepeatIterator

    source: Node
    count: int | None = None

    def cardinality(self) -> int:
        """Return the input's cardinality, `count` times."""
        once = self.source.cardinality()
        if once == 0 or self.count == 0:
            return 0
        if self.count is None:
            return INFINITE
        return once * self.count if once > 0 else once
