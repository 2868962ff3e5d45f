"""GrowingArray: rows in memory that do not move when rows are added. Pure.

Once it is larger than a few megabytes, it reserves as much address space as the machine has memory
and uses it from the front: the operating system provides memory for a page when it is first
written. So growth copies nothing, and the rows are one plain array to the kernels. If so much
address space is not available (on systems that count it as memory), the array grows by half, and
its rows are copied when that room is used up.

Rows are aligned to cache lines, if their size allows it, and lie in huge pages, which numpy asks
for. That halves the time of reading rows at random.

Not thread-safe; it belongs to a table.
"""

from __future__ import annotations

import os

import numpy as np

from psnb._src.aligned import aligned

_SMALL = 1 << 22
"""Bytes up to which an array is copied to grow. From there on numpy asks for huge pages."""


class GrowingArray:
    """A matrix that rows are added to.

    Parameters
    ----------
    columns : int
        Numbers in each row.
    dtype : numpy.dtype
        The dtype of the elements.
    most : int, optional
        The largest number of rows, if it is known.

    Attributes
    ----------
    rows : numpy.ndarray
        The matrix, ``(count, columns)``, contiguous: a view that is valid until rows are added.
    """

    def __init__(self, columns: int, dtype: np.dtype, most: int | None = None) -> None:
        self._most = most
        self._room = np.empty((0, columns), dtype)
        self.rows = self._room

    def grow(self, count: int) -> None:
        """Add rows until there are ``count``; the new ones are not initialised."""
        if count > len(self._room):
            larger = self._larger(count)
            larger[: len(self.rows)] = self.rows
            self._room = larger
        self.rows = self._room[:count]

    def kept(self, which: np.ndarray) -> GrowingArray:
        """Return a new array with the rows that are marked in ``which``, bool ``(count,)``."""
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
                return aligned((max(enough, _memory() // row), columns), dtype)
            except MemoryError:
                pass
        return aligned((enough, columns), dtype)


def _memory() -> int:
    """Return a little less than the machine's memory in bytes; 0 if it is unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 16 * 15
    except (AttributeError, OSError, ValueError):
        return 0
