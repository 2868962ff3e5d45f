"""Arrays in pages of their own, which go back to the operating system when they are not used. Pure.

Memory that is replaced by a little larger memory, again and again, leaves holes in the process's
heap, and these stay: a hash map of 200 MB left as much behind on its way there.
"""

from __future__ import annotations

import contextlib
import math
import mmap

import numpy as np

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

    XLA uses such arrays in place, and copies others.
    """
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)
