"""Rounds: what closures pushed in rounds of synchronous updates, until it is applied. Pure.

Pushes are kept by closure, not summed as they come. So only closures that have completed count, and
the sum is taken in the order in which the notebook names them: it is the same each time to the last
digit. The memory for it is got with each push (`psnb._src.server.rounds`): a closure whose push
has none fails, and the round ends without it.

Not thread-safe; the server's one thread is its only user.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import msgspec
import numpy as np

from psnb._src.server import kernels
from psnb._src.server.dense import DenseTable, compose
from psnb._src.server.kernels import read_only
from psnb._src.server.memory import Promise, scratch
from psnb._src.server.presence import add_to, compacted, pieces, union, whole
from psnb._src.server.sparse import SparseTable
from psnb._src.server.table import (
    BlendValues,
    OnTable,
    Push,
    PushGradient,
    PushRows,
    ReservedWrite,
    RoundWeights,
    Table,
)
from psnb.errors import InternalError

# RoundRoom: the memory in which what closures pushed in a round is averaged. Pure.
#
# It is got with each push: the end of a round cannot fail any more, as other servers end it too.
# What was reserved for pushes that do not count in the end is not used.
#
# Not thread-safe; the server's one thread is its only user.


@dataclass(slots=True, eq=False)
class Share:
    """What one push needs of a `RoundRoom`, which has it as long as there is a reference to this.

    Attributes
    ----------
    room : RoundRoom
        The room.
    kept : sequence of Promise
        Keep the room, and the room for new rows of the table.
    may : numpy.ndarray
        Which of the ids may have a row; see `SparseTable.admitted`.
    """

    room: RoundRoom
    kept: Sequence[Promise] = ()
    may: np.ndarray | None = None


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
    share : Share
        The memory for it.
    commit : int
        Of which closure it is.
    weight : float
        What it counts.
    """

    write: Averaged
    share: Share
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
    def share(self, push: Averaged) -> Share:
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
    """Averages what the blends of each closure come to, one after the other."""

    def __init__(self, table: DenseTable) -> None:
        super().__init__()
        self._table = table
        self._got: list[np.ndarray] = []

    def share(self, push: Averaged) -> Share:
        assert isinstance(push, BlendValues)
        self._table.reserve(push)  # checks it; what that gets is not kept
        if not self._got:
            shape, dtype = push.terms.shape, push.terms.dtype
            self._got = [scratch(shape, dtype) for _ in range(5)] + [scratch(shape, np.bool_)]
        return Share(self, [Promise(self, 1)])

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

    def share(self, push: Averaged) -> Share:
        assert isinstance(push, PushGradient)
        self._table.reserve(push)  # takes no memory, but checks it
        if self._sum is None:
            self._block = scratch(min(_BLOCK, self._table.extent), push.gradient.dtype)
            self._sum = scratch(self._table.shape, push.gradient.dtype)
        return Share(self, [Promise(self, 1)])

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

    def share(self, push: Averaged) -> Share:
        assert isinstance(push, PushRows)
        self._table.check_push(push)
        self._fit(self.promised + push.ids.size)
        may = self._table.admitted(push.ids)
        rows = self._table.promise(push.ids)
        return Share(self, [rows, Promise(self, push.ids.size)], may)

    def average(self, pushes: Sequence[Pushed], total: float, norm: float | None) -> Push:
        rate, stop = None, 0
        for push, *_ in pushes:
            assert isinstance(push, PushRows)
            start, stop = stop, stop + push.ids.size
            self._ids[start:stop] = push.ids
            rate = push.rate
        position = self._position[:stop]
        ids = read_only(self._ids[:stop])
        count = kernels.find_distinct(ids, self._found, position, self._heads)
        seen = stop = 0
        self._admitted = self._may[:0]
        for push, share, _, weight in pushes:
            assert isinstance(push, PushRows)
            start, stop = stop, stop + push.ids.size
            part, factor = position[start:stop], self._sums.dtype.type(weight)
            _, seen = kernels.add_up(read_only(push.gradients), part, self._sums, seen, factor)
            if share.may is not None and share.may.size:
                self._admitted = self._may[:count]
                self._admitted[part] = share.may
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
        heads = scratch(kernels.heads_size(count), np.int32)
        may = scratch(count, np.bool_)
        self._sums = scratch((count, self._table.dim), self._table.dtype)
        self._ids, self._found, self._position, self._rows = made
        self._heads, self._may = heads, may


@dataclass
class _RoundWriter:
    round: int = 0  # all rounds below it are over
    held: dict[int, Sequence[ReservedWrite]] = field(default_factory=dict)


class Rounds:
    """Keeps what closures pushed, by writer and commit number."""

    def __init__(self) -> None:
        self._writers: dict[str, _RoundWriter] = {}
        # Those of the latest round are kept: to get new memory costs as much as to fill it.
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

    def writes(self) -> Iterator[ReservedWrite]:
        """Yield all writes that are kept."""
        for each in self._writers.values():
            for writes in each.held.values():
                yield from writes

    def leave_out(self, table: str) -> None:
        """Forget what was to be written to a table."""
        for each in self._writers.values():
            each.held = {
                commit: [write for write in writes if write.write.table != table]
                for commit, writes in each.held.items()
            }

    def over(self, writer: str, number: int) -> bool:
        """Return whether a round is over; pushes that come now are too late."""
        return writer in self._writers and number < self._writers[writer].round

    def reserve(self, table: Table, write: OnTable) -> ReservedWrite:
        """Get all memory that a write will need at the end of its round.

        Raises
        ------
        MemoryError
            If there is none.
        """
        operation = write.operation
        if not isinstance(operation, Push | BlendValues):
            return ReservedWrite(write, table.reserve(operation))
        key = table, isinstance(operation, BlendValues)
        room = self._rooms.get(key)
        if room is None:
            room = self._rooms[key] = room_for(*key)
        return ReservedWrite(write, share=room.share(operation))

    def collect(self, writer: str, commit: int, writes: Sequence[ReservedWrite]) -> None:
        """Keep what a closure pushed; the first call with a number counts."""
        self._writers.setdefault(writer, _RoundWriter()).held.setdefault(commit, list(writes))

    def averages(
        self,
        writer: str,
        closures: Sequence[int],
        tables: Mapping[str, Table],
        norms: Mapping[str, float] | None = None,
        weights: RoundWeights | None = None,
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
            Those that it is about; what was written to others is left out.
        norms : mapping of str to float, optional
            The norms of whole gradients, by table, where they are known.
        weights : RoundWeights, optional
            What each of the closures counts.
        """
        if weights is None:
            weights = RoundWeights([1.0] * len(closures), float(len(closures)))
        held = self._writers[writer].held if writer in self._writers else {}
        averaged: dict[tuple[str, RoundRoom], list[Pushed]] = {}
        others: list[ReservedWrite] = []
        for commit, weight in zip(closures, weights.each, strict=True):
            for each in held.get(commit, ()):
                if each.write.table not in tables:
                    continue
                operation, share = each.write.operation, each.share
                if isinstance(operation, Push | BlendValues):
                    pushed = Pushed(operation, share, commit, weight)
                    averaged.setdefault((each.write.table, share.room), []).append(pushed)
                else:
                    others.append(each)
        found = []
        for (name, room), several in averaged.items():
            write = room.average(several, weights.total, (norms or {}).get(name))
            found.append(ReservedWrite(OnTable(name, write), room.planned(write)))
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

    def nbytes(self) -> int:
        """Return the bytes of the arrays that are kept."""
        return sum(
            array.nbytes
            for each in self.writes()
            for array in msgspec.structs.astuple(each.write.operation)
            if isinstance(array, np.ndarray)
        )


def square_norm(push: Push) -> float:
    """Return the square of the norm of an averaged push, taken in double precision."""
    assert isinstance(push, PushRows | PushGradient)
    return kernels.square_norm(push.gradients if isinstance(push, PushRows) else push.gradient)
