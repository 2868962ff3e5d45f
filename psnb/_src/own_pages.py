"""Memory in pages of its own, which goes back to the operating system when it is not used. Pure.

Memory that is replaced by a little larger memory, again and again, leaves holes in the process's
heap, and these stay: a hash map of 200 MB left as much behind on its way there.
"""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

SMALL = 1 << 20
"""Bytes up to which the heap is good enough."""


def zeroed(count: int, dtype: np.dtype) -> np.ndarray:
    """Return so many zeros, writable.

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
