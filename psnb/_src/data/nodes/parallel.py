"""Parallel calls of a function, in order or as they end.

Threads: the calling thread reads the input and gives blocks to `Workers`, which only call the
function.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, ClassVar, NamedTuple

from psnb._src.data.block import BLOCK, Block
from psnb._src.data.node import (
    AUTOTUNE,
    Context,
    Node,
    NodeIterator,
    StageCounters,
    State,
    begin_stage,
)
from psnb._src.data.reader import Reader
from psnb._src.utils.threads import Answer, Condition, uninterrupted
from psnb.errors import DatasetError

# A small pool of threads.
#
# Threads: they refer only to the queue and to the condition that they share with the caller. So
# their owner can be garbage-collected, which ends them.

_Job = tuple[Answer[Any], Callable[..., Any], tuple[Any, ...]]
_numbers = itertools.count()


class Workers:
    """Runs calls in its own threads, which end with it."""

    @uninterrupted
    def __init__(self, count: int, name: str) -> None:
        self._ended = Condition()  # to wait for one of several jobs; guards nothing
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        number = next(_numbers)
        self._threads = [
            threading.Thread(
                target=_work,
                args=(self._jobs, self._ended),
                name=f"psnb-{name}-{number}-{i}",
                daemon=True,
            )
            for i in range(count)
        ]
        for thread in self._threads:
            thread.start()
        self._finalizer = weakref.finalize(self, _end, self._jobs, count)

    def submit(self, function: Callable[..., Any], *args: Any) -> Answer[Any]:
        """Queue a call for the next free thread."""
        answer: Answer[Any] = Answer()
        self._jobs.put((answer, function, args))
        return answer

    def wait_for_one(self, answers: Collection[Answer[Any]]) -> None:
        """Wait until one of several calls has ended."""
        with self._ended:
            self._ended.wait_for(lambda: any(answer.done() for answer in answers))

    def close(self) -> None:
        """End the threads after the queued calls; does not wait for them."""
        self._finalizer()


def _end(jobs: SimpleQueue[_Job | None], count: int) -> None:
    for _ in range(count):
        jobs.put(None)


def _work(jobs: SimpleQueue[_Job | None], ended: Condition) -> None:
    while (job := jobs.get()) is not None:
        answer, function, args = job
        if not answer.done():  # it was cancelled
            answer.give(function, *args)
            with ended:
                ended.notify_all()
        del job, answer, args  # not kept while waiting for the next one


_MOST_JOBS = 1024
"""Including those that were returned before an older one."""


@dataclass
class _PendingCall:
    """A block in progress, from being read until all of it was returned."""

    before: State  # the reader's, before it
    begin: int  # the number of its first element
    count: int
    answer: Answer[Block]
    out: list[tuple[int, int]]  # which parts of it were returned, from its begin

    def missing(self) -> tuple[int, int]:
        """Return the first run of elements that was not returned; empty if all were."""
        begin = 0
        for start, stop in sorted(self.out):
            if start > begin:
                return begin, start
            begin = max(begin, stop)
        return begin, self.count

    @property
    def done(self) -> bool:
        start, stop = self.missing()
        return start == stop


class ParallelMapIterator(NodeIterator):
    """Keeps as many calls going as there are threads.

    The state is the reader's before the oldest element that was not returned yet, and which later
    ones were returned. So after resuming, the function is called again for up to as many elements
    as there are threads.

    Parameters
    ----------
    node : Node
        The node that it iterates over.
    source : Node
        The input.
    function : callable
        Takes a block and the number of its first element, returns a block.
    unit : int
        How many elements it gets at once.
    threads : int
        How many calls at a time.
    ordered : bool
        Whether elements keep their order.
    """

    def __init__(
        self,
        node: Node,
        source: Node,
        function: Callable[[Block, int], Block],
        unit: int,
        threads: int,
        ordered: bool,
        context: Context,
        state: State,
    ) -> None:
        before, done = (None, []) if state is None else state
        self._node, self._function, self._unit = node, function, unit
        self._threads, self._ordered = threads, ordered
        self._reader = Reader(source, context.child(0), before)
        self._done: deque[tuple[int, int]] = deque((a, b) for a, b in done)
        self._jobs: deque[_PendingCall] = deque()
        self._workers: Workers | None = None
        self._ended = False
        # The input's error, which is raised after all jobs, and the reader's state before it.
        self._failed: tuple[DatasetError, State] | None = None

    def next_block(self, limit: int) -> Block | None:
        """Return finished elements, in the right order."""
        if self._workers is None:
            self._workers = Workers(self._threads, self._node.name)
        self._fill(self._workers)
        if not self._jobs:
            failed, self._failed = self._failed, None
            if failed is not None:
                raise failed[0]
            return None
        job = self._ready(self._workers)
        try:
            block = job.answer.result()
        except DatasetError:
            self._finish(job, 0, job.count)
            raise
        start, stop = job.missing()
        stop = min(stop, start + limit)
        self._finish(job, start, stop)
        return block.part(start, stop)

    def state(self) -> State:
        """Return the position of the oldest element not returned, and which later ones were."""
        if not self._jobs:
            before = self._failed[1] if self._failed is not None else self._reader.state()
            return [before, [list(each) for each in self._done]]
        first = self._jobs[0]
        done = [[job.begin + a, job.begin + b] for job in self._jobs for a, b in job.out]
        return [first.before, done + [list(each) for each in self._done]]

    def level(self) -> tuple[int, int]:
        """Return how many results are ready, and how many calls there may be."""
        return sum(job.answer.done() for job in tuple(self._jobs)), self._threads

    def close(self) -> None:
        """End the threads and close the input."""
        for job in self._jobs:
            job.answer.cancel()
        if self._workers is not None:
            self._workers.close()
        self._reader.close()

    def _fill(self, workers: Workers) -> None:
        # Finished jobs that wait for an older one do not count.
        while (
            sum(not job.done for job in self._jobs) < self._threads
            and len(self._jobs) < _MOST_JOBS
            and not self._ended
            and self._failed is None
        ):
            before = self._reader.state()
            try:
                block = self._reader.take(self._unit)
            except DatasetError as error:
                self._failed = error, before
                return
            if block is None:
                self._ended = True
                return
            begin = self._reader.position - block.count
            out = self._returned_before(begin, block.count)
            job = _PendingCall(before, begin, block.count, Answer(), out)
            if not job.done:
                job.answer = workers.submit(self._function, block, begin)
                self._jobs.append(job)

    def _returned_before(self, begin: int, count: int) -> list[tuple[int, int]]:
        """Return which elements of a block were returned before the state was taken."""
        found = []
        while self._done and self._done[0][0] < begin + count:
            a, b = self._done.popleft()
            if b > begin:
                found.append((max(a - begin, 0), min(b - begin, count)))
            if b > begin + count:
                self._done.appendleft((begin + count, b))
                break
        return found

    def _ready(self, workers: Workers) -> _PendingCall:
        if self._ordered:
            return self._jobs[0]
        waiting = [job for job in self._jobs if not job.done]
        workers.wait_for_one([job.answer for job in waiting])
        return next(job for job in waiting if job.answer.done())

    def _finish(self, job: _PendingCall, start: int, stop: int) -> None:
        job.out.append((start, stop))
        while self._jobs and self._jobs[0].done:
            self._jobs.popleft()


# Elements that are read ahead.
#
# Threads: one per iteration, ``psnb-prefetch-…``, and only it reads the input. It refers only to
# the channel, so the iterator can be garbage-collected, which ends the thread.

JOIN_TIMEOUT = 5.0
"""Seconds that closing waits for the thread, which may be running a user's function."""

PATIENCE = 0.001
"""Seconds that a reader waits for more elements after it found none, unless the buffer is full."""

_DOUBLED_UP_TO = 2048
_LARGE = 8


@dataclass(frozen=True, eq=False)
class Prefetch(Node):
    """Keeps up to ``buffer_size`` elements."""

    name: ClassVar[str] = "prefetch"
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


class _Item(NamedTuple):
    block: Block | None  # None at the end, and for an error
    error: BaseException | None
    after: State  # of the input

    @property
    def size(self) -> int:
        return 1 if self.block is None else self.block.count


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
        self._tuner = Autotuner(buffer_size)
        # To wait for the other side; guards the fields below. Nothing is read while it is held.
        self._changed = Condition()
        self._full = False  # the thread waits
        self._eager = False  # the reader waits for any element
        self._closed = False

    def room(self) -> int:
        """Wait for room; returns 0 when the channel is closed."""
        if self._count() >= self._tuner.limit:
            with self._changed:
                self._full = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed or self._worth_it())
                self._full = False
        return 0 if self._closed else self._tuner.limit - self._count()

    def put(self, item: _Item) -> None:
        """Hand over."""
        self._made += item.size
        self._items.append(item)
        if self._eager or item.block is None:
            with self._changed:
                self._changed.notify_all()

    def get(self) -> _Item | None:
        """Wait for the next item; returns None when the channel is closed."""
        if not self._items:
            self._tuner.taken(0)
            self._wait()
        if self._closed:
            return None
        self._tuner.taken(self._count())
        item = self._items.popleft()
        self._taken += item.size
        if self._full and self._worth_it():
            with self._changed:
                self._changed.notify_all()
        return item

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait_for(self._enough, PATIENCE)
            self._eager = True
            self._changed.wait_for(lambda: self._closed or self._items)
            self._eager = False

    def _enough(self) -> bool:
        """Return whether no more elements will come before some are taken."""
        ends = bool(self._items) and self._items[-1].block is None
        return self._closed or ends or (self._full and bool(self._items))

    def _count(self) -> int:
        return self._made - self._taken

    def _worth_it(self) -> bool:
        limit = self._tuner.limit
        return self._count() <= (limit // 2 if limit >= _LARGE else limit - 1)

    def level(self) -> tuple[int, int]:
        """Return how many elements there are, and how many may be; any thread."""
        return max(0, self._count()), self._tuner.limit

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


class _PrefetchIterator(NodeIterator):
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
        self._block: Block | None = None
        self._after: State = None  # the input's, behind the block at hand
        self._at = 0
        self._ended = False
        self._finalizer = weakref.finalize(self, self._channel.close)

    def next_block(self, limit: int) -> Block | None:
        if self._thread is None:
            self._start()
        while self._skip:  # returned before the state was taken
            block = self._some(self._skip)
            if block is None:
                return None
            self._skip -= block.count
        return self._some(limit)

    def state(self) -> State:
        return [self._before, self._at + self._skip]

    def level(self) -> tuple[int, int]:
        return self._channel.level()

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

    def _some(self, limit: int) -> Block | None:
        if self._block is None and not self._receive():
            return None
        assert self._block is not None
        start, self._at = self._at, min(self._at + limit, self._block.count)
        part = self._block.part(start, self._at)
        if self._at == self._block.count:
            self._block, self._before, self._at = None, self._after, 0
        return part

    def _receive(self) -> bool:
        """Get the next block; return whether there is one."""
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
