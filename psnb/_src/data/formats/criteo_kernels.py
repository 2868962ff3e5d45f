"""Parsing Criteo's click logs, compiled by numba."""

from __future__ import annotations

import numpy as np
from numba import njit

DENSE, SPARSE = 13, 26
COLUMNS = 1 + DENSE + SPARSE

OK, FEW, LABEL, INTEGER, CATEGORY, TRAILING = 0, 1, 2, 3, 4, 5
"""What is wrong with a line: it ends before a column; what is in one is not of its kind; something
follows the last."""

_TAB, _MINUS = 9, 45
_MOST_DIGITS = 18  # of an integer: they fit 64 bits


@njit(cache=True, nogil=True, inline="always")
def _digit(byte):  # type: ignore[no-untyped-def]
    """Return the value of a hexadecimal digit; 16 if it is not one."""
    if 48 <= byte <= 57:
        return byte - 48
    if 97 <= byte <= 102:
        return byte - 87
    if 65 <= byte <= 70:
        return byte - 55
    return 16


@njit(cache=True, nogil=True)
def parse_lines(data, starts, ends, missing, label, dense, sparse):  # type: ignore[no-untyped-def]
    """Parse lines, up to the first that is not in order, into (lines,), (lines, 13), (lines, 26).

    ``missing`` (uint64) is what an empty category becomes; an empty integer becomes NaN.

    Returns how many lines are in order; of the next the column, the position and what is wrong.
    """
    for i in range(starts.size):
        at, stop = np.int64(starts[i]), np.int64(ends[i])
        for column in range(COLUMNS):
            if column > 0:
                if at == stop:
                    return i, column, at, FEW
                at += 1
            begin = at
            if column <= DENSE:
                negative = column > 0 and at < stop and data[at] == _MINUS
                if negative:
                    at += 1
                value = np.int64(0)
                first = at
                while at < stop and data[at] != _TAB:
                    digit = np.int64(_digit(np.int64(data[at])))
                    if digit > 9 or at - first >= _MOST_DIGITS:
                        return i, column, begin, INTEGER if column else LABEL
                    value = value * 10 + digit
                    at += 1
                empty = at == first
                if empty and (negative or column == 0):
                    return i, column, begin, INTEGER if column else LABEL
                number = np.float32(-value if negative else value)
                if column == 0:
                    label[i] = number
                else:
                    dense[i, column - 1] = np.float32(np.nan) if empty else number
            else:
                category = np.uint64(0)
                while at < stop and data[at] != _TAB:
                    digit = np.int64(_digit(np.int64(data[at])))
                    if digit > 15 or at - begin >= 8:
                        return i, column, begin, CATEGORY
                    category = (category << np.uint64(4)) | np.uint64(digit)
                    at += 1
                sparse[i, column - 1 - DENSE] = missing if at == begin else category
        if at != stop:
            return i, column, at, TRAILING
    return starts.size, 0, 0, OK
