"""Memory for the rows of tables, straight from the system. Pure."""

from __future__ import annotations

import contextlib
import math
import mmap

import numpy as np

_LARGE = 1 << 22
"""Bytes from which on numpy, too, asks for huge pages."""


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array of no particular contents; what is never written takes no memory.

    Not so what `numpy.empty` returns: malloc gives out again what was written before, up to 64 MB
    (see `psnb.local`), and room that a table keeps for its growth would be there in full.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):  # small, or not on Linux
        return np.empty(shape, dtype)
    memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)  # random rows are found in two thirds of the time
    return np.frombuffer(memory, dtype).reshape(shape)
