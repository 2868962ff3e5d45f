"""RoundGate: closures in rounds, for synchronous updates. Pure; guarded by the queue's lock."""

from __future__ import annotations

from psnb._src.coordinator.closures import Closure
from psnb._src.coordinator.queue.gate import ApplyRound, Gate


class RoundGate(Gate):
    """Lets a round begin when the one before it has been applied.

    A round has a number of seats. A closure takes a seat when it begins, and keeps it when it ends.
    A closure that was lost with its worker and has had no effect gives its seat up. As the first in
    the queue it takes the seat again, unless a closure of a higher priority does: then it runs in a
    later round. Of the closures of one lane of an epoch (`OrderedLeases`), one runs at a time.

    Parameters
    ----------
    closures : int
        The number of seats.

    Attributes
    ----------
    round : int
        The round under way, from 0.
    """

    limits = True
    round: int

    def __init__(self, closures: int) -> None:
        self.round = 0
        self._size = closures
        self._taken = 0
        self._running: dict[int, int | None] = {}  # by id, the lane
        self._pushed: dict[int, int] = {}  # by id, the commit
        self._over = False  # to be applied; nothing begins
        self._applying = False

    def open(self) -> bool:
        return not self._over and self._taken < self._size

    def admits(self, closure: Closure) -> bool:
        lane = closure.options.lane
        return self.open() and (lane is None or lane not in self._running.values())

    def begin(self, closure: Closure) -> None:
        self._taken += 1
        self._running[closure.id] = closure.options.lane

    def put_back(self, closure: Closure) -> None:
        self._running.pop(closure.id, None)
        self._taken -= 1

    def end(self, closure: Closure, *, pushed: bool) -> None:
        if closure.id not in self._running:
            return  # cancelled while it waited to run again
        del self._running[closure.id]
        if pushed:
            self._pushed[closure.id] = closure.execution.commit
        if self._taken == self._size and not self._running:
            self._end_round()

    def midway(self) -> bool:
        return 0 < self._taken < self._size

    def finish(self) -> None:
        if self._taken and not self._running:
            self._end_round()

    def complete(self) -> bool:
        return not self._taken

    def due(self) -> ApplyRound | None:
        if not self._over or self._applying:
            return None
        self._applying = True
        # As they were scheduled: which worker is free first decides when each begins.
        return ApplyRound(self.round, tuple(commit for _, commit in sorted(self._pushed.items())))

    def stepped(self) -> None:
        self.round += 1
        self._taken = 0
        self._pushed = {}
        self._over = self._applying = False

    def _end_round(self) -> None:
        if self._pushed:
            self._over = True
        else:
            self.stepped()  # there is nothing to apply
