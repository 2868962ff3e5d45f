"""LeaseRequests: what a step asks the coordinator about leases, and reports of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from psnb._src.data.iterator import DatasetIterator
from psnb._src.protocol.messages import AskLease, BeginLease, Lease, ReturnLease, Taken, TakenRange
from psnb._src.worker.taken import TakenElements
from psnb.errors import ClosureCancelledError, DatasetError

LeaseInquiry = AskLease | BeginLease | ReturnLease


ASK_TIMEOUT = 60.0
"""Seconds in which the coordinator must answer; if it cannot, the session ends long before."""


@dataclass
class Replay:
    """A range that a closure takes again."""

    range_: TakenRange
    iterator: DatasetIterator
    at: int = 0  # how many elements were taken


class LeaseRequests:
    """What one attempt at a closure takes from leased datasets; for its thread only.

    Parameters
    ----------
    closure : int
        The closure.
    ask : callable
        Sends a question to the coordinator, if there are slots after all that was reported before,
        and returns the answer's future.
    report : callable
        Takes what is to be reported to the coordinator; does not wait.
    ranges : sequence of TakenRange
        What earlier attempts have taken: this one takes that first.
    slot : int, optional
        Where it takes from, in an epoch that has an order.

    Attributes
    ----------
    slot : int or None
        As given.
    ended : bool
        Whether some dataset had nothing to take.
    latest : str
        Which element was taken last, from any dataset, for messages; empty if none was.
    used : list of Taken
        What was taken, from whatever leases.
    taken : TakenElements
        What was taken, from leased and from other iterators.
    replays : dict of int to Replay
        By epoch, the range that is being taken again.
    """

    def __init__(
        self,
        closure: int,
        ask: Callable[[LeaseInquiry], Future[Any]],
        report: Callable[[Taken], object],
        ranges: Iterable[TakenRange],
        slot: int | None = None,
    ) -> None:
        self._closure, self._ask, self._report, self.slot = closure, ask, report, slot
        self._again = list(ranges)
        self._given: set[tuple[int, int]] = set()  # epochs and numbers of leases
        self.used: list[Taken] = []
        self.ended = False
        self.latest = ""
        self.taken = TakenElements()
        self.replays: dict[int, Replay] = {}

    def again(self, epoch: int) -> TakenRange | None:
        """Return the next range to be taken again from an epoch."""
        for range_ in self._again:
            if range_.epoch == epoch:
                self._again.remove(range_)
                return range_
        return None

    def lease(self, epoch: int) -> Lease | None:
        """Ask for a lease; None if there is nothing to read now."""
        found: Lease | None
        found = self._ask(AskLease(epoch, self._closure, self.slot)).result(ASK_TIMEOUT)
        if found is not None:
            self._given.add((epoch, found.number))
        return found

    def begin(self, epoch: int, lease: int, state: Any, partitions: list[list[Any]]) -> None:
        """Say where a lease begins; see `BeginLease`.

        Raises
        ------
        ClosureCancelledError
            If the coordinator has given this worker up.
        DatasetError
            If what it reads has changed since another part of it was read.
        """
        answer = self._ask(BeginLease(epoch, lease, state, partitions)).result(ASK_TIMEOUT)
        if isinstance(answer, str):
            raise DatasetError(answer)
        if not answer:
            raise ClosureCancelledError("the coordinator has given this worker up")

    def return_(self, epoch: int, lease: int) -> None:
        """Have what is left of a lease leased again; does not wait."""
        self._ask(ReturnLease(epoch, lease))

    def may_read(self, epoch: int, lease: int) -> bool:
        """Return whether this may take from a lease: one of a slot only if it was given to it."""
        return self.slot is None or (epoch, lease) in self._given

    def take(self, epoch: int, lease: int, at: int, size: int, after: Any, ended: bool) -> None:
        """Note that the next elements of a lease are taken; see `Taken`."""
        taken = Taken(epoch, lease, self._closure, at, size, after, ended)
        self.used.append(taken)
        self._report(taken)
