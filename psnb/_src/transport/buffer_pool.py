"""BufferPool: a process's memory for large messages that no shared memory carries.

The system provides each page of new memory when it is first written, which takes longer than to
copy a page into it. So what a message was sent from, or received into, is used for the next one.
Very large blocks are not kept: a process that sends one once, as a first value, would hold it.

Thread-safe. Any thread may drop the last array of a block, which gives it back.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from psnb._src.utils.memory import pages
from psnb._src.utils.process_memory.room import room

MOST_BYTES = 1 << 27
"""Of a pool. Larger messages, and messages while all is taken, get other memory."""

KEPT_BYTES = 1 << 26
"""How much of it is kept while it is not used."""

_LARGEST = 1 << 24
"""Bytes of the largest block that is used again."""


class BufferPool:
    """Blocks, made when needed, used again when nothing refers to them any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards `_free` and `_bytes`; no wait while it is held
        self._free: dict[int, list[mmap.mmap]] = {}  # by capacity
        self._bytes = 0  # of all blocks
        self._allocated: dict[int, mmap.mmap] = {}  # by address; its operations are atomic
        self._dropped: deque[tuple[int, mmap.mmap | None]] = deque()  # any thread adds

    def allocate(self, size: int) -> memoryview | None:
        """Return memory, which is the caller's until it, and all made of it, is dropped; or None.

        None if there is no room.
        """
        capacity = 1 << (size - 1).bit_length() if size <= _LARGEST else size
        with self._lock:
            self._take_back_dropped()
            memory = self._take(capacity)
        if memory is None:
            return None
        address = address_of(memory)
        self._allocated[address] = memory
        return lend(memory, size, self._drop, address)

    def has_allocated(self, buffer: memoryview) -> bool:
        """Return whether a buffer begins where one that was lent does."""
        return address_of(buffer) in self._allocated

    def _drop(self, address: int) -> None:
        memory = self._allocated.pop(address)
        capacity = len(memory)
        self._dropped.append((capacity, memory if capacity <= _LARGEST else None))

    def _take_back_dropped(self) -> None:
        while self._dropped:
            capacity, memory = self._dropped.popleft()
            free = sum(size * len(each) for size, each in self._free.items())
            if memory is None or free + capacity > KEPT_BYTES:
                self._bytes -= capacity
            else:
                self._free.setdefault(capacity, []).append(memory)

    def _take(self, capacity: int) -> mmap.mmap | None:
        if free := self._free.get(capacity):
            return free.pop()
        if self._bytes + capacity > MOST_BYTES:
            return None
        try:
            if room.lacks(capacity, lasts=False):
                return None
            memory = pages(capacity, huge=True)
        except MemoryError:  # the caller gets an error, or less elsewhere
            return None
        self._bytes += capacity
        return memory


def lend(memory: mmap.mmap, size: int, dropped: Callable[..., object], *what: Any) -> memoryview:
    """Return the first bytes of memory, writable.

    ``dropped(*what)`` is called when the view, and all that is made of it, is dropped, in any
    thread.
    """
    array = np.frombuffer(memory, np.uint8, size)
    weakref.finalize(array, dropped, *what).atexit = False
    # Not the array: NumPy lets arrays that are made of one refer to what is beneath it.
    return memoryview(array)  # type: ignore[arg-type]


def address_of(buffer: memoryview | mmap.mmap) -> int:
    """Return where a buffer begins."""
    return np.frombuffer(buffer, np.uint8).ctypes.data
