"""Elements that are read ahead, by a thread.

Threads: one per iteration, ``psnb-prefetch-…``, and only it reads the input. It refers only to
the channel, so the iterator can be garbage-collected, which ends the thread.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from psnb._src.data.block import BLOCK, Block
from psnb._src.data.node import (
    AUTOTUNE,
    Context,
    Node,
    NodeIterator,
    PartsIterator,
    State,
    begin_stage,
)
from psnb._src.data.stages import StageCounters
from psnb._src.utils.interrupts import Condition, uninterrupted
from psnb.errors import DatasetError

JOIN_TIMEOUT = 5.0
"""Seconds that closing waits for the thread, which may be running a user's function."""

PATIENCE = 0.001
"""Seconds that a reader waits for more elements after it found none, unless the buffer is full."""

_DOUBLED_UP_TO = 2048
_LARGE = 8

_numbers = itertools.count()


class Autotuner:
    """The size of the buffer: doubled when it is found empty after it was full.

    As TensorFlow's ``PrefetchAutotuner``.
    """

    def __init__(self, buffer_size: int) -> None:
        self.limit = 1 if buffer_size == AUTOTUNE else buffer_size
        self._tuned, self._was_full = buffer_size == AUTOTUNE, False

    def taken(self, there: int) -> None:
        """Note that an element is taken from a buffer with ``there``; 0 if the reader waited."""
        if not self._tuned:
            return
        if there >= self.limit:
            self._was_full = True
        elif there == 0 and self._was_full:
            self._was_full = False
            self.limit += min(self.limit, _DOUBLED_UP_TO)


class _Item(NamedTuple):
    block: Block | None  # None at the end, and for an error
    error: BaseException | None
    after: State  # of the input

    @property
    def size(self) -> int:
        return 1 if self.block is None else self.block.count


class _Channel:
    """Shared by the thread and the reader.

    Neither takes a lock while both have work to do. Waking a thread for each element would take
    longer than making many a batch. So a reader that found nothing first lets some elements be
    made, and a large buffer that was full is filled again when half of it is free.
    """

    def __init__(self, buffer_size: int) -> None:
        self._items: deque[_Item] = deque()
        self._made = 0  # changed only by the thread
        self._taken = 0  # changed only by the reader
        self.tuner = Autotuner(buffer_size)
        # To wait for the other side; guards the fields below. Nothing is read while it is held.
        self._changed = Condition()
        self._full = False  # the thread waits
        self._eager = False  # the reader waits for any element
        self._closed = False

    def room(self) -> int:
        """Wait for room; returns 0 when the channel is closed."""
        if self.count() >= self.tuner.limit:
            with self._changed:
                self._full = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed or self._worth_it())
                self._full = False
        return 0 if self._closed else self.tuner.limit - self.count()

    def put(self, item: _Item) -> None:
        self._made += item.size
        self._items.append(item)
        if self._eager or item.block is None:
            with self._changed:
                self._changed.notify_all()

    def get(self) -> _Item | None:
        """Wait for the next item; returns None when the channel is closed."""
        if not self._items:
            self.tuner.taken(0)
            with self._changed:
                self._changed.wait_for(self._enough, PATIENCE)
                self._eager = True
                self._changed.wait_for(lambda: self._closed or self._items)
                self._eager = False
        if self._closed:
            return None
        self.tuner.taken(self.count())
        item = self._items.popleft()
        self._taken += item.size
        if self._full and self._worth_it():
            with self._changed:
                self._changed.notify_all()
        return item

    def _enough(self) -> bool:
        """Return whether no more elements will come before some are taken."""
        ends = bool(self._items) and self._items[-1].block is None
        return self._closed or ends or (self._full and bool(self._items))

    def count(self) -> int:
        """Return how many elements there are; any thread, which may see one too few."""
        return self._made - self._taken

    def _worth_it(self) -> bool:
        limit = self.tuner.limit
        return self.count() <= (limit // 2 if limit >= _LARGE else limit - 1)

    def close(self) -> None:
        """Wake both sides, which then end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _read(channel: _Channel, source: NodeIterator, stage: StageCounters, ahead: int) -> None:
    try:
        while room := channel.room():
            try:
                block = stage.next_block(source, min(room, ahead))
                item = _Item(block, None, source.state())
            except DatasetError as error:
                channel.put(_Item(None, error, source.state()))
                continue
            channel.put(item)
            if block is None:
                return
    except BaseException as error:  # the reader raises it
        channel.put(_Item(None, error, None))
    finally:
        source.close()


class _PrefetchIterator(PartsIterator):
    """The state: the input's before the current block, and how much of the block was returned."""

    def __init__(self, node: Prefetch, context: Context, state: State) -> None:
        self._before: State
        self._skip: int
        self._before, self._skip = state or (None, 0)
        below = context.child(0)
        self._source, self._stage = begin_stage(node.source, below, self._before, apart=True)
        self._stages = context.counters.stages
        self._ahead = max(1, min(node.source.ahead, BLOCK))
        self._channel = _Channel(node.buffer_size)
        self._thread: threading.Thread | None = None
        self._after: State = None  # the input's, behind the block at hand
        self._ended = False
        self._finalizer = weakref.finalize(self, self._channel.close)

    def next_block(self, limit: int) -> Block | None:
        if self._thread is None:
            self._start()
        while self._skip:  # returned before the state was taken
            block = super().next_block(self._skip)
            if block is None:
                return None
            self._skip -= block.count
        return super().next_block(limit)

    def state(self) -> State:
        if self._block is not None and self._used == self._block.count:
            return [self._after, self._skip]
        return [self._before, self._used + self._skip]

    def level(self) -> tuple[int, int]:
        channel = self._channel
        return max(0, channel.count()), channel.tuner.limit

    def close(self) -> None:
        self._ended = True
        self._finalizer()
        if self._thread is None:
            self._source.close()
        elif self._thread is not threading.current_thread():
            self._thread.join(JOIN_TIMEOUT)
        self._stages.end(self._stage)

    @uninterrupted
    def _start(self) -> None:
        self._thread = threading.Thread(
            target=_read,
            args=(self._channel, self._source, self._stage, self._ahead),
            name=f"psnb-prefetch-{next(_numbers)}",
            daemon=True,
        )
        self._thread.start()

    def _advance(self) -> bool:
        if self._block is not None:
            self._block, self._before, self._used = None, self._after, 0
        item = None if self._ended else self._channel.get()
        if item is None:
            return False
        if item.error is not None:
            self._ended = not isinstance(item.error, DatasetError)
            self._before = self._before if self._ended else item.after
            raise item.error
        self._block, self._after = item.block, item.after
        if item.block is None:
            self._ended, self._before = True, item.after
        return item.block is not None


@dataclass(frozen=True, eq=False)
class Prefetch(Node):
    """Keeps up to ``buffer_size`` elements."""

    name: ClassVar[str] = "prefetch"
    local: ClassVar[bool] = True
    one_to_one: ClassVar[bool] = True
    waits: ClassVar[bool] = True
    ahead: ClassVar[int] = 1  # they are there, or will be soon

    source: Node
    buffer_size: int

    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin; the thread starts with the first element that is asked for."""
        if self.buffer_size == 0:
            return self.source.iterate(context.child(0), state)
        return _PrefetchIterator(self, context, state)

    @property
    def counted(self) -> Node:
        """Return the input, if nothing is read ahead."""
        return self if self.buffer_size else self.source.counted
