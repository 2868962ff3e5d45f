"""How a thread waits for another thread, or for an event loop, so that no interrupt breaks it.

The stop button ends the waiting immediately. Dask's own ``client.sync`` and futures wait in Python
code, where an interrupt may leave a lock locked for ever; the event loop would then wait for it. An
`Answer` replaces `concurrent.futures.Future` for the same reason: the thread that gives it, usually
an event loop, only stores a value and releases a lock, and never waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from _thread import allocate_lock
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar, cast

from psnb._src.utils.interrupts import uninterrupted, wake
from psnb.errors import ClosureCancelledError

P = ParamSpec("P")
T = TypeVar("T")


class Answer(Generic[T]):
    """A one-shot future: any thread may complete it, one waits, and no interrupt loses it."""

    def __init__(self) -> None:
        self.ended = allocate_lock()  # locked until it is given; the waiting thread sleeps on it
        self.ended.acquire()
        self._done = False
        self._value: T | None = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Return whether `result` would return or raise immediately."""
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

    def pass_on(self, function: Callable[[T], object]) -> None:
        """Call a function with the value, if one was given."""
        if self._done and self._error is None:
            function(cast(T, self._value))

    def cancel(self) -> None:
        """Give `ClosureCancelledError`: it is not waited for any more. No effect when done."""
        self.set_exception(ClosureCancelledError("the answer is not waited for any more"))

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
                uninterrupted.sleep(self.ended, left)
        try:
            if self._error is not None:
                raise self._error
            return cast(T, self._value)
        finally:
            del self  # as above

    def _end(self) -> None:
        self._done = True
        wake(self.ended)


def run_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that waits in its own way; if this is the main thread, on another thread.

    It runs to its end, even if an interrupt ends the waiting.
    """
    if threading.get_ident() != uninterrupted.main:
        return function(*args, **kwargs)
    answer: Answer[T] = Answer()
    run = partial(answer.give, function, *args, **kwargs)
    try:
        with uninterrupted:
            threading.Thread(target=run, name="psnb-aside", daemon=True).start()
        return answer.result()
    finally:
        del answer, run  # an error that is raised refers to this frame, and would keep itself alive


def runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether this is the thread of an event loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False  # no loop runs in this thread


def run_on_loop(
    loop: asyncio.AbstractEventLoop,
    function: Callable[[], Awaitable[T]],
    timeout: float | None = None,
    *,
    goes_on: bool = False,
) -> T:
    """Call a coroutine function on the event loop of another thread, and wait for its end.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
        The event loop; it must be running.
    function : callable
        Returns what to await; called on the loop.
    timeout : float, optional
        Seconds to wait at most. None: the coroutine has time limits of its own.
    goes_on : bool
        Whether it runs to its end even if it is not waited for any more; else it is cancelled.

    Raises
    ------
    TimeoutError
        If it takes longer.
    RuntimeError
        If the loop is closed, or this is its thread.
    Exception
        What the coroutine raised.
    """
    if runs_here(loop):
        raise RuntimeError("an event loop cannot wait for itself: call from another thread")
    answer: Answer[T] = Answer()
    tasks: list[asyncio.Task[None]] = []
    with uninterrupted:
        loop.call_soon_threadsafe(_begin, loop, function, answer, tasks)
        try:
            return answer.result(timeout)
        except BaseException:  # an interrupt, or no time left
            if not goes_on and not answer.done():
                with contextlib.suppress(RuntimeError):  # the loop is closed, and all has ended
                    loop.call_soon_threadsafe(_cancel, tasks)
            raise
        finally:
            del answer  # as above


def _begin(
    loop: asyncio.AbstractEventLoop,
    function: Callable[[], Awaitable[T]],
    answer: Answer[T],
    tasks: list[asyncio.Task[None]],
) -> None:
    tasks.append(loop.create_task(_give(function, answer), name="psnb request of a thread"))


def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()


async def _give(function: Callable[[], Awaitable[T]], answer: Answer[T]) -> None:
    try:
        answer.set_result(await function())
    except BaseException as error:  # a cancellation, too: the other thread waits
        answer.set_exception(error)
        del answer  # as above
        if not isinstance(error, Exception):
            raise  # the loop's own affair, too


def start_task(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]], name: str) -> None:
    """Begin a task whose end nobody awaits, unless no event loop runs any more in this thread."""
    try:
        task = asyncio.get_running_loop().create_task(work, name=name)
    except RuntimeError:
        work.close()
        return
    tasks.add(task)
    task.add_done_callback(tasks.discard)
