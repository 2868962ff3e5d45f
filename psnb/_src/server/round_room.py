"""RoundRoom: the memory in which what closures pushed in a round is averaged. Pure.

Reserved with each push: the end of a round cannot fail any more, as other servers end it too.
Reservations for pushes that do not count in the end are not used.

Not thread-safe; the server's one thread is its only user.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from psnb._src.server import hashing
from psnb._src.server.kernels import read_only
from psnb._src.server.memory import Promise, scratch
from psnb._src.server.tables.dense import DenseTable, compose
from psnb._src.server.tables.operations import BlendValues, Push, PushGradient, PushRows
from psnb._src.server.tables.presence import add_to, compacted, pieces, union, whole
from psnb._src.server.tables.sparse import SparseTable
from psnb._src.server.tables.table import Table
from psnb.errors import InternalError


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
        Which of the ids may have a row; see `SparseTable.admitted`.
    """

    room: RoundRoom
    kept: Sequence[Promise] = ()
    admitted: np.ndarray | None = None


_BLOCK = 1 << 14
"""Numbers that are multiplied by a weight at a time."""

Averaged = Push | BlendValues
"""What is averaged at the end of a round."""


class Pushed(NamedTuple):
    """What a closure pushed to a table.

    Attributes
    ----------
    write : Push or BlendValues
        It.
    reservation : Reservation
        The memory for it.
    commit : int
        Of which closure it is.
    weight : float
        What it counts.
    """

    write: Averaged
    reservation: Reservation
    commit: int
    weight: float = 1.0


class RoundRoom(ABC):
    """The memory for the pushes to one table.

    Attributes
    ----------
    promises, promised : int
        How many pushes there are that may count, and how much they need in all.
    """

    def __init__(self) -> None:
        self.promises = self.promised = 0

    @abstractmethod
    def reserve(self, push: Averaged) -> Reservation:
        """Check a push, and get the memory that it needs.

        Raises
        ------
        MemoryError
            If there is none.
        """

    @abstractmethod
    def average(self, pushes: Sequence[Pushed], total: float, norm: float | None) -> Averaged:
        """Return one push for several, each times its weight; equal ids are summed, in order.

        It lies in this room, is divided by ``total``, and has this norm of the whole gradient.
        """

    @abstractmethod
    def planned(self, push: Averaged) -> Callable[[], None]:
        """Return what makes the push that `average` has returned."""


def room_for(table: Table, blends: bool) -> RoundRoom:
    """Return an empty room for the pushes to a table, or for its blends."""
    if isinstance(table, SparseTable) and not blends:
        return _RowsRoom(table)
    if isinstance(table, DenseTable):
        return _BlendRoom(table) if blends else _VariableRoom(table)
    raise InternalError(f"nothing is pushed to {type(table).__name__}")


class _BlendRoom(RoundRoom):
    """Averages the composed blends of each closure."""

    def __init__(self, table: DenseTable) -> None:
        super().__init__()
        self._table = table
        self._got: list[np.ndarray] = []

    def reserve(self, push: Averaged) -> Reservation:
        assert isinstance(push, BlendValues)
        self._table.reserve(push)  # a check; the memory is not kept
        if not self._got:
            shape, dtype = push.terms.shape, push.terms.dtype
            self._got = [scratch(shape, dtype) for _ in range(5)] + [scratch(shape, np.bool_)]
        return Reservation(self, [Promise(self, 1)])

    def average(self, pushes: Sequence[Pushed], total: float, norm: float | None) -> BlendValues:
        shares, terms, own_shares, own_terms, kept, _ = self._got
        shares[...] = terms[...] = 0
        for _, of_closure in groupby(pushes, attrgetter("commit")):
            own_shares[...] = own_terms[...] = 0
            for each in of_closure:
                assert isinstance(each.write, BlendValues)
                compose(own_shares, own_terms, each.write, kept)
            own_shares *= each.weight
            own_terms *= each.weight
            shares += own_shares
            terms += own_terms
        np.divide(shares, total, out=shares)
        np.divide(terms, total, out=terms)
        return BlendValues(shares, terms)

    def planned(self, push: Averaged) -> Callable[[], None]:
        assert isinstance(push, BlendValues)
        return partial(self._table.blend_in, push.shares, push.terms, *self._got[-2:])


class _VariableRoom(RoundRoom):
    def __init__(self, table: DenseTable) -> None:
        super().__init__()
        self._table = table
        self._sum: np.ndarray | None = None
        self._block = np.empty(0)

    def reserve(self, push: Averaged) -> Reservation:
        assert isinstance(push, PushGradient)
        self._table.reserve(push)  # takes no memory, but checks it
        if self._sum is None:
            self._block = scratch(min(_BLOCK, self._table.extent), push.gradient.dtype)
            self._sum = scratch(self._table.shape, push.gradient.dtype)
        return Reservation(self, [Promise(self, 1)])

    def average(self, pushes: Sequence[Pushed], total: float, norm: float | None) -> Push:
        assert self._sum is not None
        found = self._sum.reshape(-1)
        found[...] = 0
        rate, together = None, False
        ranges: np.ndarray | None = np.empty((0, 2), np.int64)
        for push, _, _, weight in pushes:
            assert isinstance(push, PushGradient)
            self._add(push, weight)
            ranges = union(ranges, push.ranges)
            rate, together = push.rate, push.together
        gradient = self._sum if ranges is None else compacted(found, ranges)
        np.divide(gradient, total, out=gradient)
        return PushGradient(gradient, norm, rate, ranges, together)

    def _add(self, push: PushGradient, weight: float) -> None:
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

    def planned(self, push: Averaged) -> Callable[[], None]:
        assert isinstance(push, PushGradient)
        return self._table.reserve(push)


class _RowsRoom(RoundRoom):
    """Its arrays have an element, or row, for each id that was pushed."""

    def __init__(self, table: SparseTable) -> None:
        super().__init__()
        self._table = table
        self._ids = np.empty(0, np.uint64)
        self._found, self._position = np.empty(0, np.uint64), np.empty(0, np.intp)
        self._rows, self._heads = np.empty(0, np.int64), np.empty(0, np.int32)
        self._may = np.empty(0, np.bool_)
        self._sums = np.empty((0, table.dim), table.dtype)
        self._admitted = self._may[:0]

    def reserve(self, push: Averaged) -> Reservation:
        assert isinstance(push, PushRows)
        self._table.check_push(push)
        self._fit(self.promised + push.ids.size)
        admitted = self._table.admitted(push.ids)
        rows = self._table.promise(push.ids)
        return Reservation(self, [rows, Promise(self, push.ids.size)], admitted)

    def average(self, pushes: Sequence[Pushed], total: float, norm: float | None) -> Push:
        rate, stop = None, 0
        for push, *_ in pushes:
            assert isinstance(push, PushRows)
            start, stop = stop, stop + push.ids.size
            self._ids[start:stop] = push.ids
            rate = push.rate
        position = self._position[:stop]
        ids = read_only(self._ids[:stop])
        count = hashing.find_distinct(ids, self._found, position, self._heads)
        seen = stop = 0
        self._admitted = self._may[:0]
        for push, reserved, _, weight in pushes:
            assert isinstance(push, PushRows)
            start, stop = stop, stop + push.ids.size
            part, factor = position[start:stop], self._sums.dtype.type(weight)
            _, seen = hashing.add_up(read_only(push.gradients), part, self._sums, seen, factor)
            if reserved.admitted is not None and reserved.admitted.size:
                self._admitted = self._may[:count]
                self._admitted[part] = reserved.admitted
        sums = self._sums[:count]
        np.divide(sums, total, out=sums)
        return PushRows(self._found[:count], sums, norm, distinct=True, rate=rate)

    def planned(self, push: Averaged) -> Callable[[], None]:
        assert isinstance(push, PushRows)
        return self._table.round_push(push, self._rows[: push.ids.size], self._admitted)

    def _fit(self, count: int) -> None:
        """Get the memory for ``count`` ids in all."""
        if count <= self._ids.size:
            return
        try:
            self._get(max(count, self._ids.size * 3 // 2))
        except MemoryError:
            self._get(count)

    def _get(self, count: int) -> None:
        made = [scratch(count, kind) for kind in (np.uint64, np.uint64, np.intp, np.int64)]
        heads = scratch(hashing.heads_size(count), np.int32)
        may = scratch(count, np.bool_)
        self._sums = scratch((count, self._table.dim), self._table.dtype)
        self._ids, self._found, self._position, self._rows = made
        self._heads, self._may = heads, may
