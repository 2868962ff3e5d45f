"""Awaiting remote values and the coordinator from any event loop, without an extra thread.

A closure that ends calls back under the queue's lock; the callback only wakes the waiting loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

_LOOK_AGAIN = 1.0
"""Seconds between checks whether a closure is held up: there is no callback for that; and between
two calls of what looks after something else while a coroutine waits for all."""

_LOOK_FOR_EFFECT = 0.01
"""Likewise, whether the round of a closure that has ended is applied, which takes milliseconds."""


class Remote(Protocol):
    """What is needed of a remote value here."""

    def done(self) -> bool:
        """Return whether the closure has ended."""

    def fetchable(self) -> bool:
        """Return whether it has had its effect, too, or is held up for an unknown time."""

    def add_callback(self, callback: Callable[[Any], None]) -> bool:
        """Call back when the closure ends; if it has ended, return False and do not call back."""

    def remove_callback(self, callback: Callable[[Any], None]) -> None:
        """Remove a callback."""


class Queue(Protocol):
    """What is needed of a queue here."""

    def add_idle_callback(self, callback: Callable[[], None]) -> None:
        """Call back whenever nothing is left to wait for."""

    def remove_idle_callback(self, callback: Callable[[], None]) -> None:
        """Remove a callback."""

    def done(self) -> bool:
        """Return whether nothing is left to wait for."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until nothing is left to wait for."""


class _Signal:
    """An event of the running loop that any thread may set."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self, *_: object) -> None:
        # A RuntimeError: the loop was closed, and nobody waits in it any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, timeout: float | None = None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._event.wait()
        self._event.clear()


async def until_ended(remote: Remote) -> None:
    """Return when a closure has ended and had its effect, or is held up; may be cancelled."""
    signal = _Signal()
    callback: Callable[[Any], None] = signal.set
    try:
        remote.add_callback(callback)
        while not remote.fetchable():
            await signal.wait(_LOOK_FOR_EFFECT if remote.done() else _LOOK_AGAIN)
    finally:
        remote.remove_callback(callback)


async def join(queue: Queue, timeout: float | None, look: Callable[[], object] = bool) -> None:
    """Do what the queue's `join` does; may be cancelled. Calls ``look`` at once and each second."""
    signal = _Signal()
    callback: Callable[[], None] = signal.set
    queue.add_idle_callback(callback)
    try:
        await _join(queue, signal.wait, timeout, look)
    finally:
        queue.remove_idle_callback(callback)


async def _join(
    queue: Queue,
    wait: Callable[[float], Awaitable[None]],
    timeout: float | None,
    look: Callable[[], object],
) -> None:
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            look()
            while not queue.done():
                await wait(_LOOK_AGAIN)
                look()
    except TimeoutError:
        if not limit.expired():
            raise  # a closure's own
        queue.join(0)  # raises, saying what goes on; or returns, if all has just ended
