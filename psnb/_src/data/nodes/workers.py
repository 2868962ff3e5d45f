"""A few threads that do what they are given.

Threads: they know only the queue, and the condition that they meet the caller in. So whoever made
them can be collected, and ends them then.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Collection
from queue import SimpleQueue
from typing import Any

from psnb._src.threads import Answer, Condition, uninterrupted

_Job = tuple[Answer[Any], Callable[..., Any], tuple[Any, ...]]
_numbers = itertools.count()


class Workers:
    """Runs calls in threads of its own, which end with it."""

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
        """Have a call made as soon as a thread is free."""
        answer: Answer[Any] = Answer()
        self._jobs.put((answer, function, args))
        return answer

    def wait_for_one(self, answers: Collection[Answer[Any]]) -> None:
        """Wait until one of several calls has ended."""
        with self._ended:
            self._ended.wait_for(lambda: any(answer.done() for answer in answers))

    def close(self) -> None:
        """End the threads, after what they were given; does not wait for them."""
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
