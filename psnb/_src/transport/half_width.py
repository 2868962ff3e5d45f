"""bfloat16 and float16: arrays of half width, which are computed with in float32. Pure.

numba knows no arrays of bfloat16, and cannot compute with float16. Its loops see a view of *codes*:
uint16 stands for bfloat16, int16 for float16.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

BFLOAT16, FLOAT16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)

HALF_WIDTH = (BFLOAT16, FLOAT16)
"""The dtypes of two bytes."""

_CODES = {BFLOAT16: np.dtype(np.uint16), FLOAT16: np.dtype(np.int16)}
_DTYPES = {codes: dtype for dtype, codes in _CODES.items()}
_FLOAT32 = np.dtype(np.float32)


def computed(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which numbers of this one are computed with, looked up and pushed."""
    return _FLOAT32 if dtype in _CODES else dtype


def code_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype that stands for one in compiled loops."""
    return _CODES.get(dtype, dtype)


def codes(array: np.ndarray) -> np.ndarray:
    """Return a view of an array for compiled loops."""
    return array.view(code_dtype(array.dtype))


def widened(array: np.ndarray) -> np.ndarray:
    """Return stored numbers, or their codes, in the dtype for computing: a copy only if it must.

    A shift takes a third of the time of ``astype``.
    """
    dtype = _DTYPES.get(array.dtype, array.dtype)
    if dtype == BFLOAT16:
        bits = array.view(np.uint16).astype(np.uint32)
        bits <<= np.uint32(16)
        return bits.view(np.float32)
    return array.view(FLOAT16).astype(np.float32) if dtype == FLOAT16 else array


def rounded(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return computed numbers as they are stored, rounded to the nearest."""
    with np.errstate(over="ignore"):  # beyond the range of float16 they are infinite
        return array.astype(dtype, copy=False)
