"""BufferPool: a process's memory for large messages that no shared memory carries.

The system provides each page of new memory when it is first written, which takes longer than to
copy a page into it. So what a message was sent from, or received into, is used for the next one.
Very large blocks are not kept: who sends one once, as a first value, would have a process hold it.

Thread-safe. Any thread may drop the last array of a block, which gives it back.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import threading
import weakref
from collections import deque

import numpy as np

MOST_BYTES = 1 << 27
"""Of one such memory. Larger messages, and those that come while all is taken, get other memory."""

KEPT_BYTES = 1 << 26
"""Of them, what is kept while it is not used."""

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
        array = np.frombuffer(memory, np.uint8, size)
        address = array.ctypes.data
        self._allocated[address] = memory
        weakref.finalize(array, self._drop, address).atexit = False
        # Not the array: NumPy lets arrays that are made of one refer to what is beneath it.
        return memoryview(array)  # type: ignore[arg-type]

    def has_allocated(self, buffer: memoryview) -> bool:
        """Return whether a buffer begins where one that was lent does."""
        return np.frombuffer(buffer, np.uint8).ctypes.data in self._allocated

    def _drop(self, address: int) -> None:
        memory = self._allocated.pop(address)
        capacity = len(memory)
        self._dropped.append((capacity, memory if capacity <= _LARGEST else None))

    def _take_back_dropped(self) -> None:
        while self._dropped:
            capacity, memory = self._dropped.popleft()
            if memory is None or self._free_bytes() + capacity > KEPT_BYTES:
                self._bytes -= capacity
            else:
                self._free.setdefault(capacity, []).append(memory)

    def _take(self, capacity: int) -> mmap.mmap | None:
        if free := self._free.get(capacity):
            return free.pop()
        if self._bytes + capacity > MOST_BYTES:
            return None
        # Private: a process that is forked from this one must not write to its messages.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        try:
            memory = mmap.mmap(-1, capacity, flags=private)
        except OSError:  # no memory: the caller gets an error, or less elsewhere
            return None
        self._bytes += capacity
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a hint, which not every system knows
                memory.madvise(mmap.MADV_HUGEPAGE)  # as numpy asks for
        return memory

    def _free_bytes(self) -> int:
        return sum(capacity * len(each) for capacity, each in self._free.items())


# Memory in pages of its own, which goes back to the operating system when it is not used. Pure.
#
# Memory that is replaced by a little larger memory, again and again, leaves holes in the process's
# heap, and these stay: a hash map of 200 MB left as much behind on its way there.

SMALL = 1 << 20
"""Bytes up to which the heap is good enough."""


def mmap_zeros(count: int, dtype: np.dtype) -> np.ndarray:
    """Return ``count`` zeros, writable.

    Raises
    ------
    MemoryError
        If there is no such memory.
    """
    size = count * dtype.itemsize
    if size <= SMALL or not hasattr(mmap, "MAP_PRIVATE"):
        return np.zeros(count, dtype)
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"there are no {size} bytes of memory") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # As numpy asks for: reads at random take half the time. A hint, which not all systems know.
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype, count)


# Arrays that begin at a cache line. XLA takes them as they are, and copies what lies elsewhere.

_BYTES = 64


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array that is not filled yet, at a multiple of 64 bytes."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _BYTES, np.uint8)
    start = -memory.ctypes.data % _BYTES
    return memory[start : start + size].view(dtype).reshape(shape)
