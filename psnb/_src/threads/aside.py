"""Waiting for code that runs on another thread or an event loop, where no interrupt can break it.

The stop button ends the waiting, at once. Dask's own ``client.sync`` and futures wait in Python
code, where an interrupt may leave a lock locked for ever (`psnb._src.threads.interrupts`); the
event loop would then wait for that lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import ParamSpec, TypeVar

from psnb._src.threads.answer import Answer
from psnb._src.threads.interrupts import uninterrupted

P = ParamSpec("P")
T = TypeVar("T")


def aside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
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


def on_loop(
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
        Whether it runs to its end even if nobody waits any more; else it is cancelled.

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
        except BaseException:
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
    except BaseException as error:
        answer.set_exception(error)
        del answer  # as above
        if not isinstance(error, Exception):
            raise  # the loop's own affair, too
