"""What a process that serves gets before it is short of memory: threads, and their stacks. Pure.

It cannot count on a new thread then. To start one raises, or never returns: `Thread.start` waits
until the new thread says that it runs, and one that has no memory to say so ends silently. On
an event loop that would be the end of all that it serves.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")


class StandbyThreads(Executor):
    """As many threads as are said, which run what is submitted, in that order; any thread may.

    They are daemons: one that waits for a disk that does not answer must not keep the process.

    Parameters
    ----------
    name : str
        Of the threads, which get a number.
    count : int
        How many there are; work waits while all are busy.
    """

    def __init__(self, name: str, count: int) -> None:
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
        self._work, self._count = queue.SimpleQueue(), count
        for number in range(count):
            thread = threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True)
            thread.start()

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self._work.put((future, partial(function, *args, **kwargs)))
        return future

    def share(self, function: Callable[[Item], T], items: Sequence[Item]) -> list[T]:
        """Return the results of a function for all items; the caller takes part.

        So it needs none of the threads, and is done soonest if some have nothing else to do.
        """
        futures = [self.submit(function, item) for item in items]
        found: dict[int, T] = {}
        try:
            # From the end, to meet the threads on their way from the beginning.
            for at in reversed(range(len(items))):
                if futures[at].cancel():
                    found[at] = function(items[at])
            return [
                found[at] if at in found else future.result() for at, future in enumerate(futures)
            ]
        finally:
            for future in futures:
                future.cancel()

    def end(self) -> None:
        """End the threads when all is done that was submitted before."""
        for _ in range(self._count):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            _give(*work)
            del work  # not held while waiting for the next


def _give(future: Future[T], function: Callable[[], T]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(function())
        except BaseException as error:  # the submitter gets it
            future.set_exception(error)
            del future  # the error refers to this frame, and would keep itself alive


_LEVELS = 200
"""Calls of `sorted` within each other; each takes 5 kB of it, most for what it sorts."""


def extend_stack(levels: int = _LEVELS) -> int:
    """Have this thread's stack extended by a megabyte now; on the main thread.

    The system extends it when it is first written to that depth. If the address space is full by
    then (``ulimit -v``), that kills the process with SIGSEGV, anywhere: no allocation fails, so
    nothing can be refused. Other threads have all of theirs from the start.
    """
    if levels:
        sorted([levels - 1], key=extend_stack)
    return levels
