"""Lock and Condition: for what the main thread shares with others, above all with an event loop.

They are like those of `threading`, but their blocks are sections (`psnb._src.threads.interrupts`):
no interrupt leaves a lock locked, or what it guards half changed. Use `Condition` in place of
`threading.Condition` wherever the main thread may wait, and `Lock` in place of `threading.Lock`
where the main thread meets an event loop, or where half an update would do harm. Pure.
"""

from __future__ import annotations

import time
from _thread import LockType, allocate_lock, get_ident
from collections import deque
from collections.abc import Callable

from psnb._src.threads.interrupts import uninterrupted, wake


class Lock:
    """A lock for short blocks: ``with lock:``. Not re-entrant."""

    __slots__ = ("_mutex",)

    def __init__(self) -> None:
        self._mutex = allocate_lock()

    def __enter__(self) -> None:
        if get_ident() == uninterrupted.main:
            uninterrupted.begin()
            self._mutex.acquire()
            uninterrupted.locks += 1
        else:
            self._mutex.acquire()

    def __exit__(self, *exc_info: object) -> None:
        if get_ident() == uninterrupted.main:
            uninterrupted.locks -= 1
            self._mutex.release()
            uninterrupted.end()
        else:
            self._mutex.release()


class Condition(Lock):
    """A lock, and waiting until others have changed what it guards.

    Parameters
    ----------
    lock : Lock, optional
        Shared with other conditions; its own if left out.
    """

    __slots__ = ("_waiters",)

    def __init__(self, lock: Lock | None = None) -> None:
        self._mutex = allocate_lock() if lock is None else lock._mutex
        self._waiters: deque[LockType] = deque()  # each is released once, by whichever removes it

    def wait(self, timeout: float | None = None) -> None:
        """Release the lock until `notify`, or for a shorter time, and take it again.

        An interrupt strikes here, while this thread does not hold the lock; a `notify` is not lost
        by that, but wakes another thread.
        """
        waiter = allocate_lock()
        waiter.acquire()
        self._waiters.append(waiter)
        main = get_ident() == uninterrupted.main
        if main:
            uninterrupted.locks -= 1
        self._mutex.release()
        struck = True
        try:
            uninterrupted.sleep(waiter, timeout)
            struck = False
        finally:
            self._mutex.acquire()
            if main:
                uninterrupted.locks += 1
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif struck:
                self.notify()

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> bool:
        """Wait until ``predicate`` holds; return whether it does: it is False after a timeout."""
        end = None if timeout is None else time.monotonic() + timeout
        while not predicate():
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            self.wait(left)
        return True

    def notify(self, count: int = 1) -> None:
        """Wake ``count`` waiting threads, the longest waiting first; under the lock."""
        while count > 0 and self._waiters:
            wake(self._waiters.popleft())
            count -= 1

    def notify_all(self) -> None:
        """Wake all waiting threads; under the lock."""
        self.notify(len(self._waiters))
