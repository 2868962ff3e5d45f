"""Arrays of Python's lists, in which no 64-bit integer becomes a float. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

_INEXACT = 2.0**53
"""From here on, float64 does not hold every integer."""


def array_of(value: Any) -> np.ndarray:
    """Return what `numpy.asarray` does, except that integers stay such.

    NumPy makes float64 of a list that has integers on both sides of 2**63, or NumPy's own signed
    and unsigned ones. Here it is int64 if it can be, else uint64.

    Raises
    ------
    ValueError
        If no 64-bit type holds all of them.
    """
    array = np.asarray(value)
    if array.dtype == np.float64 and not hasattr(value, "dtype"):
        with np.errstate(invalid="ignore"):
            large = bool((np.abs(array) >= _INEXACT).any())
    else:
        large = array.dtype == object and not hasattr(value, "dtype")
    if not large:
        return array
    exact = np.array(value, object)
    if exact.shape != array.shape or not all(
        isinstance(each, (int, np.integer)) and not isinstance(each, bool) for each in exact.flat
    ):
        return array
    return exact.astype(dtype_of(int(exact.min()), int(exact.max())))


def dtype_of(low: int, high: int) -> np.dtype:
    """Return the 64-bit type that holds integers from ``low`` to ``high``.

    Raises
    ------
    ValueError
        If there is none.
    """
    for dtype in (np.dtype(np.int64), np.dtype(np.uint64)):
        limits = np.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            return dtype
    raise ValueError(f"no 64-bit type holds integers from {low} to {high}: use float64, or str")
