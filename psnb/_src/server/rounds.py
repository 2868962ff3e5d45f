"""Rounds: the pushes of closures in rounds of synchronous updates, until they are applied. Pure.

Pushes are kept by closure, not summed as they come. So only closures that have completed count, and
the sum is taken in the order in which the notebook names them: it is the same each time to the last
digit. The memory in which it is taken, a `RoundRoom`, is reserved with each push: a closure whose
push has none fails, and the round ends without it. The end of a round cannot fail any more, as
other servers end it too. Reservations for pushes that do not count in the end are not used.

Not thread-safe; the server's one thread is its only user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from psnb._src.server import hashing, kernels
from psnb._src.server.kernels import read_only
from psnb._src.server.memory import Promise, Reservable, scratch
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.bags import push_by_id
from psnb._src.server.tables.dense import DenseTable, compose
from psnb._src.server.tables.presence import add_to, compacted, pieces, union, whole
from psnb._src.server.tables.sparse import SparseTable
from psnb._src.server.tables.table import ReservedWrite, Table
from psnb.errors import InternalError

Averaged = ops.Push | ops.BlendValues
"""What is averaged at the end of a round."""

_Planned = tuple[Averaged, Callable[[], None]]

_BLOCK = 1 << 14
"""Numbers that are multiplied by a weight at a time."""


@dataclass
class _RoundWriter:
    round: int = 0  # all rounds below it are over
    held: dict[int, Sequence[ReservedWrite]] = field(default_factory=dict)


class Rounds:
    """Keeps what closures pushed, by writer and commit number."""

    def __init__(self) -> None:
        self._writers: dict[str, _RoundWriter] = {}
        # The latest round's are kept: to get new memory costs as much as to fill it.
        self._rooms: dict[tuple[Table, bool], RoundRoom] = {}  # of a table's pushes, or blends
        self._averaged: set[RoundRoom] = set()  # in this round

    def __getstate__(self) -> object:
        return self._writers

    def __setstate__(self, state: dict[str, _RoundWriter]) -> None:
        self.__init__()  # type: ignore[misc]
        self._writers = state

    def held(self) -> dict[str, list[int]]:
        """Return by writer the numbers of the commits whose pushes are kept."""
        return {writer: list(each.held) for writer, each in self._writers.items() if each.held}

    def leave_out(self, table: str) -> None:
        """Forget what was to be written to a table."""
        for each in self._writers.values():
            for commit, writes in each.held.items():
                each.held[commit] = [w for write in writes for w in write.without(table)]

    def reserve_again(self, tables: Mapping[str, Table]) -> None:
        """Get the memory for all that is kept, on another server."""
        for each in self._writers.values():
            for commit, writes in each.held.items():
                each.held[commit] = [
                    self.reserve(tables[w.write.tables[0]], w.write) for w in writes
                ]

    def over(self, writer: str, number: int) -> bool:
        """Return whether a round is over; pushes that come now are too late."""
        return writer in self._writers and number < self._writers[writer].round

    def reserve(self, table: Table, write: ops.OnTables) -> ReservedWrite:
        """Get all memory that a write will need at the end of its round.

        Raises
        ------
        MemoryError
            If there is none.
        """
        operation = write.operation
        if not isinstance(operation, ops.Push | ops.BlendValues):
            return ReservedWrite(write, table.reserve(operation))
        if isinstance(operation, ops.PushRows) and isinstance(table, SparseTable):
            operation = push_by_id(operation, table.computed, table.dim)
            write = ops.OnTables(write.tables, operation)
        blends = isinstance(operation, ops.BlendValues)
        key = table, blends
        room = self._rooms.get(key)
        if room is None:
            if isinstance(table, DenseTable):
                room = _BlendRoom(table) if blends else _VariableRoom(table)
            elif isinstance(table, SparseTable) and not blends:
                room = _RowsRoom(table)
            else:
                raise InternalError(f"nothing is pushed to {type(table).__name__}")
            self._rooms[key] = room
        return ReservedWrite(write, reservation=room.reserve(operation))

    def collect(self, writer: str, commit: int, writes: Sequence[ReservedWrite]) -> None:
        """Keep what a closure pushed; the first call with a number counts."""
        self._writers.setdefault(writer, _RoundWriter()).held.setdefault(commit, list(writes))

    def averages(
        self,
        writer: str,
        closures: Sequence[int],
        tables: Mapping[str, Table],
        norms: Mapping[str, float] | None = None,
        weights: ops.RoundWeights | None = None,
    ) -> list[ReservedWrite]:
        """Return the writes that end a round: one push or blend a table, then the other writes.

        Parameters
        ----------
        writer : str
            Whose round it is.
        closures : sequence of int
            The commit numbers of the closures that count, in the order in which their pushes are
            summed; each gradient is divided by their number, unless they have weights.
        tables : mapping of str to Table
            The tables that the round changes; writes to others are left out.
        norms : mapping of str to float, optional
            The norms of whole gradients, by table, where they are known.
        weights : RoundWeights, optional
            The weight of each closure.
        """
        if weights is None:
            weights = ops.RoundWeights([1.0] * len(closures), float(len(closures)))
        held = self._writers[writer].held if writer in self._writers else {}
        averaged: dict[tuple[str, RoundRoom], list[Pushed]] = {}
        others: list[ReservedWrite] = []
        for commit, weight in zip(closures, weights.each, strict=True):
            for each in held.get(commit, ()):
                (name,) = each.write.tables
                if name not in tables:
                    continue
                operation, reserved = each.write.operation, each.reservation
                if isinstance(operation, ops.Push | ops.BlendValues):
                    pushed = Pushed(operation, reserved.admitted, commit, weight)
                    averaged.setdefault((name, reserved.room), []).append(pushed)
                else:
                    others.append(each)
        found = []
        for (name, room), several in averaged.items():
            write, make = room.average(several, weights.total, (norms or {}).get(name))
            found.append(ReservedWrite(ops.on_table(name, write), make))
            self._averaged.add(room)
        return [*found, *others]

    def end(self, writer: str, number: int) -> None:
        """Forget what was kept for this round and earlier ones.

        A strategy has one coordinator at a time, so what others left is forgotten too.
        """
        self._writers = {writer: _RoundWriter(number + 1)}
        self._rooms = {
            key: room
            for key, room in self._rooms.items()
            if room.promises or room in self._averaged
        }
        self._averaged = set()


def square_norm(push: ops.Push) -> float:
    """Return the square of the norm of an averaged push, taken in double precision."""
    assert isinstance(push, ops.PushRows | ops.PushGradient)
    return kernels.square_norm(push.gradients if isinstance(push, ops.PushRows) else push.gradient)


@dataclass(slots=True, eq=False)
class Reservation:
    """What one push needs of a `RoundRoom`, which has it as long as there is a reference to this.

    Attributes
    ----------
    room : RoundRoom
        The room.
    kept : sequence of Promise
        Keep the room, and the room for new rows of the table.
    admitted : numpy.ndarray
        Which of the ids may have a row; see `RowRequest`.
    """

    room: RoundRoom
    kept: Sequence[Promise | None] = ()
    admitted: np.ndarray | None = None


class Pushed(NamedTuple):
    """What a closure pushed to a table: its commit, and what that counts; see `Reservation`."""

    write: Averaged
    admitted: np.ndarray | None
    commit: int
    weight: float


class _Room(Reservable):
    """The memory for the pushes to one table; those that may count have a `Promise` each.

    ``reserve`` checks a push, and gets the memory that it needs. ``average`` returns one push for
    several, each times its weight, and what makes it; equal ids are summed, in order. It lies in
    this room, is divided by ``total``, and has this norm of the whole gradient.
    """


class _BlendRoom(_Room):
    """Averages the composed blends of each closure."""

    def __init__(self, table: DenseTable) -> None:
        self._table = table
        self._got: list[np.ndarray] = []

    def reserve(self, push: Averaged) -> Reservation:
        assert isinstance(push, ops.BlendValues)
        self._table.reserve(push)  # a check; the memory is not kept
        if not self._got:
            shape, dtype = push.terms.shape, push.terms.dtype
            self._got = [scratch(shape, dtype) for _ in range(5)] + [scratch(shape, np.bool_)]
        return Reservation(self, [Promise([self], 1)])

    def average(self, pushes: Sequence[Pushed], total: float, norm: float | None) -> _Planned:
        shares, terms, own_shares, own_terms, kept, set_ = self._got
        shares[...] = terms[...] = 0
        for _, of_closure in groupby(pushes, attrgetter("commit")):
            own_shares[...] = own_terms[...] = 0
            for each in of_closure:
                assert isinstance(each.write, ops.BlendValues)
                compose(own_shares, own_terms, each.write, kept)
            own_shares *= each.weight
            own_terms *= each.weight
            shares += own_shares
            terms += own_terms
        np.divide(shares, total, out=shares)
        np.divide(terms, total, out=terms)
        make = partial(self._table.blend_in, shares, terms, kept, set_)
        return ops.BlendValues(shares, terms), make


class _VariableRoom(_Room):
    def __init__(self, table: DenseTable) -> None:
        self._table = table
        self._sum: np.ndarray | None = None
        self._block = np.empty(0)

    def reserve(self, push: Averaged) -> Reservation:
        assert isinstance(push, ops.PushGradient)
        self._table.reserve(push)  # takes no memory, but checks it
        if self._sum is None:
            self._block = scratch(min(_BLOCK, self._table.extent), push.gradient.dtype)
            self._sum = scratch(self._table.shape, push.gradient.dtype)
        return Reservation(self, [Promise([self], 1)])

    def average(self, pushes: Sequence[Pushed], total: float, norm: float | None) -> _Planned:
        assert self._sum is not None
        found = self._sum.reshape(-1)
        found[...] = 0
        rate, together = None, False
        ranges: np.ndarray | None = np.empty((0, 2), np.int64)
        for push, _, _, weight in pushes:
            assert isinstance(push, ops.PushGradient)
            self._add(push, weight)
            ranges = union(ranges, push.ranges)
            rate, together = push.rate, push.together
        gradient = self._sum if ranges is None else compacted(found, ranges)
        np.divide(gradient, total, out=gradient)
        averaged = ops.PushGradient(gradient, norm, rate, ranges, together)
        return averaged, self._table.reserve(averaged)

    def _add(self, push: ops.PushGradient, weight: float) -> None:
        assert self._sum is not None
        found, given = self._sum.reshape(-1), push.gradient.reshape(-1)
        if weight == 1.0:
            add_to(found, given, push.ranges)
            return
        size = max(1, self._block.size)
        for columns, part in pieces(whole(found.size) if push.ranges is None else push.ranges):
            for start in range(0, columns.stop - columns.start, size):
                some = given[part][start : start + size]
                room = self._block[: some.size]
                np.multiply(some, some.dtype.type(weight), out=room)
                found[columns][start : start + size] += room


class _RowsRoom(_Room):
    """Its arrays have an element, or row, for each id that was pushed."""

    def __init__(self, table: SparseTable) -> None:
        self._table = table
        self._ids = np.empty(0, np.uint64)
        self._found, self._position = np.empty(0, np.uint64), np.empty(0, np.intp)
        self._rows, self._heads = np.empty(0, np.int64), np.empty(0, np.int32)
        self._may = np.empty(0, np.bool_)
        self._sums = np.empty((0, table.dim), table.computed)

    def reserve(self, push: Averaged) -> Reservation:
        assert isinstance(push, ops.PushRows)
        self._table.check_push(push)
        count = self.promised + push.ids.size
        if count > self._ids.size:
            try:
                self._get(max(count, self._ids.size * 3 // 2))
            except MemoryError:
                self._get(count)
        rows = self._table.requested(push.ids, repeated=False)
        kept = [rows.promise, Promise([self], push.ids.size)]
        return Reservation(self, kept, rows.admitted)

    def average(self, pushes: Sequence[Pushed], total: float, norm: float | None) -> _Planned:
        rates, stop = None, 0
        for push, *_ in pushes:
            assert isinstance(push, ops.PushRows)
            start, stop = stop, stop + push.ids.size
            self._ids[start:stop] = push.ids
            rates = push.rates
        position = self._position[:stop]
        ids = read_only(self._ids[:stop])
        count = hashing.find_distinct(ids, self._found, position, self._heads)
        seen = stop = 0
        may = self._may[:0]
        for push, admitted, _, weight in pushes:
            assert isinstance(push, ops.PushRows)
            start, stop = stop, stop + push.ids.size
            part, factor = position[start:stop], self._sums.dtype.type(weight)
            _, seen = hashing.add_up(read_only(push.gradients), part, self._sums, seen, factor)
            if admitted is not None and admitted.size:
                may = self._may[:count]
                may[part] = admitted
        sums = self._sums[:count]
        np.divide(sums, total, out=sums)
        averaged = ops.PushRows(self._found[:count], sums, None, [norm], rates)
        return averaged, self._table.round_push(averaged, self._rows[:count], may)

    def _get(self, count: int) -> None:
        made = [scratch(count, kind) for kind in (np.uint64, np.uint64, np.intp, np.int64)]
        heads = scratch(hashing.heads_size(count), np.int32)
        may = scratch(count, np.bool_)
        self._sums = scratch((count, self._table.dim), self._table.computed)
        self._ids, self._found, self._position, self._rows = made
        self._heads, self._may = heads, may


RoundRoom = _BlendRoom | _VariableRoom | _RowsRoom
