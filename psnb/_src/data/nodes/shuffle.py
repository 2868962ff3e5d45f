"""Elements in random order, drawn from a buffer of the next ones.

Elements are in the rows of a store; when an element is drawn, its row is reused for the next one.
Only a list of row numbers is shuffled, as indices would be; whole blocks are then copied out of the
store and into it.

The state contains no elements. The content of the buffer follows from the key and from how many
were drawn and read. To resume, these elements are read again, from the input's position before
the oldest of them. Elements of another dtype, which the buffer refused, are left out again.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from psnb._src.data.block import BLOCK, Block
from psnb._src.data.node import Context, Indexed, Node, NodeIterator, State
from psnb._src.data.nodes.row_store import RowStore, grow
from psnb._src.data.random import draw, draw_again, mixed
from psnb._src.data.reader import Reader, ReadingIterator
from psnb.errors import DatasetError

logger = logging.getLogger("psnb")

T = TypeVar("T")

_ENDLESS = 1 << 62
_NOTHING = np.empty(0, np.int64)

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

    The state: how many were drawn and taken in, whether the input has ended, the reader's state
    before the oldest element in the buffer and now, and each run of elements that was refused in
    between: how many had been taken in before it, and its length.
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
        self._refused: list[list[int]]
        start = 0, 0, False, None, None
        self._drawn, self._read, self._ended, base, now, *self._refused = state or start
        self._store = RowStore(buffer_size)
        self._rows = np.empty(0, np.int64)  # where in the store each slot's element is
        self._positions = np.empty(0, np.int64)  # of each row's element
        self._size = 0
        self._bases: deque[tuple[int, State]] = deque()
        self._checked = 0  # how many were drawn when bases were last looked through
        self._patience = _Patience(report_seconds)
        if base is not None and now is not None:
            before = now[0] - self._read - sum(count for _, count in self._refused)
            self._bases.append((base[0] - before, base))
        if self._read:
            self._refill(source, context)
        self._reader = Reader(source, context.child(0), now)

    def next_block(self, limit: int) -> Block | None:
        """Return elements, and read as many."""
        while self._size < self._size_limit and not self._ended:
            step = self._patience.report(self._size, self._size_limit)
            block = self._take(min(step, self._size_limit - self._size))
            if block is not None:
                self._enter(block, self._append)
        incoming = None if self._ended else self._take(limit)
        if incoming is not None:
            return self._exchange(incoming)
        count = min(limit, self._size)
        if count == 0:
            return None
        return self._store.take(self._draw(count, _NOTHING))

    def state(self) -> State:
        """Return the counts, and how to read the content of the buffer again."""
        base = self._bases[0][1] if self._bases else None
        now = self._reader.state()
        return [self._drawn, self._read, self._ended, base, now, *map(list, self._refused)]

    def level(self) -> tuple[int, int]:
        return self._size, self._size_limit

    def _take(self, limit: int) -> Block | None:
        self._remember()
        block = self._reader.take(limit)
        if block is None:
            self._ended = True
        return block

    def _enter(self, block: Block, put: Callable[[Block, int], T]) -> T:
        """Take in what was read last, or leave all as if it had not been."""
        try:
            found = put(block, self._read)
        except DatasetError:
            if self._refused and self._refused[-1][0] == self._read:
                self._refused[-1][1] += block.count
            else:
                self._refused.append([self._read, block.count])
            raise
        except MemoryError:  # it comes again
            self._reader.put_back(block)
            raise
        self._read += block.count
        return found

    def _remember(self) -> None:
        """Note the input's position from time to time, and drop old notes."""
        step = max(1, self._size_limit // 4)
        if not self._bases or self._read - self._bases[-1][0] >= step:
            self._bases.append((self._read, self._reader.state()))
        if self._drawn - self._checked >= step and self._size:
            self._checked = self._drawn
            oldest = int(self._positions[self._rows[: self._size]].min())
            while len(self._bases) > 1 and self._bases[1][0] <= oldest:
                self._bases.popleft()
            first = self._bases[0][0]
            self._refused = [each for each in self._refused if each[0] >= first]

    def _append(self, block: Block, first: int | np.ndarray) -> None:
        """Fill the next slots; ``first`` is the first element's number, or the numbers of all."""
        stop = self._size + block.count
        if stop > len(self._rows):
            grow(self._rows, min(self._size_limit, max(2 * len(self._rows), stop)))
        self._rows[self._size : stop] = self._put(block, first)
        self._size = stop

    def _put(self, block: Block, first: int | np.ndarray) -> np.ndarray:
        """Store elements; returns in which rows."""
        most = self._store.made + block.count
        if most > len(self._positions):
            grow(self._positions, 2 * most)
        rows = self._store.put(block)
        self._positions[rows] = (
            np.arange(first, first + block.count) if isinstance(first, int) else first
        )
        return rows

    def _exchange(self, incoming: Block) -> Block:
        """Return elements that are drawn while others come in."""
        rows = self._enter(incoming, self._put)
        drawn = self._draw(incoming.count, rows)
        self._store.free(drawn)
        return self._store.take(drawn)

    def _draw(self, count: int, entering: np.ndarray) -> np.ndarray:
        """Return the rows of elements that are drawn while those in other rows enter."""
        drawn, self._size = draw(self._key, self._drawn, self._rows, self._size, entering, count)
        self._drawn += count
        return drawn

    def _refill(self, source: Node, context: Context) -> None:
        """Read the content of the buffer again, and restore its order."""
        end = self._read if self._ended else _ENDLESS
        size = min(self._size_limit, self._read)
        slots = np.arange(size)
        size = draw_again(self._key, slots, size, size, end, self._drawn)
        slots = slots[:size]
        wanted = np.sort(slots)
        number, base = self._bases[0]
        refused = [list(each) for each in self._refused]
        with closing(Reader(source, context.child(0), base)) as reader:
            while self._size < size:
                step = self._patience.report(self._size, size)
                apart = refused[0][0] - number if refused else step
                try:
                    block = reader.take(min(step, apart or refused[0][1]))
                except DatasetError:
                    continue  # raised before
                if block is None:
                    raise DatasetError(
                        "shuffle: the input has fewer elements than when the state was taken"
                    )
                if not apart:
                    refused[0][1] -= block.count
                    if not refused[0][1]:
                        del refused[0]
                    continue
                a, b = np.searchsorted(wanted, [number, number + block.count])
                if a < b:
                    self._append(block.take(wanted[a:b] - number), wanted[a:b])
                number += block.count
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
        self._full = self._size = min(buffer_size, elements.count)
        self._buffer = np.arange(self._size)
        self._drawn: int = state or 0
        self._size = draw_again(
            key, self._buffer, self._size, self._full, elements.count, self._drawn
        )

    def next_block(self, limit: int) -> Block | None:
        end = self._elements.count
        count = min(limit, end - self._drawn)
        if not count:
            return None
        first = min(end, self._full + self._drawn)
        entering = np.arange(first, min(end, first + count))
        drawn, self._size = draw(self._key, self._drawn, self._buffer, self._size, entering, count)
        self._drawn += count
        return self._elements.rows(drawn)

    def state(self) -> State:
        return self._drawn
