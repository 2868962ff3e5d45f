"""Answer: a value that one thread gives and another one waits for, once. Pure.

It replaces `concurrent.futures.Future`: an interrupt of the waiting thread may leave the lock of
one locked, and the thread that gives the answer, usually an event loop, would wait for ever. Here
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
    """A value that one thread gives, which may be any, and one thread waits for."""

    def __init__(self) -> None:
        self._ended = allocate_lock()  # locked until it is given; the waiting thread sleeps on it
        self._ended.acquire()
        self._done = False
        self._value: T | None = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Return whether `result` would return or raise at once."""
        return self._done

    def give(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> None:
        """Give the result of a function, or the exception that it raises."""
        try:
            self.set_result(function(*args, **kwargs))
        except BaseException as error:  # `result` raises it
            self.set_exception(error)
            del self  # the error refers to this frame, and would keep itself alive

    def set_result(self, value: T) -> None:
        """Give the value; no effect when it is done."""
        if not self._done:
            self._value = value
            self._end()

    def set_exception(self, error: BaseException) -> None:
        """Give an error instead; no effect when it is done."""
        if not self._done:
            self._error = error
            self._end()

    def cancel(self) -> None:
        """Give `CancelledError`, as nobody waits any more; no effect when it is done."""
        self.set_exception(CancelledError("nobody waits for the answer any more"))

    def result(self, timeout: float | None = None) -> T:
        """Wait for the value; an interrupt ends the waiting.

        Raises
        ------
        TimeoutError
            If it is not there within ``timeout`` seconds.
        BaseException
            The error that was given instead.
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
