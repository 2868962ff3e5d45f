"""GrowingArray: rows in memory that do not move when rows are added. Pure.

Once it is larger than a few megabytes, it reserves addresses for as much as the machine has memory
and uses them from the front: the system gives an address memory when it is first written. So growth
copies nothing, and the rows are one plain array to the kernels. Where so many addresses are not to
be had (on systems that count them as memory) there is room for half as many rows again, and they
are copied when it is used up.

Rows start at cache lines, if they are of such a size, and lie in huge pages, which numpy asks for:
reading rows at random takes half the time that way.

Not thread-safe; it belongs to a table.
"""

from __future__ import annotations

import os

import numpy as np

_SMALL = 1 << 22
"""Bytes up to which an array is copied to grow. From there on numpy asks for huge pages."""

_LINE = 64


class GrowingArray:
    """A matrix that rows are added to.

    Parameters
    ----------
    columns : int
        Of each row.
    dtype : numpy.dtype
        Of its elements.
    most : int, optional
        How many rows there can be; not known if left out.

    Attributes
    ----------
    rows : numpy.ndarray
        The matrix, ``(count, columns)``, contiguous: a view that is of use until rows are added.
    """

    def __init__(self, columns: int, dtype: np.dtype, most: int | None = None) -> None:
        self._most = most
        self._room = np.empty((0, columns), dtype)
        self.rows = self._room

    def grow(self, count: int) -> None:
        """Add rows until there are so many; what is in them is left open."""
        if count > len(self._room):
            larger = self._larger(count)
            larger[: len(self.rows)] = self.rows
            self._room = larger
        self.rows = self._room[:count]

    def kept(self, which: np.ndarray) -> GrowingArray:
        """Return another one with some of the rows, bool ``(count,)``."""
        other = GrowingArray(self._room.shape[1], self._room.dtype, self._most)
        other.grow(int(which.sum()))
        np.compress(which, self.rows, axis=0, out=other.rows)
        return other

    def _larger(self, count: int) -> np.ndarray:
        columns, dtype = self._room.shape[1], self._room.dtype
        row = columns * dtype.itemsize
        enough = self._most or max(count, len(self._room) * 3 // 2)
        if self._most is None and enough * row > _SMALL:
            try:
                return _empty(max(enough, _memory() // row), columns, dtype)
            except MemoryError:
                pass
        return _empty(enough, columns, dtype)


def _empty(rows: int, columns: int, dtype: np.dtype) -> np.ndarray:
    size = rows * columns * dtype.itemsize
    raw = np.empty(size + _LINE, np.uint8)
    start = -raw.ctypes.data % _LINE
    return raw[start : start + size].view(dtype).reshape(rows, columns)


def _memory() -> int:
    """Return somewhat less than the bytes of memory that the machine has; 0 if it does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 16 * 15
    except (AttributeError, OSError, ValueError):
        return 0
