"""A few threads that do what they are given.

Threads: they know only the queue, so that whoever made them can be collected, and ends them then.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

_Job = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]
_numbers = itertools.count()


class Workers:
    """Runs calls in threads of its own, which end with it."""

    def __init__(self, count: int, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        number = next(_numbers)
        self._threads = [
            threading.Thread(
                target=_work, args=(self._jobs,), name=f"psnb-{name}-{number}-{i}", daemon=True
            )
            for i in range(count)
        ]
        for thread in self._threads:
            thread.start()
        self._finalizer = weakref.finalize(self, _end, self._jobs, count)

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Have a call made as soon as a thread is free."""
        future: Future[Any] = Future()
        self._jobs.put((future, function, args))
        return future

    def close(self) -> None:
        """End the threads, after what they were given; does not wait for them."""
        self._finalizer()


def _end(jobs: SimpleQueue[_Job | None], count: int) -> None:
    for _ in range(count):
        jobs.put(None)


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        future, function, args = job
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(function(*args))
        except BaseException as error:  # whoever waits for it raises it
            future.set_exception(error)
        del job, future, args  # not kept while waiting for the next one
