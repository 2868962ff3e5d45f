"""Awaiting remote values and the coordinator from any event loop, without a thread for it.

Whatever ends calls back under the queue's lock; the callback only tells the waiting loop to look.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

_LOOK_AGAIN = 1.0
"""Seconds after which to look whether something holds a closure up: nobody calls back for that."""


class Remote(Protocol):
    """What is asked of a remote value."""

    def ended_or_held_up(self) -> bool:
        """Return whether there is nothing to wait for, or nobody knows for how long."""

    def add_callback(self, callback: Callable[[Any], None]) -> bool:
        """Call back at the end; return False, and do not, if that is past."""

    def remove_callback(self, callback: Callable[[Any], None]) -> None:
        """Undo it."""


class Queue(Protocol):
    """What is asked of a queue."""

    def add_idle_callback(self, callback: Callable[[], None]) -> None:
        """Call back whenever nothing is left to wait for."""

    def remove_idle_callback(self, callback: Callable[[], None]) -> None:
        """Undo it."""

    def done(self) -> bool:
        """Return whether nothing is left to wait for."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until nothing is."""


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
    """Return when a closure has ended, or something holds it up; may be cancelled."""
    signal = _Signal()
    callback: Callable[[Any], None] = signal.set
    if remote.add_callback(callback):
        try:
            while not remote.ended_or_held_up():
                await signal.wait(_LOOK_AGAIN)
        finally:
            remote.remove_callback(callback)


async def join(queue: Queue, timeout: float | None) -> None:
    """Do what the queue's `join` does; may be cancelled."""
    signal = _Signal()
    callback: Callable[[], None] = signal.set
    queue.add_idle_callback(callback)
    try:
        await _join(queue, signal.wait, timeout)
    finally:
        queue.remove_idle_callback(callback)


async def _join(queue: Queue, wait: Callable[[], Awaitable[None]], timeout: float | None) -> None:
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            while not queue.done():
                await wait()
    except TimeoutError:
        if not limit.expired():
            raise  # a closure's own
        queue.join(0)  # says what goes on, or that it has just ended
