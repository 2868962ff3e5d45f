"""Copying rows of differing length together, compiled by numba. Pure."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def copy_rows(data, starts, ends, out):  # type: ignore[no-untyped-def]
    """Copy parts of ``data`` (uint8) into ``out``, one after the other."""
    at = 0
    for i in range(starts.size):
        begin, size = starts[i], ends[i] - starts[i]
        for j in range(size):
            out[np.uint64(at + j)] = data[np.uint64(begin + j)]
        at += size


def rows_of(values: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Copy rows of values together.

    Parameters
    ----------
    values : numpy.ndarray
        With at least one axis; of any dtype.
    starts, lengths : numpy.ndarray
        Where each row begins in there and how many values it has, int64 ``(m,)``.
    """
    total = int(lengths.sum())
    if values.dtype.hasobject:
        before = np.cumsum(lengths) - lengths
        # Each value's place: its place in the result, moved by what its row is moved.
        found: np.ndarray = values[np.arange(total) + np.repeat(starts - before, lengths)]
        return found
    out = np.empty((total, *values.shape[1:]), values.dtype)
    size = out[:1].nbytes if total else 0
    # As read-only bytes, whatever they are, so that numba compiles for one kind of arguments.
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    data.flags.writeable = False
    begins = starts * size
    copy_rows(data, begins, begins + lengths * size, out.reshape(-1).view(np.uint8))
    return out
