"""Transfer: sends a shard to a copy while the shard is in use. Pure.

Rows are sent in segments. Rows that have changed since are sent again, until so little is left that
all of it goes at once, with everything that is not by row (`Transfer.last`). From that moment on
the copy can follow the shard. So no backlog of changes builds up, and the shard stops for no longer
than the last step takes. (Dense tables, which mostly change as a whole, go with the last step.)
This is the live migration of virtual machines: Clark et al., *Live Migration of Virtual Machines*,
NSDI 2005.

Not thread-safe; the server's one thread is its only user.
"""

from __future__ import annotations

import msgspec
import numpy as np

from psnb._src.server.growing import GrowingArray
from psnb._src.server.operations import FinishCopy
from psnb._src.server.parameter_shard import ParameterShard
from psnb._src.server.sparse import SparseTable
from psnb._src.server.table_operations import (
    ClearTable,
    OnTable,
    PutSegment,
    Segment,
    ShardOperation,
)

SEGMENT = 4 << 20
"""Bytes of a segment."""

LAST = 1 << 20
"""Bytes of rows that may be left for the last segments."""

_MOST = 3
"""How often all rows may be sent. After that the rest goes at once, however much it is: rows change
too fast."""

_WINDOW = 1 << 20  # rows that are searched for changes at a time


class _Moving:
    """The rows of one table that are being sent."""

    def __init__(self, table: SparseTable) -> None:
        self.table = table
        self.row_nbytes = max(1, table.row_nbytes)
        self._sent = self._at = self._dirty_count = self.total = 0
        self._dirty = GrowingArray(1, np.dtype(np.bool_))
        self.cleared = False
        table.watchers.append(self)

    def changing(self, rows: np.ndarray | None) -> None:
        dirty = self._dirty.rows[: self._sent, 0]
        if rows is None:
            dirty[:] = True
            self._dirty_count = self._sent
        else:
            rows = rows[(rows >= 0) & (rows < self._sent)]
            self._dirty_count += rows.size - int(np.count_nonzero(dirty[rows]))
            dirty[rows] = True

    def changing_parts(self, rows: np.ndarray, width: int) -> None:
        """Note that a variable changes."""
        self.changing(None)

    def changing_use(self) -> None:
        """Note that all rows change."""
        self.changing(None)

    def renumbering(self) -> None:
        self._sent = self._at = self._dirty_count = 0
        self.cleared = True

    def lapse(self) -> None:
        """Send all rows again."""
        self.renumbering()

    def close(self) -> None:
        self.table.watchers.remove(self)

    def left(self) -> int:
        """Return how many rows are still to be sent, as of now."""
        return self.table.extent - self._sent + self._dirty_count

    def next(self) -> Segment:
        """Return the next rows; there are some."""
        most = max(1, SEGMENT // self.row_nbytes)
        start, extent = self._sent, self.table.extent
        if start < extent:
            stop = min(start + most, extent)
            self._sent = stop
            self._dirty.grow(stop)
            self._dirty.rows[start:stop] = False
            rows: slice | np.ndarray = slice(start, stop)
            self.total += stop - start
        else:
            rows = self._some_dirty(most)
            self.total += rows.size
        return self.table.pick(rows)

    def _some_dirty(self, most: int) -> np.ndarray:
        while True:
            if self._at >= self._sent:
                self._at = 0
            window = self._dirty.rows[self._at : min(self._at + _WINDOW, self._sent), 0]
            found = np.flatnonzero(window)[:most]
            if found.size:
                window[found] = False
                self._dirty_count -= found.size
                rows = found + self._at
                # The next segment continues behind it, so that rows that change all the time must
                # wait.
                self._at = int(rows[-1]) + 1
                return rows
            self._at += _WINDOW


class Transfer:
    """Yields the steps that make an empty shard equal to another one.

    Parameters
    ----------
    shard : ParameterShard
        The shard to copy.
    """

    def __init__(self, shard: ParameterShard) -> None:
        self._shard = shard
        self._moving: dict[str, _Moving] = {}

    def next(self) -> list[ShardOperation]:
        """Return the next steps; an empty list if it is time for `last`."""
        for name in self._shard.tables():
            table = self._shard.table(name)
            if not isinstance(table, SparseTable):
                continue
            moving = self._moving.get(name)
            if moving is None or moving.table is not table:
                if moving is not None:
                    moving.close()
                self._moving[name] = _Moving(table)
                return [self._shard.creation(name)]
            if moving.cleared:
                moving.cleared = False
                return [OnTable(name, ClearTable())]
            if not self._suffices(moving):
                return [OnTable(name, PutSegment(moving.next()))]
        return []

    def last(self) -> list[list[ShardOperation]]:
        """Return all that is left, as of now: lists of steps, to be sent in this order."""
        steps: list[list[ShardOperation]] = []
        for name in self._shard.tables():
            table, moving = self._shard.table(name), self._moving.get(name)
            if moving is None:
                whole = table.segment(0, table.extent)
                creation = self._shard.creation(name)
                creation = msgspec.structs.replace(creation, values=whole["values"])
                steps.append([creation, OnTable(name, PutSegment(whole))])
            else:
                while moving.left():
                    steps.append([OnTable(name, PutSegment(moving.next()))])
        tails = {name: self._shard.tail(name) for name in self._shard.tables()}
        return [*steps, [FinishCopy(tails, self._shard.log())]]

    def close(self) -> None:
        """Stop watching the tables; idempotent."""
        for moving in self._moving.values():
            moving.close()
        self._moving.clear()

    def _suffices(self, moving: _Moving) -> bool:
        left = moving.left()
        tired = moving.total > _MOST * moving.table.extent
        return not left or left * moving.row_nbytes <= LAST or tired
