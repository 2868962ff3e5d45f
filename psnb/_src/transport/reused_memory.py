"""ReusedMemory: a process's memory for large messages that no shared memory carries.

The system provides each page of new memory when it is first written, which takes longer than to
copy a page into it. So what a message was sent from, or received into, is used for the next one.

Thread-safe. Any thread may drop the last array of a block, which gives it back.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections import deque

import numpy as np

MOST_BYTES = 1 << 27
"""Of one such memory. Larger messages, and those that come while all is taken, get other memory."""


class ReusedMemory:
    """Blocks, made when needed, used again when nothing refers to them any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all but what was dropped; nobody waits who holds it
        self._free: dict[int, list[mmap.mmap]] = {}  # by capacity
        self._bytes = 0
        self._lent: dict[int, mmap.mmap] = {}  # by address
        self._dropped: deque[int] = deque()  # addresses; any thread adds

    def lend(self, size: int) -> memoryview | None:
        """Return memory, which is the caller's until it, and all made of it, is dropped; or None.

        None if there is no room.
        """
        capacity = 1 << (size - 1).bit_length()
        with self._lock:
            self._take_back_dropped()
            memory = self._take(capacity)
            if memory is None:
                return None
            array = np.frombuffer(memory, np.uint8, size)
            address = array.ctypes.data
            self._lent[address] = memory
        weakref.finalize(array, self._dropped.append, address).atexit = False
        # Not the array: NumPy lets arrays that are made of one refer to what is beneath it.
        return memoryview(array)  # type: ignore[arg-type]

    def has_lent(self, buffer: memoryview) -> bool:
        """Return whether a buffer begins where one that was lent does."""
        return np.frombuffer(buffer, np.uint8).ctypes.data in self._lent

    def _take_back_dropped(self) -> None:
        while self._dropped:
            memory = self._lent.pop(self._dropped.popleft())
            self._free.setdefault(len(memory), []).append(memory)

    def _take(self, capacity: int) -> mmap.mmap | None:
        if free := self._free.get(capacity):
            return free.pop()
        if self._bytes + capacity > MOST_BYTES:
            # What is free has other sizes; it goes back to the system.
            self._bytes -= sum(size * len(each) for size, each in self._free.items())
            self._free.clear()
            if self._bytes + capacity > MOST_BYTES:
                return None
        self._bytes += capacity
        memory = mmap.mmap(-1, capacity)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)  # as numpy asks for
        return memory
