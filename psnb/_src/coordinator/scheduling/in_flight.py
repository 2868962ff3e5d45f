"""InFlight: the closures that workers have, and the numbers of their commits. Pure, without locks.

Only the scheduler changes it. A closure that was lost with its worker is *open* until it is known
whether it has had its effect (`psnb._src.coordinator.workers.resolve` asks the servers). A server
that does not respond may hold that up for any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from psnb._src.coordinator.closures.remote_value import RemoteValue
from psnb._src.coordinator.scheduling.work import NOT_TAKEN, Execution, Work
from psnb._src.utils.range_set import RangeSet


class InFlight:
    """Closures that run or are open; `len` is their number.

    Attributes
    ----------
    blocked_by : str
        What holds up open closures, or a gate's step; empty if nothing does, or if that was raised.
    settled : RangeSet
        Numbers of commits of closures that have ended, in whatever order.
    unreported : int
        How many of these the servers have not heard of; back to 0 when they are reported.
    """

    def __init__(self) -> None:
        self.blocked_by = ""
        self._running: dict[int, Work] = {}
        self._open: dict[int, Work] = {}
        self._commits = 0  # that have a number
        self.settled, self.unreported = RangeSet(), 0

    def __len__(self) -> int:
        return len(self._running) + len(self._open)

    def running(self) -> bool:
        """Return whether any closure runs."""
        return bool(self._running)

    def open(self) -> int:
        """Return how many closures are open."""
        return len(self._open)

    def begin(self, closure: Work) -> None:
        """Add a closure that a worker has got; the first time, its commits get numbers."""
        self._running[closure.id] = closure
        if closure.execution is NOT_TAKEN:
            closure.execution = Execution(self._commits)
            self._commits += closure.granted

    def has(self, closure: Work) -> bool:
        """Return whether a closure runs or is open."""
        return closure.id in self._running or closure.id in self._open

    def __iter__(self) -> Iterator[Work]:
        """Iterate over all."""
        return chain(self._running.values(), self._open.values())

    def advance(self, closure: Work, steps: int) -> None:
        """Note that the next steps are done."""
        execution = closure.execution
        first, execution.commit = execution.commit, execution.commit + steps
        self._settle(range(first, execution.commit))
        execution.done += steps
        execution.deaths = 0
        if execution.kept:
            execution.kept = {
                commit: each for commit, each in execution.kept.items() if commit >= first + steps
            }

    def find(self, remote: RemoteValue) -> tuple[Work, bool] | None:
        """Return the closure of a remote value, and whether it runs, if it is here."""
        for closures in (self._running, self._open):
            for closure in closures.values():
                if closure.remote is remote:
                    return closure, closures is self._running
        return None

    def lose(self, closures: Iterable[Work]) -> list[Work]:
        """Let those closures be open that run, and return them."""
        lost = [each for each in closures if self._running.pop(each.id, None) is not None]
        self._open |= {each.id: each for each in lost}
        return lost

    def block(self, trouble: str) -> None:
        """Note what holds up the open closures."""
        self.blocked_by = trouble
        for closure in self._open.values():
            closure.remote.block(trouble)

    def give_back(self, closure: Work) -> bool:
        """Remove a closure that its worker has not begun; return whether it was running."""
        return self._running.pop(closure.id, None) is not None

    def take_back(self, closure: Work) -> bool:
        """Remove a closure whose outcome is known; return whether it was running or open."""
        found = self._running.pop(closure.id, None) or self._open.pop(closure.id, None)
        if not self._open:
            self.blocked_by = ""
        if found is None:
            return False  # it has ended: its outcome stays
        closure.remote.block("")
        return True

    def take_all(self) -> list[Work]:
        """Remove and return all closures."""
        closures = [*self._running.values(), *self._open.values()]
        self._running.clear()
        self._open.clear()
        return closures

    def end(self, closure: Work) -> None:
        """Note that a closure that was begun at least once has ended for good."""
        if closure.left:
            self._settle(closure.commits)

    def closed_attempts(self, waiting: Iterable[Work]) -> dict[int, int]:
        """Return the attempts that were begun, of commits that are not settled.

        Parameters
        ----------
        waiting : iterable of Work
            Closures that wait, some of them to run again.
        """
        attempts: dict[int, int] = {}
        for closure in waiting:
            if closure.execution is not NOT_TAKEN:
                attempts |= dict.fromkeys(closure.commits, closure.execution.attempt - 1)
        for closure in self._open.values():
            attempts |= dict.fromkeys(closure.commits, closure.execution.attempt)
        return attempts

    def _settle(self, commits: range) -> None:
        self.settled.add(commits.start, commits.stop)
        self.unreported += len(commits)
