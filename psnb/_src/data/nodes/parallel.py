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
from typing import Any

from psnb._src.data.block import Block
from psnb._src.data.node import Context, State
from psnb._src.data.reader import SingleInputIterator
from psnb._src.utils.interrupts import Condition, uninterrupted
from psnb._src.utils.range_set import RangeSet
from psnb._src.utils.threads import Answer
from psnb.errors import DatasetError

_Job = tuple[Answer[Any], Callable[..., Any], tuple[Any, ...]]
_numbers = itertools.count()


class Workers:
    """Runs calls in its own threads.

    These refer only to the queue and to the condition that they share with the caller: so this can
    be garbage-collected, which ends them.
    """

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

    def join(self) -> None:
        """Wait for the end of the threads, after `close`."""
        for thread in self._threads:
            thread.join()


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
"""Including blocks that were returned before an older one."""


@dataclass
class _PendingCall:
    """A block in progress, from being read until all of it was returned."""

    before: State  # the reader's, before it
    begin: int  # the number of its first element
    end: int
    answer: Answer[Block]
    done: bool = False  # all of it was returned


class ParallelMapIterator(SingleInputIterator[Any]):
    """Keeps as many calls going as there are threads.

    The state is the reader's before the oldest element that was not returned yet, and which later
    ones were returned. So after resuming, the function is called again for up to as many elements
    as there are threads.
    """

    def __init__(self, node: Any, context: Context, state: State) -> None:
        before, done = (None, []) if state is None else state
        super().__init__(node, context, before)
        chosen, options = node.deterministic, context.options
        self._ordered = options.deterministic if chosen is None else chosen
        self._threads = options.parallelism(node.num_parallel_calls)
        self._returned = RangeSet([bound for each in done for bound in each])  # by number
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
        job = self._jobs[0]
        if not self._ordered:
            waiting = [each for each in self._jobs if not each.done]
            self._workers.wait_for_one([each.answer for each in waiting])
            job = next(each for each in waiting if each.answer.done())
        try:
            block = job.answer.result()
        except DatasetError:
            self._note_returned(job, job.begin, job.end)
            raise
        start, stop = self._returned.gap(job.begin, job.end)
        stop = min(stop, start + limit)
        self._note_returned(job, start, stop)
        return block.part(start - job.begin, stop - job.begin)

    def state(self) -> State:
        """Return the position of the oldest element not returned, and which later ones were."""
        if self._jobs:
            before = self._jobs[0].before
        else:
            before = self._failed[1] if self._failed is not None else self._reader.state()
        at = before[0]
        done = [[max(at, each.start), each.stop] for each in self._returned if each.stop > at]
        return [before, done]

    def level(self) -> tuple[int, int]:
        """Return how many results are ready, and how many calls there may be."""
        return sum(job.answer.done() for job in tuple(self._jobs)), self._threads

    def close(self) -> None:
        """End the threads and close the input."""
        for job in self._jobs:
            job.answer.cancel()
        if self._workers is not None:
            self._workers.close()
        super().close()

    def _fill(self, workers: Workers) -> None:
        unit = self._node.source.ahead if self._node.batched else 1
        # Finished jobs that wait for an older one do not count.
        while (
            sum(not job.done for job in self._jobs) < self._threads
            and len(self._jobs) < _MOST_JOBS
            and not self._ended
            and self._failed is None
        ):
            before = self._reader.state()
            try:
                block = self._reader.take(unit)
            except DatasetError as error:
                self._failed = error, before
                return
            if block is None:
                self._ended = True
                return
            end = self._reader.position
            job = _PendingCall(before, end - block.count, end, Answer())
            start, stop = self._returned.gap(job.begin, end)
            if start < stop:  # not returned before the state was taken
                job.answer = workers.submit(self._node.apply, block, job.begin)
                self._jobs.append(job)

    def _note_returned(self, job: _PendingCall, start: int, stop: int) -> None:
        self._returned.add(start, stop)
        start, stop = self._returned.gap(job.begin, job.end)
        job.done = start == stop
        while self._jobs and self._jobs[0].done:
            self._jobs.popleft()
