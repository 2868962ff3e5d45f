"""InFlight: the closures that workers have, and the numbers of their commits. Pure, without locks.

It is used under the queue's lock. A closure that was lost with its worker is *open* until it is
known whether it has had its effect (`psnb._src.coordinator.queue.fates` asks the servers). A server
that does not respond may hold that up for any time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from psnb._src.coordinator.closures import NOT_TAKEN, Closure, Execution, RemoteValue
from psnb._src.server import ENDED
from psnb._src.watermark import Watermark


class InFlight:
    """Closures that run or are open; `len` tells how many.

    Attributes
    ----------
    held_up : str
        What holds up open closures, or a gate's step; empty if nothing does, or if that was raised.
    """

    def __init__(self) -> None:
        self.held_up = ""
        self._running: dict[int, Closure] = {}
        self._open: dict[int, Closure] = {}
        self._commits = itertools.count()
        self._watermark = Watermark()  # of the commits

    def __len__(self) -> int:
        return len(self._running) + len(self._open)

    def running(self) -> bool:
        """Return whether any closure runs."""
        return bool(self._running)

    def open(self) -> int:
        """Return how many closures are open."""
        return len(self._open)

    def begin(self, closure: Closure) -> None:
        """Add a closure that a worker has got; the first time, its commit gets a number."""
        self._running[closure.id] = closure
        if closure.execution is NOT_TAKEN:
            closure.execution = Execution(next(self._commits))

    def find(self, remote: RemoteValue) -> tuple[Closure, bool] | None:
        """Return the closure of a remote value, and whether it runs, if it is here."""
        for closures in (self._running, self._open):
            for closure in closures.values():
                if closure.remote is remote:
                    return closure, closures is self._running
        return None

    def lose(self, closures: Iterable[Closure]) -> list[Closure]:
        """Let those closures be open that run, and return them."""
        lost = [each for each in closures if self._running.pop(each.id, None) is not None]
        self._open |= {each.id: each for each in lost}
        return lost

    def hold_up(self, trouble: str) -> None:
        """Note what holds up the open closures."""
        self.held_up = trouble
        for closure in self._open.values():
            closure.remote.hold_up(trouble)

    def give_back(self, closure: Closure) -> bool:
        """Remove a closure that its worker has not begun; return whether it was running."""
        return self._running.pop(closure.id, None) is not None

    def take_back(self, closure: Closure) -> bool:
        """Remove a closure whose outcome is known; return whether it was running or open."""
        found = self._running.pop(closure.id, None) or self._open.pop(closure.id, None)
        if not self._open:
            self.held_up = ""
        if found is None:
            return False  # it has ended: its outcome stays
        closure.remote.hold_up("")
        return True

    def take_all(self) -> list[Closure]:
        """Remove and return all closures."""
        closures = [*self._running.values(), *self._open.values()]
        self._running.clear()
        self._open.clear()
        return closures

    def end(self, closure: Closure) -> None:
        """Note that a closure that was begun at least once has ended for good."""
        self._watermark.end(closure.execution.commit)

    def settled_below(self) -> int:
        """Return the commit number below which every closure has ended, in whatever order."""
        return self._watermark.low

    def closed_attempts(self, waiting: Iterable[Closure]) -> dict[int, int]:
        """Return the attempts that were begun, of commits from `settled_below` on.

        Parameters
        ----------
        waiting : iterable of Closure
            Closures that wait, some of them to run again.
        """
        attempts = dict.fromkeys(self._watermark.ended(), ENDED)
        for closure in waiting:
            if closure.execution is not NOT_TAKEN:
                attempts[closure.execution.commit] = closure.execution.attempt - 1
        for closure in self._open.values():
            attempts[closure.execution.commit] = closure.execution.attempt
        return attempts
