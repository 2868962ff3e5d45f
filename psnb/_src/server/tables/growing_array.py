"""GrowingArray: rows in memory, or in a file, that do not move when rows are added. Pure.

Once it is larger than a few megabytes, it reserves as much address space as the machine has
memory and uses it from the front: the operating system provides memory for a page when it is
first written. So growth copies nothing, and the rows are one plain array to the kernels. Before
that it is promised, a `STEP` at a time, or refused: the system would end the process rather than
say no. If so much address space is not available (on systems that count it as memory, or limit it),
the array grows by half, and its rows are copied when that room is used up.

In a file (`psnb._src.server.disk`) they are one plain array, too, since it is mapped: it is
allocated for what is reserved.

Rows are aligned to cache lines, if their size allows it, and lie in huge pages, which are asked
for. That halves the time of reading rows at random.

Not thread-safe; it belongs to a table.
"""

from __future__ import annotations

import os
import threading
from weakref import WeakSet

import numpy as np

from psnb._src.server import kernels
from psnb._src.server.disk import DiskSpace
from psnb._src.server.memory import addresses, allocate, promise
from psnb._src.utils.process_memory.limits import address_limit

_SMALL_TABLE = 1 << 22
"""Bytes up to which an array is copied to grow."""

STEP = 1 << 22
"""Bytes that are promised at a time, or a multiple: the system's pages may have two megabytes."""

_lock = threading.Lock()  # guards the next: tables are made in several threads
_large: WeakSet[GrowingArray] = WeakSet()  # all that have memory promised beyond what is written


def promised() -> int:
    """Return how many bytes are promised to all arrays of this process, and not written yet."""
    with _lock:
        arrays = list(_large)
    return sum(array.unwritten for array in arrays)


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
    disk : DiskSpace, optional
        Where its file is; by default the rows are in memory.

    Attributes
    ----------
    rows : numpy.ndarray
        The matrix, ``(count, columns)``, contiguous: a view that is valid until rows are added.
    whole : numpy.ndarray
        The rows, and behind them the addresses of more.
    room : int
        For how many rows there is memory.
    """

    def __init__(
        self, columns: int, dtype: np.dtype, most: int | None = None, disk: DiskSpace | None = None
    ) -> None:
        self._most, self._file = most, None if disk is None else disk.file(most)
        self._place: np.ndarray | None = None
        self.whole = np.empty((0, columns), dtype)
        self.rows = self.whole
        self.room = self._written = 0  # the second: how many rows there were at most

    def noted_in(self, place: np.ndarray) -> None:
        """Keep the address of the rows in ``place``, int64 ``(1,)``, for compiled loops."""
        self._place = place
        self._move(self.whole, len(self.rows))

    def _move(self, whole: np.ndarray, count: int) -> None:
        # The address before anything else: it must never be that of memory that is gone.
        if self._place is not None:
            self._place[0] = kernels.address(whole)
        self.whole, self.rows = whole, whole[:count]

    def reserve(self, count: int) -> None:
        """Get the memory of ``count`` rows; they are not added.

        Raises
        ------
        MemoryError
            If there is none; nothing is changed.
        """
        if count <= self.room:
            return
        there = count <= len(self.whole)
        whole = self.whole if there else self._larger(count)
        room = len(whole)
        if self._file is None:
            if whole.nbytes > _SMALL_TABLE:
                room = min(room, -(-count * self._row // STEP) * STEP // self._row)
            promise((room - (self.room if there else 0)) * self._row)
        if not there:
            if self._file is None:
                whole[: len(self.rows)] = self.rows
            self._move(whole, len(self.rows))
            self._written = len(self.rows)
        self._promised(room)

    def grow(self, count: int) -> None:
        """Add rows until there are ``count``; the new ones are not initialised."""
        self.reserve(count)
        self.rows = self.whole[:count]
        self._written = max(self._written, count)

    def _promised(self, room: int) -> None:
        self.room = room
        if self._file is None and self.whole.nbytes > _SMALL_TABLE:
            with _lock:
                _large.add(self)

    def give_back(self, count: int) -> None:
        """Give the memory back that was promised for more than ``count`` rows, and not written."""
        self.room = min(self.room, max(count, self._written))

    @property
    def unwritten(self) -> int:
        """How many bytes are promised to it, and not written yet."""
        return (self.room - self._written) * self._row

    def copy_of(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return a copy of some rows, by their numbers."""
        if self._file is not None and isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self.rows))
            self._file.will_read(start * self._row, stop * self._row)
        return self.rows[rows].copy()

    def clear(self) -> None:
        """Drop all rows; the room stays."""
        self.rows = self.whole[:0]

    def keep(self, which: np.ndarray, room: int) -> None:
        """Drop the rows that are not marked in ``which`` (bool); the others move up.

        Memory that ``room`` rows do not need goes back to the system, if there is memory for a copy
        of the rest.
        """
        count = int(np.count_nonzero(which))
        if self._file is not None:
            # In place: there may be no room for a second file.
            kernels.move_up(self.rows, which)
            self._file.shrink(max(count, room) * self._row)
            self._move(self.whole[: self._file.allocated // self._row], count)
            self.room, self._written = len(self.whole), count
            return
        other = GrowingArray(self.whole.shape[1], self.whole.dtype, self._most)
        try:
            other.grow(count)
            np.compress(which, self.rows, axis=0, out=other.rows)
            other.reserve(room)
        except MemoryError:
            kernels.move_up(self.rows, which)
            self.rows = self.whole[:count]
        else:
            self._move(other.whole, count)
            self._written = count
            self._promised(other.room)

    @property
    def disk_nbytes(self) -> int:
        """How many bytes of the rows are in a file."""
        return 0 if self._file is None else self.rows.nbytes

    @property
    def _row(self) -> int:
        return self.whole.shape[1] * self.whole.dtype.itemsize

    def _larger(self, count: int) -> np.ndarray:
        columns, dtype, row = self.whole.shape[1], self.whole.dtype, self._row
        if self._file is not None:
            in_file: np.ndarray = allocate(self._file.rows, (count, columns), dtype)
            return in_file
        enough = self._most or max(count, len(self.whole) * 3 // 2)
        sizes = [enough, count]
        if self._most is None and enough * row > _SMALL_TABLE:
            sizes.insert(0, max(enough, _memory() // row))
        for size in sizes[:-1]:
            try:
                return addresses((size, columns), dtype)
            except MemoryError:
                pass
        return addresses((sizes[-1], columns), dtype)


def _memory() -> int:
    """Return a little less than the machine's memory in bytes; 0 if it is unknown.

    Or if addresses are limited: one array would have them all.
    """
    if address_limit("AS") or address_limit("DATA"):
        return 0
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 16 * 15
    except (AttributeError, OSError, ValueError):
        return 0
