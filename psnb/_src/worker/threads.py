"""ClosureThreads: the threads of a session that run its closures.

Threads: ``psnb-closure`` threads run what is put, in the order in which it came. The rest belongs
to the event loop.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager


class ClosureThreads:
    """As many threads as are wanted at the moment, with one line of work.

    Parameters
    ----------
    closed : callable
        Whether the session is over: what is put then is dropped.
    being : callable
        Returns the context in which each thread works.
    """

    def __init__(
        self, closed: Callable[[], bool], being: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._closed, self._being = closed, being
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._count = 0
        self._threads: list[threading.Thread] = []

    def use(self, count: int) -> None:
        """Have ``count`` threads; those beyond it end when the work before is taken.

        Without memory for one more it raises, and there are as many as before.
        """
        self._threads = [each for each in self._threads if each.is_alive()]
        before = self._count
        try:
            for _ in range(before, count):
                name = f"psnb-closure-{next(self._numbers)}"
                thread = threading.Thread(target=self._loop, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
                self._count += 1
        except (RuntimeError, MemoryError):
            self.use(before)
            raise
        for _ in range(count, self._count):
            self._work.put(None)
        self._count = count

    def put(self, work: Callable[[], None]) -> None:
        """Have one of the threads do work."""
        self._work.put(work)

    def idents(self) -> list[int | None]:
        """Return the identifiers of the threads."""
        return [thread.ident for thread in self._threads]

    def _loop(self) -> None:
        with self._being():
            while (work := self._work.get()) is not None:
                if not self._closed():
                    work()
                del work  # not held while waiting for the next
