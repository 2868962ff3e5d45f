"""OrderedLeases: which worker reads which part of a dataset, in an order that no worker changes.

For rounds of synchronous updates: which elements meet in a round must not depend on which worker is
faster, or dies. So the splits belong to lanes, each to one, and closures take from the lane that
they were scheduled for, one after the other (`run_epoch` schedules them, `RoundGate` has one of a
lane run at a time). A closure goes on where the one before it in its lane has stopped. One that has
had no effect gives back what it took, at the place where that was. Pure, and thread-safe like its
base.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from psnb._src.coordinator.datasets.leases import EpochLeases, LeasedPart, Turn


class _LatestTurn(NamedTuple):
    lease: int
    closure: int
    split: int


class OrderedLeases(EpochLeases):
    """The leases of one epoch whose splits are read in lanes.

    A split is in the lane of its number modulo the number of lanes. States are those of other
    epochs: with the same number of lanes, an epoch goes on in the same order.

    Closures without a turn take what is free, in the order of the splits.

    Parameters
    ----------
    lanes : int
        How many.
    splits, state, owners, dataset
        As for `EpochLeases`. If splits have owners, a closure takes from one split only: the next
        one may be another worker's.
    """

    def __init__(
        self,
        lanes: int,
        splits: int,
        state: Mapping[str, Any] | None = None,
        owners: Mapping[int, str] | None = None,
        dataset: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(splits, state, owners, dataset)
        self._count = lanes
        self._turns: dict[int, _LatestTurn] = {}  # by lane

    def lease(
        self,
        holder: Hashable,
        worker: str = "",
        present: Collection[str] = (),
        turn: Turn | None = None,
    ) -> tuple[int, LeasedPart] | None:
        """Lease the next part of a closure's lane; see `EpochLeases.lease`.

        The holder that leased it last goes on with that lease, if it was not closed meanwhile.
        """
        if turn is None:
            return super().lease(holder, worker, present)
        with self._lock:
            lane, closure = turn
            number = self._open_in(lane)
            if number is not None and self._leases[number].holder != holder:
                self._close(number)
                number = None
            piece = self._next_in(lane)
            latest = self._turns.get(lane)
            if piece is None or (
                self._owners
                and latest is not None
                and latest.closure == closure
                and latest.split != piece.split
            ):
                return None
            if number is None:
                number, piece = self._hold(piece, holder, worker, present)
            self._turns[lane] = _LatestTurn(number, closure, piece.split)
            return number, piece

    def suits(self, worker: str, present: Collection[str], lane: int | None = None) -> bool:
        """Return whether a worker should read a lane next.

        It is the owner of what comes next there. Where nobody is, it is always the same worker, as
        long as the same ones are there: it goes on with what it has open.
        """
        if lane is None:
            return super().suits(worker, present)
        with self._lock:
            piece = self._next_in(lane)
            owner = None if piece is None else self._owners.get(piece.split)
            if owner in present:
                return worker == owner
            names = sorted(present)
            return not names or worker == names[lane % len(names)]

    def lanes(self) -> list[int]:
        """Return the lanes in which there is something to read, in order."""
        with self._lock:
            open_ = [lane for lane in self._turns if self._open_in(lane) is not None]
            return sorted({*open_, *(piece.split % self._count for piece in self._free)})

    def _open_in(self, lane: int) -> int | None:
        latest = self._turns.get(lane)
        return latest.lease if latest is not None and latest.lease in self._leases else None

    def _next_in(self, lane: int) -> LeasedPart | None:
        number = self._open_in(lane)
        if number is not None:
            lease = self._leases[number]
            return LeasedPart(lease.piece.split, lease.state, lease.left)
        return next((each for each in self._free if each.split % self._count == lane), None)

    def _take_back(self, portions: list[LeasedPart]) -> None:
        for lane in {portion.split % self._count for portion in portions}:
            if (number := self._open_in(lane)) is not None:
                self._close(number)
        self._free.extendleft(reversed(portions))
