"""A small pool of threads.

Threads: they refer only to the queue and to the condition that they share with the caller. So their
owner can be garbage-collected, which ends them.
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
