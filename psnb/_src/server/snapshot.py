"""Snapshot: a table as it was at one moment, read in segments while the table changes. Pure.

Copy on write: a row that changes before it was read is copied first. So a snapshot takes the memory
of those rows, at most that of the table, and no operation waits for more than a segment. (A dense
table is copied at once.) A reader may ask for the last segment once more.

Not thread-safe; the server's one thread is its only user.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np

from psnb._src.server.dense import DenseTable
from psnb._src.server.growing import GrowingArray
from psnb._src.server.operations import SnapshotHeader
from psnb._src.server.sparse import SparseTable
from psnb._src.server.table import Table
from psnb._src.server.table_operations import Segment
from psnb.errors import InternalError


class Snapshot(ABC):
    """A table at one moment.

    Attributes
    ----------
    rows : int
        How many rows the table had.
    """

    rows: int
    _tail: Segment
    _form: Segment
    """A segment without rows."""

    def header(self, name: str) -> SnapshotHeader:
        """Return what a reader must know, who knows the snapshot by this name."""
        row = sum(a.dtype.itemsize * math.prod(a.shape[1:]) for a in self._form.values())
        return SnapshotHeader(name, self.rows, row, self._form, self._tail)

    @abstractmethod
    def read(self, start: int, stop: int) -> Segment | None:
        """Return the rows from ``start`` to ``stop``; ranges come in order, each twice at most.

        None if the table was cleared or shrunk meanwhile.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop copying; idempotent."""


def snapshot(table: Table) -> Snapshot:
    """Return a snapshot of a table at this moment."""
    return _RowSnapshot(table) if isinstance(table, SparseTable) else _WholeSnapshot(table)


class _WholeSnapshot(Snapshot):
    """Of a table that is copied at once."""

    def __init__(self, table: Table) -> None:
        assert isinstance(table, DenseTable)
        whole = table.segment(0, table.extent)
        self._copy = {name: array.reshape(-1) for name, array in whole.items()}
        self.rows, self._tail = table.extent, table.tail()
        self._form = {name: array[:0] for name, array in self._copy.items()}

    def read(self, start: int, stop: int) -> Segment:
        return {name: array[start:stop] for name, array in self._copy.items()}

    def close(self) -> None:
        self._copy = {}


class _RowSnapshot(Snapshot):
    """Of a table whose rows are copied when they change."""

    def __init__(self, table: SparseTable) -> None:
        self._table: SparseTable | None = table
        self.rows, self._tail = table.extent, table.tail()
        self._form = table.segment(0, 0)
        self._read_to = 0
        self._last: tuple[int, Segment] = (-1, {})
        # For each row, where its copy is, from 1 on; 0 if there is none. (The system provides
        # memory for zeros only when they are written.)
        self._place = np.zeros(self.rows, np.int32)
        self._kept = {name: _store(array) for name, array in self._form.items()}
        self._count = 0
        table.watchers.append(self)

    def changing(self, rows: np.ndarray | None) -> None:
        """Copy the rows that were not read yet."""
        if rows is None:
            rows = np.arange(self._read_to, self.rows)
        rows = rows[(rows >= self._read_to) & (rows < self.rows)]
        rows = rows[self._place[rows] == 0]
        if not rows.size or self._table is None:
            return
        start, self._count = self._count, self._count + rows.size
        self._place[rows] = np.arange(start + 1, self._count + 1)
        for name, array in self._table.pick(rows).items():
            self._kept[name].grow(self._count)
            self._kept[name].rows[start:] = array.reshape(rows.size, -1)

    def renumbering(self) -> None:
        """Close: the rest cannot be read any more."""
        self.close()

    def read(self, start: int, stop: int) -> Segment | None:
        if start == self._last[0]:
            return self._last[1]
        if self._table is None:
            return None
        if start != self._read_to:
            raise InternalError(f"rows {start} to {stop} of a snapshot read to {self._read_to}")
        segment = self._table.segment(start, stop)
        place = self._place[start:stop]
        kept = np.flatnonzero(place)
        if kept.size:
            for name, array in segment.items():
                found = self._kept[name].rows[place[kept] - 1]
                array[kept] = found.reshape(kept.size, *array.shape[1:])
        self._read_to, self._last = stop, (start, segment)
        return segment

    def close(self) -> None:
        if self._table is not None:
            self._table.watchers.remove(self)
            self._table, self._kept = None, {}


def _store(form: np.ndarray) -> GrowingArray:
    return GrowingArray(math.prod(form.shape[1:]), form.dtype)
