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
from collections.abc import Callable
from typing import Any

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
            if memory is None or self._free_bytes() + capacity > KEPT_BYTES:
                self._bytes -= capacity
            else:
                self._free.setdefault(capacity, []).append(memory)

    def _take(self, capacity: int) -> mmap.mmap | None:
        if free := self._free.get(capacity):
            return free.pop()
        if self._bytes + capacity > MOST_BYTES:
            return None
        try:
            memory = pages(capacity, huge=True)
        except MemoryError:  # the caller gets an error, or less elsewhere
            return None
        self._bytes += capacity
        return memory

    def _free_bytes(self) -> int:
        return sum(capacity * len(each) for capacity, each in self._free.items())


# Memory that a view is given of, and that its owner has back when the view is dropped. Pure.


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


# Memory in pages of its own, which goes back to the operating system when it is not used. Pure.
#
# Memory that is replaced by a little larger memory, again and again, leaves holes in the process's
# heap, and these stay: a hash map of 200 MB left as much behind on its way there.

SMALL = 1 << 20
"""Bytes up to which the heap is good enough."""

_CACHE_LINE = 64


def pages(nbytes: int, *, huge: bool) -> mmap.mmap:
    """Return zeroed memory of this process alone: one that is forked from it has a copy.

    Parameters
    ----------
    nbytes : int
        How much.
    huge : bool
        Whether to ask for huge pages, as numpy does: reads at random take half the time. But the
        system may look for one for a tenth of a second.

    Raises
    ------
    MemoryError
        If there is no such memory.
    """
    try:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"there are no {nbytes} bytes of memory") from error
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a hint, which not every system knows
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def in_pages(shape: tuple[int, ...], dtype: np.dtype, *, huge: bool) -> np.ndarray:
    """Return zeros in `pages`."""
    count = math.prod(shape)
    memory = pages(max(1, count * dtype.itemsize), huge=huge)
    return np.frombuffer(memory, dtype, count).reshape(shape)


def lasting(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array that is not filled, in huge `pages` unless it is small."""
    if math.prod(shape) * dtype.itemsize <= SMALL or not hasattr(mmap, "MAP_PRIVATE"):
        return aligned(shape, dtype)
    return in_pages(shape, dtype, huge=True)


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array that is not filled, from the beginning of a cache line on.

    XLA takes such arrays as they are, and copies those that lie elsewhere.
    """
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)


# The stack of the main thread, which the system extends when it is first written to that depth. If
# the address space is full by then (``ulimit -v``), that kills the process with SIGSEGV, anywhere:
# no allocation fails, so nothing can be refused. Other threads have all of theirs from the start.

_LEVELS = 200
"""Calls of `sorted` within each other; each takes 5 kB of it, most for what it sorts."""


def extend_stack(levels: int = _LEVELS) -> int:
    """Have this thread's stack extended by a megabyte now, for a time without memory."""
    if levels:
        sorted([levels - 1], key=extend_stack)
    return levels
