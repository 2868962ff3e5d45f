"""Reading: what workers of the simulated world take from a leased dataset.

As `psnb._src.worker.leasing` does, which needs threads. An element is the number of its split and
its position there, which is the state of the split's iterator, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psnb._src.protocol.messages import AskLease, BeginLease, Lease, Taken, TakenRange

if TYPE_CHECKING:
    from tests.model.workers import Worker

Element = tuple[int, int]


class Reading:
    """What one attempt at a step takes.

    Parameters
    ----------
    number : int
        The step's.
    ranges : iterable of TakenRange
        What earlier attempts have taken: this one takes that first.
    slot : int, optional
        Where it takes from, in an epoch that has an order.

    Attributes
    ----------
    elements : list of tuple
        All that it has taken.
    used : list of Taken
        What servers must know of it.
    ended : bool
        Whether there was nothing to take.
    given : set of int
        The numbers of the leases that it was given.
    """

    def __init__(self, number: int, ranges: Iterable[TakenRange], slot: int | None = None) -> None:
        self.number, self.slot = number, slot
        self._again = deque(each for each in ranges if each.closure == number)
        self._at = 0  # in the first of them
        self.elements: list[Element] = []
        self.used: list[Taken] = []
        self.ended = False
        self.given: set[int] = set()

    def take_again(self) -> Taken | None:
        """Take one more element of what an earlier attempt has taken, if there is one."""
        if not self._again:
            return None
        range_, at = self._again[0], self._at
        first = range_.state or 0
        self.elements.append((range_.split, first + at))
        self._at, ended = at + 1, at + 1 == range_.count
        if ended:
            self._again.popleft()
            self._at = 0
        taken = Taken(range_.epoch, range_.lease, self.number, at, 1, first + at + 1, ended)
        self.used.append(taken)
        return taken


@dataclass
class _OpenLease:
    number: int
    split: int
    position: int
    left: int | None
    at: int = 0  # how many elements were taken


class Reader:
    """The iterator of a slot, or without one, on a worker: one step at a time asks for a lease.

    Parameters
    ----------
    worker : Worker
        Whose.
    epoch : int
        The epoch's number.
    sizes : sequence of int
        How many elements each split has.
    """

    def __init__(self, worker: Worker, epoch: int, sizes: Sequence[int]) -> None:
        self._worker, self._epoch, self._sizes = worker, epoch, sizes
        self._waiting: deque[tuple[Reading, Callable[[], None]]] = deque()
        self._asking = False
        self._lease: _OpenLease | None = None

    def next(self, reading: Reading, then: Callable[[], None]) -> None:
        """Take one more element, if there is one, and go on."""
        if (again := reading.take_again()) is not None:
            self._worker.taken.append(again)
            then()
            return
        self._waiting.append((reading, then))
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and not self._asking:
            reading, then = self._waiting[0]
            asks = reading.slot is not None and self._lease_number() not in reading.given
            if self._lease is None or asks:
                self._asking = True
                if reading.slot is not None:
                    self._worker.tell()  # the answer depends on it
                self._worker.ask(AskLease(self._epoch, reading.number, reading.slot), self._leased)
            elif self._take(reading, self._lease):
                self._waiting.popleft()
                then()

    def _lease_number(self) -> int | None:
        return None if self._lease is None else self._lease.number

    def _leased(self, lease: Lease | None) -> None:
        if lease is not None:
            self._waiting[0][0].given.add(lease.number)
        if lease is None:
            self._asking = False
            reading, then = self._waiting.popleft()
            reading.ended = True
            then()
            self._go_on()
        elif lease.number == self._lease_number():
            self._asking = False
            self._go_on()
        elif lease.state is None:
            begin = BeginLease(self._epoch, lease.number, 0, [])
            self._worker.ask(begin, lambda answer: self._begin(lease, answer))
        else:
            self._begin(lease, True)

    def _begin(self, lease: Lease, answer: object) -> None:
        if answer is not True:
            # Its closure was cancelled, and the next one of the slot has leased that meanwhile.
            assert self._waiting[0][0].number in self._worker.notebook.leases._over
            self._leased(None)
            return
        self._asking = False
        self._lease = _OpenLease(lease.number, lease.split, lease.state or 0, lease.count)
        self._go_on()

    def _take(self, reading: Reading, lease: _OpenLease) -> bool:
        if lease.left is None and lease.position == self._sizes[lease.split]:
            self._note(reading, lease, 0, None, True)
            return False
        reading.elements.append((lease.split, lease.position))
        lease.position += 1
        if lease.left is not None:
            lease.left -= 1
        self._note(reading, lease, 1, lease.position, lease.left == 0)
        return True

    def _note(
        self, reading: Reading, lease: _OpenLease, size: int, after: int | None, ended: bool
    ) -> None:
        taken = Taken(self._epoch, lease.number, reading.number, lease.at, size, after, ended)
        reading.used.append(taken)
        self._worker.taken.append(taken)
        lease.at += size
        if ended:
            self._lease = None
