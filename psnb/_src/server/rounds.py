"""Rounds: the pushes of closures in rounds of synchronous updates, until they are applied. Pure.

Pushes are kept by closure, not summed as they come. So only closures that have completed count, and
the sum is taken in the order in which the notebook names them: it is the same each time to the last
digit. The memory for it is reserved with each push (`psnb._src.server.round_room`): a closure whose
push has none fails, and the round ends without it.

Not thread-safe; the server's one thread is its only user.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from psnb._src.server import kernels
from psnb._src.server.round_room import Pushed, RoundRoom, room_for
from psnb._src.server.tables.operations import (
    BlendValues,
    OnTable,
    Push,
    PushGradient,
    PushRows,
    RoundWeights,
)
from psnb._src.server.tables.table import ReservedWrite, Table


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
            The tables that the round changes; writes to others are left out.
        norms : mapping of str to float, optional
            The norms of whole gradients, by table, where they are known.
        weights : RoundWeights, optional
            The weight of each closure.
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
                operation, reserved = each.write.operation, each.reservation
                if isinstance(operation, Push | BlendValues):
                    pushed = Pushed(operation, reserved, commit, weight)
                    averaged.setdefault((each.write.table, reserved.room), []).append(pushed)
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
