"""OrderedLeases: which worker reads which part of a dataset, in an order that no worker changes.

For rounds of synchronous updates: which elements meet in a round must not depend on which worker is
faster, or dies. So the splits belong to slots, each to one, and closures take from the slot that
they were scheduled for, one after the other (`run_epoch` schedules them, `RoundGate` has one of a
slot run at a time). A closure goes on where the one before it in its slot has stopped. One that has
had no effect gives back what it took, at the place where that was. Pure, and thread-safe like its
base.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence, Set
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

from psnb._src.coordinator.scheduling.free_parts import SplitRange
from psnb._src.coordinator.scheduling.leases import EpochLeases, Turn


class _LatestTurn(NamedTuple):
    lease: int
    closure: int
    split: int


class OrderedLeases(EpochLeases):
    """The leases of one epoch whose splits are read in slots.

    A split is in the slot of its number modulo the number of slots. States are those of other
    epochs: with the same number of slots, an epoch goes on in the same order.

    Closures without a turn take what is free, in the order of the splits.

    Parameters
    ----------
    slots : int
        How many.
    splits, state, owners, dataset, order
        As for `EpochLeases`. If splits have owners, a closure takes from one split only: the next
        one may be another worker's.
    """

    def __init__(
        self,
        slots: int,
        splits: int,
        state: Mapping[str, Any] | None = None,
        owners: Mapping[int, str] | None = None,
        dataset: Mapping[str, Any] = MappingProxyType({}),
        order: Sequence[int] | None = None,
    ) -> None:
        self._slots = slots
        super().__init__(splits, state, owners, dataset, order)
        self._sorted_of: Collection[str] = ()
        self._sorted: list[str] = []  # the names of these workers
        self._turns: dict[int, _LatestTurn] = {}  # by slot

    def place(
        self, holders: Mapping[int, Set[str]], there: Mapping[int, bool] = MappingProxyType({})
    ) -> None:
        """Note where data is; a slot's order stays: who reads what is not there waits for it."""
        super().place(holders)

    def needed(self, ahead: int) -> list[int]:
        """Return the splits that are read or used now, and the next of each slot."""
        each = max(1, ahead // self._slots) if ahead else 0
        with self._lock:
            slots = range(self._slots)
            first = [part.split for slot in slots for part in islice(self._free.of(slot), each)]
        return list(dict.fromkeys((*super().needed(0), *first)))

    def lease(
        self,
        holder: Hashable,
        worker: str = "",
        present: Collection[str] = (),
        turn: Turn | None = None,
    ) -> tuple[int, SplitRange] | None:
        """Lease the next part of a closure's slot; see `EpochLeases.lease`.

        The holder that leased it last goes on with that lease, if it was not closed meanwhile.
        """
        if turn is None:
            return super().lease(holder, worker, present)
        with self._lock:
            slot, closure = turn
            number = self._open_in(slot)
            if number is not None and self._leases[number].holder != holder:
                self._close(number)
                number = None
            range_ = self._next_in(slot)
            latest = self._turns.get(slot)
            if range_ is None or (
                self._owners
                and latest is not None
                and latest.closure == closure
                and latest.split != range_.split
            ):
                return None
            if number is None:
                number, range_ = self._hold(range_, holder, worker, present)
            self._turns[slot] = _LatestTurn(number, closure, range_.split)
            return number, range_

    def suits(self, worker: str, present: Collection[str], slot: int | None = None) -> bool:
        """Return whether a worker should read a slot next.

        It is the owner of what comes next there. Without an owner, it is always the same worker, as
        long as the same ones are there: it goes on with what it has open.
        """
        if slot is None:
            return super().suits(worker, present)
        with self._lock:
            range_ = self._next_in(slot)
            owner = None if range_ is None else self._owners.get(range_.split)
            if owner in present:
                return worker == owner
            if range_ is not None and (here := self._here(range_, present)):
                return worker in here
            if present is not self._sorted_of:
                self._sorted_of, self._sorted = present, sorted(present)
            names = self._sorted
            return not names or worker == names[slot % len(names)]

    def slots(self) -> list[int]:
        """Return the slots in which there is something to read, in order."""
        with self._lock:
            open_ = {slot for slot in self._turns if self._open_in(slot) is not None}
            return [n for n in range(self._slots) if n in open_ or self._free.count(n)]

    def _lists_of(self, split: int) -> tuple[Hashable, ...]:
        """Return in which lists of free parts those of a split are: its slot's, too."""
        return (*super()._lists_of(split), split % self._slots)

    def _open_in(self, slot: int) -> int | None:
        latest = self._turns.get(slot)
        return latest.lease if latest is not None and latest.lease in self._leases else None

    def _next_in(self, slot: int) -> SplitRange | None:
        number = self._open_in(slot)
        if number is not None:
            lease = self._leases[number]
            return SplitRange(lease.range_.split, lease.state, lease.left)
        return self._free.first(slot)

    def _take_back(self, ranges: list[SplitRange]) -> None:
        for slot in {range_.split % self._slots for range_ in ranges}:
            if (number := self._open_in(slot)) is not None:
                self._close(number)
        self._free.add_first(ranges)
        self._note_absent(each.split for each in ranges)
