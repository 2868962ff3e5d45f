"""Marks: the tables of a shard as they were at one moment, to which they can go back. Pure.

A mark holds a snapshot of each table, so it takes the memory of what has changed since; and what
replicas have beside that (`Table.beside`): counts, and which rows leave next. Going back is a load
like that of a checkpoint, with the mark in the place of its files: the rows that have changed are
put back, and those of ids that came since are removed. Where the changes are not known one by one
(rows have left, ids wait for a row, a day was ended), all rows are loaded again.

Replicas repeat the making of a mark as any change, so one that takes over has it, too. A reader has
a description of it, and names that by a key, which each server makes anew: rows may have other
numbers elsewhere.

Not thread-safe; the server's one thread is its only user.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import numpy as np

from psnb._src.server import operations as ops
from psnb._src.server.snapshots import RowSnapshot, WholeSnapshot, snapshot
from psnb._src.server.tables.changed_rows import NO_IDS
from psnb._src.server.tables.checks import REMOVED, Form
from psnb._src.server.tables.operations import (
    OnTables,
    PutSegment,
    RemoveRows,
    row_nbytes,
)
from psnb._src.server.tables.saved_files import read_segment
from psnb._src.server.tables.table import Table
from psnb.errors import ServerMemoryError, StaleMarkError

MOST_MARKS = 8
"""Marks of a strategy; each takes note of every change."""


class _MarkedTable:
    """A table at one moment, as `SavedArrays` of what it needs to go back."""

    forms: Mapping[str, Form]

    def __init__(self, table: Table) -> None:
        self.table = table
        self.taken = snapshot(table)
        self._beside = table.beside()
        self._tail = {name: each for name, each in self.taken.tail.items() if name != REMOVED}
        self._rows, self._new = np.empty(0, np.int64), NO_IDS

    def look(self) -> ops.MarkedTable:
        """Find what has changed, for `read`; raises MemoryError if there is none for it."""
        taken = self.taken
        whole = False
        if isinstance(taken, RowSnapshot):
            found = taken.changed()
            if whole := found is None:
                taken.renumbering()
                self._rows, self._new = np.arange(taken.rows), NO_IDS
            else:
                self._rows, self._new = found
        else:
            assert isinstance(taken, WholeSnapshot)
            if taken.touched:  # what is put changes all of it, and it is read from copies alone
                taken.changing(None)
            self._rows = np.arange(taken.rows if taken.touched else 0)
        self.forms = {
            name: (each.dtype, (self._rows.size, *each.shape[1:]))
            for name, each in taken.form.items()
        }
        counts = self._rows.size, self._new.size, row_nbytes(taken.form)
        return ops.MarkedTable(*counts, self._tail, self._beside, whole)

    def read(
        self, name: str, start: int = 0, stop: int | None = None, *, flat: bool = False
    ) -> np.ndarray:
        """Return some of an array; see `SavedArrays`."""
        if name == REMOVED:
            return self._new[start:stop]
        rows = self._rows[start:stop]
        if isinstance(self.taken, RowSnapshot):
            return self.taken.kept(name, rows)
        return self.taken.column(name, start, start + rows.size)


class Mark:
    """The tables of a shard at one moment.

    Parameters
    ----------
    tables : mapping of str to Table
        By name.
    where : str
        The shard, for messages.
    moment : str
        Of when; an attribute, too. A request that comes late may make a mark of another one.

    Attributes
    ----------
    key : str
        Of the last description; empty if it was not described.
    """

    def __init__(self, tables: Mapping[str, Table], where: str, moment: str) -> None:
        self.key, self._where, self.moment = "", where, moment
        self._tables: dict[str, _MarkedTable] = {}
        try:
            for name, table in tables.items():
                self._tables[name] = _MarkedTable(table)
        except MemoryError as error:
            self.close()
            raise ServerMemoryError(
                f"{where} has no memory for a mark: {error}. Nothing was changed"
            ) from error

    def describe(self, tables: Mapping[str, Table]) -> ops.DescribedMark:
        """Describe the rows to load into the tables of now.

        Tables that were made since are not in it.

        Raises
        ------
        StaleMarkError
            If a table is not there any more, or there was no memory to keep it as it was.
        ServerMemoryError
            If there is no memory for what is to be loaded; nothing was changed.
        """
        where = self._where
        for name, each in self._tables.items():
            if tables.get(name) is not each.table:
                raise StaleMarkError(
                    f"table {name!r} of {where} was dropped or made again since the mark: nothing "
                    "was changed. Go back to a checkpoint"
                )
            if each.taken.lapsed:
                raise StaleMarkError(
                    f"{where} had no memory to keep {name!r} as it was at the mark: nothing was "
                    "changed. Go back to a checkpoint; a later mark, or more memory for servers, "
                    "takes less"
                )
        try:
            found = {name: each.look() for name, each in self._tables.items()}
        except MemoryError as error:
            raise ServerMemoryError(
                f"{where} has no memory to go back to the mark: {error}. Nothing was changed. Go "
                "back to a checkpoint, or give the processes of servers more memory"
            ) from error
        self.key = uuid.uuid4().hex
        return ops.DescribedMark(self.key, found)

    def read_here(self, operation: ops.ReadsFiles) -> OnTables:
        """Return an operation with what it is to read of the mark."""
        saved = self._tables[operation.table]
        match operation:
            case ops.PutSaved(table, _, _, _, start, stop, at):
                return OnTables((table,), PutSegment(read_segment(saved, start, stop, at)))
            case ops.RemoveSaved(table, _, _, _, start, stop):
                return OnTables((table,), RemoveRows(saved.read(REMOVED, start, stop)))
        raise StaleMarkError(f"nothing is read of a mark for {operation}")

    def close(self) -> None:
        """Let it go; idempotent."""
        for each in self._tables.values():
            each.taken.close()
