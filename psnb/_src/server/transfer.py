"""Transfer: sends a shard to a replica while the shard is in use. Pure.

All rows are sent, in segments, then the rows that have changed meanwhile, and so on, until so
little is left that all of it goes in one message, with everything that is not by row
(`Transfer.last`). From then on the replica can follow the shard. So no backlog of changes builds
up, and the shard stops for no longer than the last step takes. (Dense tables, which mostly change
as a whole, go with the last step.) This is the live migration of virtual machines: Clark et al.,
*Live Migration of Virtual Machines*, NSDI 2005.

Not thread-safe; the server's one thread is its only user.
"""

from __future__ import annotations

import msgspec
import numpy as np

from psnb._src.server.operations import FinishReplica
from psnb._src.server.shard import ParameterShard
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.changed_rows import ChangedRows, Changes
from psnb._src.server.tables.sparse import SparseTable

LAST = 1 << 20
"""Bytes of rows that may be left for the last segments."""

_MOST = 3
"""How often all rows may be sent. Then the rest goes in one message: rows change too fast."""


class _Moving:
    """The rows of one table that are being sent.

    It has a log of its own, not the table's: that would be kept for a day.
    """

    _mark: str
    _rows: np.ndarray | None
    _removed: np.ndarray

    def __init__(self, table: SparseTable) -> None:
        self.table, self._log = table, ChangedRows()
        self._row_nbytes = ops.row_nbytes(table.segment(0, 0))
        self._total = self._at = self._stop = 0
        self._begin(self._log.take("", table.extent))
        self._anew = False  # whether what was sent so far is to go
        table.watchers.append(self._log)

    def close(self) -> None:
        self.table.watchers.remove(self._log)

    def pending(self) -> bool:
        """Return whether `next` has something without another look at what has changed."""
        left = self._anew or self._at < self._stop or self._removed.size > 0
        return left or not self._log.knows(self._mark)

    def more(self, than: int) -> bool:
        """Return whether `next` has something, if need be after a look at what has changed.

        Changes of no more bytes than this are left for later: the same mark has them the next time.
        """
        if self.pending():
            return True
        if than and self._total >= _MOST * self.table.extent:
            return False
        changes = self._log.take(self._mark, self.table.extent)
        count = self.table.extent if changes.rows is None else changes.rows.size
        if count * self._row_nbytes + changes.removed.nbytes > than:
            self._begin(changes)
        return self.pending()

    def next(self) -> ops.TableOperation:
        if not self._log.knows(self._mark):  # rows have other numbers, or a change was not noted
            self._begin(self._log.take("", self.table.extent))
            self._anew = True
        if self._anew:
            self._anew = False
            return ops.ClearTable()
        if self._removed.size:  # first: some of them may have another row by now
            most = ops.SEGMENT // self._removed.itemsize
            removed, self._removed = self._removed[:most], self._removed[most:]
            return ops.RemoveRows(removed)
        start, self._at = (
            self._at,
            min(self._at + ops.rows_in_segment(self._row_nbytes), self._stop),
        )
        self._total += self._at - start
        part = slice(start, self._at)
        if self._rows is None:
            return ops.PutSegment(self.table.pick(part))
        rows = self._rows[part]  # since they were asked for, there may be fewer
        return ops.PutSegment(self.table.pick(rows[rows < self.table.extent]))

    def _begin(self, changes: Changes) -> None:
        self._mark, self._rows, _, self._removed = changes
        # Which ids have lost their rows is not known then.
        self._anew = self._rows is None and self.table.leaves
        self._at, self._stop = 0, self.table.extent if self._rows is None else self._rows.size


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

    def next(self) -> list[ops.ShardOperation]:
        """Return the next steps; an empty list if it is time for `last`."""
        here = [(name, self._shard.table(name)) for name in self._shard.tables()]
        sparse = [(name, table) for name, table in here if isinstance(table, SparseTable)]
        for name, table in sparse:
            if name not in self._moving or self._moving[name].table is not table:
                if name in self._moving:
                    self._moving.pop(name).close()
                self._moving[name] = _Moving(table)
                return [self._shard.creation(name)]
            if self._moving[name].pending():
                return [ops.on_table(name, self._moving[name].next())]
        for name, _ in sparse:  # not before: to look for changes is to look at all rows
            if self._moving[name].more(LAST):
                return [ops.on_table(name, self._moving[name].next())]
        return []

    def last(self) -> list[list[ops.ShardOperation]]:
        """Return all that is left, as of now: lists of steps, to be sent in this order."""
        steps: list[list[ops.ShardOperation]] = []
        for name in self._shard.tables():
            table = self._shard.table(name)
            if isinstance(table, SparseTable):
                moving = self._moving[name]
                while moving.more(than=0):
                    steps.append([ops.on_table(name, moving.next())])
            else:
                whole = table.segment(0, table.extent)
                creation = self._shard.creation(name)
                creation = msgspec.structs.replace(creation, values=whole["values"])
                steps.append([creation, ops.on_table(name, ops.PutSegment(whole))])
        tails = {name: self._shard.tail(name) for name in self._shard.tables()}
        return [*steps, [FinishReplica(tails, self._shard.log, self._shard.ended)]]

    def close(self) -> None:
        """Stop watching the tables; idempotent."""
        for moving in self._moving.values():
            moving.close()
        self._moving.clear()
