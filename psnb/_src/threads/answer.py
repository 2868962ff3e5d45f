"""Answer: what one thread waits for and another one gives, once. Pure.

In place of `concurrent.futures.Future`, whose lock an interrupt of the waiting thread may leave
with nobody: whoever gives the answer, an event loop as a rule, would wait for it for ever. Here
that thread only stores a value and releases a lock, and never waits.
"""

from __future__ import annotations

import time
from _thread import allocate_lock
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar, cast

from psnb._src.threads.interrupts import uninterrupted, wake
from psnb.errors import CancelledError

P = ParamSpec("P")
T = TypeVar("T")


class Answer(Generic[T]):
    """Given by one thread, which may be any; waited for by one."""

    def __init__(self) -> None:
        self._ended = allocate_lock()  # held until it is given; who waits sleeps on it
        self._ended.acquire()
        self._done = False
        self._value: T | None = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Return whether `result` would return or raise at once."""
        return self._done

    def give(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> None:
        """Give what a function returns or raises."""
        try:
            self.set_result(function(*args, **kwargs))
        except BaseException as error:  # whoever waits for it raises it
            self.set_exception(error)
            del self  # the error knows this frame, and would keep itself

    def set_result(self, value: T) -> None:
        """Give it; of no effect when it is done."""
        if not self._done:
            self._value = value
            self._end()

    def set_exception(self, error: BaseException) -> None:
        """Give an error for an answer, likewise."""
        if not self._done:
            self._error = error
            self._end()

    def cancel(self) -> None:
        """Want it no more, likewise."""
        self.set_exception(CancelledError("nobody waits for the answer any more"))

    def result(self, timeout: float | None = None) -> T:
        """Wait for it; an interrupt ends the waiting.

        Raises
        ------
        TimeoutError
            If it is not there within ``timeout`` seconds.
        BaseException
            What was given in its place.
        """
        end = None if timeout is None else time.monotonic() + timeout
        with uninterrupted:
            while not self._done:
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"no answer within {timeout:g} s")
                uninterrupted.sleep(self._ended, left)
        try:
            if self._error is not None:
                raise self._error
            return cast(T, self._value)
        finally:
            del self  # as above

    def _end(self) -> None:
        self._done = True
        wake(self._ended)
