"""Arrays that begin at a cache line. XLA takes them as they are, and copies what lies elsewhere."""

from __future__ import annotations

import math

import numpy as np

_BYTES = 64


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array that is not filled yet, at a multiple of 64 bytes."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _BYTES, np.uint8)
    start = -memory.ctypes.data % _BYTES
    return memory[start : start + size].view(dtype).reshape(shape)
