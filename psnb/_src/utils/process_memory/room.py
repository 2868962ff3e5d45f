"""MemoryRoom: whether a process may take more memory, asked before it takes any. Pure.

The system promises memory that it does not have, and ends a process that uses it. So one with
parameters asks here first, and refuses what would bring it near a limit (`MemoryLimits`). Some of
what is left it keeps: for what is too small to ask for, and for what comes and goes, such as
messages, which may take half of that.

Measured is once for a sixteenth of what is left, as a server and its neighbours take it, not for
each request. What is measured lacks memory that is promised but not written yet: the process says
how much that is.

Thread-safe.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from psnb._src.utils.interrupts import Lock
from psnb._src.utils.process_memory.limits import MemoryLimits, MemoryUse

LEAST_KEPT, MOST_KEPT = 32 << 20, 256 << 20
"""Bytes that are kept of what is left: a sixteenth of the limit, within these bounds."""

SMALL = 1 << 20
"""Bytes below which nothing asks that comes and goes."""

_PART = 16
_TRIM_EVERY = 1.0
_FRESH = 1.0


def give_back() -> None:
    """Have the heap give back what it keeps of freed memory, if it is that of glibc."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def kept(limit: int) -> int:
    """Return how much of a limit is kept for messages."""
    return min(MOST_KEPT, max(LEAST_KEPT, limit // _PART))


class MemoryRoom:
    """What a process may still take; anything, unless it is `watched`.

    Parameters
    ----------
    trim : callable
        Called before something is refused, once a second at most.
    clock : callable
        Returns seconds.
    """

    def __init__(
        self, trim: Callable[[], None] = give_back, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._trim, self._clock = trim, clock
        self._lock = Lock()  # guards all below
        self._limits: MemoryLimits | None = None
        self._watching = 0
        self._promised: Callable[[], int] = int
        self._free = 0  # bytes that may be taken before it is measured again
        self._passing = False  # what lasts may have what is kept
        self._trimmed = self._measured = -math.inf
        self._latest: MemoryUse | None = None

    def watch(self, limits: MemoryLimits, promised: Callable[[], int]) -> None:
        """Keep the process within limits until `end` was called as often.

        Parameters
        ----------
        limits : MemoryLimits
            Its limits; those of the latest call count.
        promised : callable
            Returns the bytes that are promised, and not written yet.
        """
        with self._lock:
            self._limits, self._promised = limits, promised
            self._watching, self._free, self._measured = self._watching + 1, 0, -math.inf

    def end(self) -> None:
        """Undo one call of `watch`."""
        with self._lock:
            self._watching -= 1
            if not self._watching:
                self._limits, self._latest = None, None

    def lacks(self, nbytes: int, *, lasts: bool) -> MemoryUse | None:
        """Return the limit that would be too near with so many bytes more; None if they may be had.

        Parameters
        ----------
        nbytes : int
            How many, which are taken at once if there is room.
        lasts : bool
            Whether they stay. What comes and goes, such as a message, may have half of what is
            kept.
        """
        if self._limits is None:
            return None
        passes = self._passing or not lasts
        if passes and nbytes < SMALL:
            return None
        with self._lock:
            if nbytes <= self._free:
                self._free -= nbytes
                return None
            found = self._lacking(nbytes, passes)
            now = self._clock()
            if found is not None and now - self._trimmed >= _TRIM_EVERY:
                self._trimmed = now
                self._trim()
                found = self._lacking(nbytes, passes)
            return found

    @contextmanager
    def for_a_moment(self) -> Iterator[None]:
        """In this block, what lasts counts as what comes and goes: it soon frees as much."""
        before, self._passing = self._passing, True
        try:
            yield
        finally:
            self._passing = before

    def use(self) -> MemoryUse | None:
        """Return the limit of which least is left, as of the last second; None if not watched."""
        with self._lock:
            if self._limits is not None and self._clock() - self._measured >= _FRESH:
                self._measure(self._limits)
            return self._latest

    def _measure(self, limits: MemoryLimits) -> list[MemoryUse]:
        try:
            found = limits.measure()
        except OSError:  # too many open files, for example: then nothing is refused
            found = []
        self._measured = self._clock()
        self._latest = min(found, key=lambda each: each.left, default=None)
        return [each for each in found if each.kills]

    def _lacking(self, nbytes: int, passes: bool) -> MemoryUse | None:
        if self._limits is None:
            return None
        rooms = {each.left - kept(each.total): each for each in self._measure(self._limits)}
        if not rooms:
            return None
        least = min(rooms)
        nearest, room = rooms[least], least - self._promised()
        self._free = max(0, room // _PART)
        if nbytes > room + (kept(nearest.total) // 2 if passes else 0):
            return nearest
        self._free = max(0, self._free - nbytes)
        return None


room = MemoryRoom()
"""Of this process; `psnb._src.server.serving` has it watched while there are servers."""
