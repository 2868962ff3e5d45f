"""Lookups and pushes in any number of tables of one kind, by a few compiled loops. Pure.

Of one kind are tables of one dim and dtype. A table's share of a step is some fifty rows, and a
call from Python takes longer than these. So one loop finds the ids in all tables, and another one
copies or updates the rows, whether there are fifty tables or one. Mostly all ids have rows. Where
some have none, or not all get one, that table alone gets memory for them and makes them
(`RowTable.requested`, `RowTable.give`).

All memory is got before anything changes, in all tables: an operation without memory has changed
none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from psnb._src.server import hashing, kernels
from psnb._src.server.kernels import read_only
from psnb._src.server.memory import Promise, answer_array, scratch
from psnb._src.server.stored import widened
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.bags import check_bags, push_by_id, sum_rows
from psnb._src.server.tables.checks import check_array, check_ids, check_offsets
from psnb._src.server.tables.row_index import RowRequest
from psnb._src.server.tables.row_table import RowTable
from psnb._src.server.tables.table import Table
from psnb._src.server.tables.updater import Updated, apply_to_tables
from psnb._src.transport import half_width
from psnb._src.transport.message import Float16Message, halved
from psnb.errors import InvalidArrayError


class _Found:
    """The ids of an operation, and their rows, as far as they have some.

    Attributes
    ----------
    tables : sequence of RowTable
        The tables.
    places, offsets, rows : numpy.ndarray
        int64: the place of each table, where its ids begin and end, and the row of each id.
    others : list of int
        The tables that must do more for their ids: some have no row, or not all get one.
    """

    def __init__(self, tables: Sequence[Table], of: ops.LookUpRows | ops.PushRows) -> None:
        kind = tables[0].kind
        others = [table for table in tables if table.kind != kind]
        if kind is None or others or len({*tables}) < len(tables) or (of.bags and tables[1:]):
            raise tables[0].unknown(of)
        check_ids("ids", of.ids)
        self.tables: Sequence[RowTable] = tables  # type: ignore[assignment]  # by their kind
        count, offsets = of.ids.size, of.offsets
        if offsets is None:
            offsets = np.array([0, count])
        if len(tables) > 1 or of.offsets is not None:
            check_offsets("offsets of ids", offsets, len(tables), count)
        self.offsets = read_only(offsets)
        self.places = np.array([table.at for table in self.tables])
        self.rows = scratch(count, np.int64)
        missing = np.zeros(len(tables), np.int64)
        hashing.find_rows(self.places, read_only(of.ids), self.offsets, self.rows, missing)
        self.others = []
        for at, (table, new) in enumerate(zip(self.tables, missing.tolist(), strict=True)):
            if new < 0:
                table.index.find(of.ids[self.of(at)])  # raises
            if new or table.selects:
                self.others.append(at)

    def of(self, at: int) -> slice:
        """Return where the ids of a table are."""
        return slice(self.offsets[at], self.offsets[at + 1])

    def take(self, out: np.ndarray) -> None:
        """Copy the rows, to an array of codes."""
        if not any(table.paging for table in self.tables):
            kernels.take_rows(self.places, self.offsets, self.rows, out)
            return
        for number, table in enumerate(self.tables):
            part, place = self.of(number), self.places[number : number + 1]
            for at in table.in_parts(part.stop - part.start):
                bounds = read_only(np.array([at.start, at.stop]) + part.start)
                kernels.take_rows(place, bounds, self.rows, out)


def run_on_rows(tables: Sequence[Table], operation: ops.RowsOperation) -> Any:
    """Run an operation on the rows of tables."""
    if isinstance(operation, ops.LookUpRows):
        return look_up(tables, operation)
    assert isinstance(operation, ops.PushRows)
    return reserve_push(tables, operation)()


def look_up(tables: Sequence[Table], of: ops.LookUpRows) -> np.ndarray | Float16Message:
    """Return the rows of ids in tables, or of bags, one matrix; zeros for ids without a row.

    Without ``training`` no row is made and no id counts as seen: an id without a row gives the
    values that this would begin with.
    """
    found = _Found(tables, of)
    requests: dict[int, RowRequest] = {}
    if of.training:
        for at in found.others:
            ids, rows = of.ids[found.of(at)], found.rows[found.of(at)]
            requests[at] = found.tables[at].requested(ids, found=rows)
    first = found.tables[0]
    shape = of.ids.size, first.dim
    if of.bags is None:
        # In its own width: whoever asked widens it.
        rows = wide = out = answer_array(shape, first.dtype)
    else:
        check_bags(of.bags, of.ids.size, first.computed)
        rows = wide = scratch(shape, first.dtype)
        if first.dtype != first.computed:
            wide = scratch(shape, first.computed)
        out = answer_array((of.bags.bounds.size - 1, first.dim), first.computed)
    # After all memory: a lookup that fails must not count as an occurrence.
    for at, request in requests.items():
        found.rows[found.of(at)] = found.tables[at].give(request)
    found.take(half_width.codes(rows))
    for at in found.others:
        table, part = found.tables[at], found.of(at)
        if not of.training and not table.expected.waits:
            new = np.flatnonzero(found.rows[part] < 0)
            some, values = table.first_rows(of.ids[part][new])
            rows[part][new[some]] = values
    if of.bags is not None:
        if wide is not rows:
            widened(rows, wide)
        sum_rows(of.bags, wide, out)
    return halved(out) if of.half and out.dtype == first.computed else out


def reserve_push(
    tables: Sequence[Table], push: ops.PushRows, *, counting: bool = True
) -> ReservedPush:
    """Get all memory that a push needs, after all checks; see `Table.reserve`."""
    found = _Found(tables, push)
    first = found.tables[0]
    push = push_by_id(push, first.computed, first.dim)
    for table in found.tables:
        if table.updater.optimizer is None:
            table.updater.required()  # raises
    what = f"gradients for {ops.names_of_tables([table.name for table in found.tables])}"
    check_array(what, push.gradients, first.computed, (push.ids.size, first.dim))
    for each in (push.norms, push.rates):
        if each is not None and len(each) != len(tables):
            raise InvalidArrayError(f"{what}: {len(each)} norms or rates for {len(tables)} tables")
    requests = {
        at: found.tables[at].requested(push.ids[found.of(at)], counting, repeated=False)
        for at in found.others
    }
    return ReservedPush(found.tables, push, (found.places, found.offsets, found.rows), requests)


class ReservedPush:
    """A push for which there is all memory; called, it is made.

    Parameters
    ----------
    tables : sequence of RowTable
        The tables.
    push : PushRows
        The push, of which these tables may be a part.
    where : tuple of numpy.ndarray
        The place of each table, where its ids begin and end in the push, and the row of each id.
    requests : mapping of int to RowRequest
        The ids of tables in which some had no row, or not all get one.
    """

    def __init__(
        self,
        tables: Sequence[RowTable],
        push: ops.PushRows,
        where: tuple[np.ndarray, np.ndarray, np.ndarray],
        requests: Mapping[int, RowRequest],
    ) -> None:
        self._tables, self._push, self._requests = tables, push, dict(requests)
        self._where = where
        # Rows that are there now may be gone by then; their tables keep the room for them. (The
        # requests do so themselves.)
        self._numberings = [table.index.numbering for table in tables]
        others = [table for at, table in enumerate(tables) if at not in self._requests]
        self._promise = Promise(others, 0, push.ids.size)

    def __call__(self) -> None:
        """Make the push. Takes no memory."""
        tables, (places, offsets, rows) = self._tables, self._where
        ids = self._push.ids
        for at, (table, then) in enumerate(zip(tables, self._numberings, strict=True)):
            if table.index.numbering is not then and at not in self._requests:
                of = slice(offsets[at], offsets[at + 1])
                self._requests[at] = RowRequest(ids[of], rows[of])
        for at, request in self._requests.items():
            rows[offsets[at] : offsets[at + 1]] = tables[at].give(request, pushed=True)
        self._promise.release()
        for at, table in enumerate(tables):
            if table.watchers:
                table.changing(rows[offsets[at] : offsets[at + 1]])
            if table.moved.watches:
                table.moved.pushing(table.values, rows[offsets[at] : offsets[at + 1]])
        of_push = Updated(places, offsets, rows, ids, self._push.gradients)
        updaters = [table.updater for table in tables]
        norms, rates = self._push.norms, self._push.rates
        matrices = [table.matrices for table in tables]
        apply_to_tables(updaters, matrices, of_push, norms, rates, {*self._requests})

    def part(self, at: int) -> ReservedPush:
        """Return what this does in one of its tables, if it does nothing itself any more."""
        places, offsets, rows = self._where
        of = self._push
        norms, rates = of.norms and of.norms[at : at + 1], of.rates and of.rates[at : at + 1]
        push = ops.PushRows(of.ids, of.gradients, None, norms, rates, None, of.half)
        requests = {0: self._requests[at]} if at in self._requests else {}
        where = places[at : at + 1], offsets[at : at + 2], rows
        made = ReservedPush(self._tables[at : at + 1], push, where, requests)
        made._numberings = self._numberings[at : at + 1]
        return made


def push_in_round(table: RowTable, push: ops.PushRows, request: RowRequest) -> ReservedPush:
    """Return a push of ids for whose rows there is room, which takes no memory."""
    places, offsets = np.array([table.at]), np.array([0, push.ids.size])
    return ReservedPush([table], push, (places, offsets, request.rows), {0: request})
