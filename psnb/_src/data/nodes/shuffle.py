"""Elements in random order, drawn from a buffer of the next ones.

Elements are in the rows of a store; when an element is drawn, its row is reused for the next one.
Only a list of row numbers is shuffled, as indices would be; whole blocks are then copied out of the
store and into it.

The state contains no elements. The content of the buffer follows from the key and from how many
were drawn and read. To resume, these elements are read again, from the input's position before
the oldest of them.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from psnb._src.data.block import (
    BLOCK,
    Block,
    Column,
    Origin,
    concatenate,
    different_dtypes,
    leaf_dtype,
    stack,
    take,
)
from psnb._src.data.nesting import is_text
from psnb._src.data.node import Context, Indexed, Node, NodeIterator, State
from psnb._src.data.ragged import Ragged, offsets_of, rows_of
from psnb._src.data.random import draw, draw_again, mixed
from psnb._src.data.reader import Reader, ReadingIterator
from psnb.errors import DatasetError

logger = logging.getLogger("psnb")


class RaggedRows:
    """Rows in one buffer: new ones go to its end; when that is full, rows in use are moved.

    Parameters
    ----------
    like : Ragged
        Of the dtype and trailing axes of the rows to be.
    """

    def __init__(self, like: Ragged) -> None:
        self._values = np.empty((0, *like.values.shape[1:]), like.dtype)
        self._starts = self._lengths = np.empty(0, np.int64)
        self._end = 0  # of the written part of the buffer

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the values."""
        return self._values.dtype

    def fits(self, rows: Ragged) -> bool:
        """Return whether rows have this buffer's dtype and trailing axes."""
        return rows.dtype == self.dtype and rows.shape[2:] == self._values.shape[1:]

    def grow(self, count: int) -> None:
        """Grow to ``count`` rows, the new ones empty."""
        more = np.zeros(count - len(self), np.int64)
        self._starts = np.concatenate([self._starts, more])
        self._lengths = np.concatenate([self._lengths, more])

    def put(self, places: np.ndarray, rows: Ragged) -> None:
        """Overwrite the rows at some places with others that fit."""
        values, offsets = rows.values, rows.offsets
        self._lengths[places] = 0
        if self._end + len(values) > len(self._values):
            self._move(len(values))
        stop = self._end + len(values)
        self._values[self._end : stop] = values
        self._starts[places] = self._end + offsets[:-1]
        self._lengths[places] = rows.lengths
        self._end = stop

    def take(self, places: np.ndarray) -> Ragged:
        """Copy some rows together."""
        lengths = self._lengths[places]
        rows = rows_of(self._values, self._starts[places], lengths)
        return Ragged(rows, offsets_of(lengths))

    def _move(self, more: int) -> None:
        """Move what is in use to a buffer that has as much room again."""
        kept = rows_of(self._values, self._starts, self._lengths)
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._end = len(kept)
        self._values = np.empty((2 * (self._end + more), *kept.shape[1:]), kept.dtype)
        self._values[: self._end] = kept


class RowStore:
    """Rows that can be overwritten; grows only as needed.

    Columns of one number an element are one matrix for each dtype. So rows that are drawn at random
    are few places in memory, not one for each column.
    """

    def __init__(self) -> None:
        self._like: Block | None = None
        self._groups: list[list[int]] = []  # which columns each of the next ones holds
        self._columns: list[np.ndarray | RaggedRows] = []
        self._capacity = 0

    def put(self, rows: np.ndarray, block: Block) -> None:
        if not len(rows):
            return
        if self._like is not None and (self._like.origin is None) != (block.origin is None):
            unknown = Origin(
                np.full(block.count, "not from a file", object), np.arange(block.count)
            )
            block = block._replace(origin=self._like.origin and unknown)
        columns = _columns(block)
        if self._like is None:
            self._like = block.part(0, 0)._replace(count=0)
            self._groups = _groups(columns)
            self._columns = [_empty(column) for column in self._joined(_columns(self._like))]
        elif block.nesting != self._like.nesting:
            # The leaves may be in another order; if the form differs, this raises.
            block = concatenate([self._like, block])
            columns = _columns(block)
        if block.loose and not self._like.loose:
            self._like = self._like._replace(loose=True)
        self._reserve(int(rows.max()) + 1)
        if len(self._groups) < len(columns) and _groups(columns) != self._groups:
            self._columns = self._apart(self._columns)
            self._groups = [[index] for index in range(len(columns))]
        joined = self._joined(columns)
        for index, (column, new) in enumerate(zip(self._columns, joined, strict=True)):
            if isinstance(column, RaggedRows):
                if isinstance(new, Ragged) and column.fits(new):
                    column.put(rows, new)
                    continue
            elif (column.dtype, column.shape[1:]) == (new.dtype, new.shape[1:]):
                column[rows] = new
                continue
            if column.dtype != object and leaf_dtype(new) != column.dtype:
                raise different_dtypes("shuffle", (column.dtype, leaf_dtype(new)))
            # Each element's leaf on its own: their shapes differ.
            if isinstance(column, RaggedRows) or column.dtype != object or column.ndim > 1:
                column = self._columns[index] = _as_objects(column)
            for row, leaf in zip(rows.tolist(), new, strict=True):
                column[row] = leaf

    def get(self, rows: np.ndarray) -> Block:
        assert self._like is not None  # nothing is taken before something was put
        found = [
            column.take(rows) if isinstance(column, RaggedRows) else _filled(take(column, rows))
            for column in self._columns
        ]
        found = self._apart(found)
        origin = self._like.origin and Origin(*found[-2:])  # type: ignore[arg-type]
        columns = found[:-2] if origin else found
        return Block(self._like.nesting, tuple(columns), len(rows), origin, self._like.loose)

    def _joined(self, columns: list[Any]) -> list[Column]:
        """Return the columns of each group as one."""
        return [
            columns[group[0]]
            if len(group) == 1
            # Without a dtype, numbers of another byte order would become this machine's.
            else np.stack([columns[i] for i in group], dtype=columns[group[0]].dtype).T
            for group in self._groups
        ]

    def _apart(self, joined: list[Any]) -> list[Any]:
        """Return each column of the groups, in memory of its own."""
        columns: list[Any] = [None] * sum(map(len, self._groups))
        for group, each in zip(self._groups, joined, strict=True):
            for place, index in enumerate(group):
                columns[index] = each if len(group) == 1 else each[:, place].copy()
        return columns

    def _reserve(self, rows: int) -> None:
        if rows > self._capacity:
            capacity = max(rows, 2 * self._capacity, 256)
            for index, column in enumerate(self._columns):
                if isinstance(column, RaggedRows):
                    column.grow(capacity)
                else:
                    self._columns[index] = grown(column, capacity)
            self._capacity = capacity  # if there was memory for all


def _columns(block: Block) -> list[Column]:
    return [*block.columns, *(block.origin or ())]


def _groups(columns: list[Column]) -> list[list[int]]:
    """Return which columns are kept as one: numbers of one dtype."""
    groups: dict[Any, list[int]] = {}
    for index, column in enumerate(columns):
        single = isinstance(column, Ragged) or column.ndim > 1 or column.dtype.kind not in "biufc"
        groups.setdefault(index if single else column.dtype, []).append(index)
    return list(groups.values())


def _empty(column: Column) -> np.ndarray | RaggedRows:
    if isinstance(column, Ragged):
        return RaggedRows(column)
    if column.dtype.kind in "SU":
        return np.empty(0, object)
    return np.empty((0, *column.shape[1:]), column.dtype)


def grown(column: np.ndarray, rows: int) -> np.ndarray:
    grown = np.empty((rows, *column.shape[1:]), column.dtype)
    grown[: len(column)] = column
    return grown


def _as_objects(column: np.ndarray | RaggedRows) -> np.ndarray:
    objects = np.empty(len(column), object)
    rows = column.take(np.arange(len(column))) if isinstance(column, RaggedRows) else column
    for index, row in enumerate(rows):
        objects[index] = row.copy()
    return objects


def _filled(column: np.ndarray) -> Column:
    if column.dtype != object or column.ndim > 1 or is_text(column[0]):
        return column
    return stack(list(column))


_ENDLESS = 1 << 62
_ENTERING = 1 << 61  # more than there are rows


def _translated(numbers: np.ndarray, rows: np.ndarray) -> np.ndarray:
    found = numbers.copy()
    entered = numbers >= _ENTERING
    found[entered] = rows[numbers[entered] - _ENTERING]
    return found


_MOMENT = 0.25
"""Seconds that it may take to read elements between two looks at the time."""


class _Patience:
    """Shows from time to time how full the buffer is: until it is full nothing comes."""

    def __init__(self, seconds: float) -> None:
        self._began: float | None = None
        self._last = 0.0
        self._seconds = self._next = seconds
        self._step = 1

    def report(self, count: int, size: int) -> int:
        """Log a warning if it is time, and return how many elements to read before the next call.

        As many as come within a moment: elements may be slow, and a buffer smaller than a block.
        """
        now = time.monotonic()
        if self._began is None:
            self._began = now
        else:
            quick = now - self._last < _MOMENT
            self._step = min(BLOCK, 2 * self._step) if quick else max(1, self._step // 2)
        self._last = now
        if (seconds := now - self._began) >= self._next:
            self._next = seconds + self._seconds
            logger.warning(
                "shuffle fills its buffer: %s of %s elements after %.0f s; the first element comes "
                "when it is full, or its input has ended",
                f"{count:,}",
                f"{size:,}",
                seconds,
            )
        return self._step


class BufferIterator(ReadingIterator):
    """Fills the buffer, then reads an element for each that is drawn.

    The state: how many were drawn and read, whether the input has ended, and the reader's position
    and state, both before the oldest element in the buffer and now.
    """

    def __init__(
        self,
        source: Node,
        buffer_size: int,
        key: int,
        context: Context,
        state: State,
        report_seconds: float = 10.0,  # between messages while the buffer fills
    ) -> None:
        self._size_limit, self._key = buffer_size, key
        self._drawn: int
        self._read: int
        self._ended: bool
        self._drawn, self._read, self._ended, base, now = state or (0, 0, False, None, None)
        self._store = RowStore()
        self._rows = np.empty(0, np.int64)  # where in the store each slot's element is
        self._positions = np.empty(0, np.int64)  # of each row's element
        self._free = np.empty(0, np.int64)  # rows whose elements were drawn
        self._made = 0  # rows, free or not
        self._size = 0
        self._bases: deque[tuple[int, State]] = deque()
        self._checked = 0  # how many were drawn when bases were last looked through
        self._patience = _Patience(report_seconds)
        if self._read:
            self._refill(source, context, base)
        self._reader = Reader(source, context.child(0), now)
        if base is not None:
            self._bases.append((base[0], base))

    def next_block(self, limit: int) -> Block | None:
        """Return elements, and read as many."""
        while self._size < self._size_limit and not self._ended:
            step = self._patience.report(self._size, self._size_limit)
            block = self._take(min(step, self._size_limit - self._size))
            if block is not None:
                self._append(block, self._read - block.count)
        incoming = None if self._ended else self._take(limit)
        if incoming is not None:
            return self._exchange(incoming)
        count = min(limit, self._size)
        if count == 0:
            return None
        drawn, _ = self._draw(count, 0)
        return self._store.get(drawn)

    def state(self) -> State:
        """Return the counts, and how to read the content of the buffer again."""
        base = self._bases[0][1] if self._bases else None
        return [self._drawn, self._read, self._ended, base, self._reader.state()]

    def level(self) -> tuple[int, int]:
        return self._size, self._size_limit

    def _take(self, limit: int) -> Block | None:
        self._remember()
        block = self._reader.take(limit)
        if block is None:
            self._ended = True
        else:
            self._read += block.count
        return block

    def _remember(self) -> None:
        """Note the input's position from time to time, and drop old notes."""
        step = max(1, self._size_limit // 4)
        if not self._bases or self._read - self._bases[-1][0] >= step:
            self._bases.append((self._reader.position, self._reader.state()))
        if self._drawn - self._checked >= step and self._size:
            self._checked = self._drawn
            oldest = int(self._positions[self._rows[: self._size]].min())
            while len(self._bases) > 1 and self._bases[1][0] <= oldest:
                self._bases.popleft()

    def _append(self, block: Block, first: int | np.ndarray) -> None:
        """Fill the next slots; ``first`` is the first element's number, or the numbers of all."""
        rows, stop = self._put(block, first), self._size + block.count
        if stop > len(self._rows):
            self._rows = grown(self._rows, min(self._size_limit, max(2 * len(self._rows), stop)))
        self._rows[self._size : stop] = rows
        self._size = stop

    def _put(self, block: Block, first: int | np.ndarray) -> np.ndarray:
        """Put elements into free rows; returns which."""
        missing = block.count - len(self._free)
        if missing > 0:
            made = np.arange(self._made, self._made + missing)
            self._free, self._made = np.concatenate([self._free, made]), self._made + missing
            if self._made > len(self._positions):
                self._positions = grown(self._positions, 2 * self._made)
        rows, self._free = self._free[: block.count], self._free[block.count :]
        self._store.put(rows, block)
        self._positions[rows] = (
            np.arange(first, first + block.count) if isinstance(first, int) else first
        )
        return rows

    def _exchange(self, incoming: Block) -> Block:
        """Return elements that are drawn while others come in."""
        rows = self._put(incoming, self._read - incoming.count)
        drawn, slots = self._draw(incoming.count, incoming.count)
        # New elements were drawn, and are in slots, by their number in ``incoming`` so far.
        self._rows[slots] = _translated(self._rows[slots], rows)
        drawn = _translated(drawn, rows)
        self._free = np.concatenate([self._free, drawn])
        return self._store.get(drawn)

    def _draw(self, count: int, entering: int) -> tuple[np.ndarray, np.ndarray]:
        drawn, slots, self._size, _ = draw(
            self._key, self._drawn, self._rows, self._size, _ENTERING, _ENTERING + entering, count
        )
        self._drawn += count
        return drawn, slots

    def _refill(self, source: Node, context: Context, base: State) -> None:
        """Read the content of the buffer again, and restore its order."""
        end = self._read if self._ended else _ENDLESS
        size = min(self._size_limit, self._read)
        slots = np.arange(size)
        size, _ = draw_again(self._key, slots, size, size, end, self._drawn)
        slots = slots[:size]
        wanted = np.sort(slots)
        with closing(Reader(source, context.child(0), base)) as reader:
            while self._size < size:
                step = self._patience.report(self._size, size)
                try:
                    block = reader.take(step)
                except DatasetError:
                    continue  # raised before
                if block is None:
                    raise DatasetError(
                        "shuffle: the input has fewer elements than when the state was taken"
                    )
                first = reader.position - block.count
                a, b = np.searchsorted(wanted, [first, reader.position])
                if a < b:
                    self._append(block.take(wanted[a:b] - first), wanted[a:b])
        # Slot i has the i-th smallest position so far.
        self._rows[:size] = self._rows[np.searchsorted(wanted, slots)]


@dataclass(frozen=True, eq=False)
class Shuffle(Node):
    """Draws each next element from the ``buffer_size`` oldest that were not drawn yet."""

    name: ClassVar[str] = "shuffle"
    local: ClassVar[bool] = True
    one_to_one: ClassVar[bool] = True

    source: Node
    buffer_size: int
    seed: int | None = None
    reshuffle_each_iteration: bool = True

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin; over indices where the input has elements by number."""
        own = mixed(context.seed, 1) if self.seed is None else mixed(self.seed)
        key = mixed(own, context.epoch if self.reshuffle_each_iteration else 0)
        indexed = self.source.indexed()
        if indexed is not None:
            return _IndexIterator(indexed, self.buffer_size, key, state)
        return BufferIterator(self.source, self.buffer_size, key, context, state)


class _IndexIterator(NodeIterator):
    """Shuffles numbers and gathers elements by them; the state is how many were drawn."""

    def __init__(self, elements: Indexed, buffer_size: int, key: int, state: State) -> None:
        self._elements, self._key = elements, key
        self._size = self._entering = min(buffer_size, elements.count)
        self._buffer = np.arange(self._size)
        self._drawn: int = state or 0
        self._size, self._entering = draw_again(
            key, self._buffer, self._size, self._entering, elements.count, self._drawn
        )

    def next_block(self, limit: int) -> Block | None:
        end = self._elements.count
        count = min(limit, end - self._drawn)
        if not count:
            return None
        buffer = self._buffer, self._size, self._entering, end
        drawn, _, self._size, self._entering = draw(self._key, self._drawn, *buffer, count)
        self._drawn += count
        return self._elements.rows(drawn)

    def state(self) -> State:
        return self._drawn
