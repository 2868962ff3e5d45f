"""StalenessGate: keeps updates from being too stale. Pure; guarded by the queue's lock."""

from __future__ import annotations

from psnb._src.coordinator.closures import Closure
from psnb._src.coordinator.queue.gate import Gate


class StalenessGate(Gate):
    """Lets a closure begin if that makes no update staler than the bound.

    While a closure runs, others can commit: those that ran when it began, and those that have begun
    since. Their number is its possible staleness, which must not exceed the bound. A closure that
    was lost with its worker counts as running until it is known that it has had no effect, and will
    not.

    Parameters
    ----------
    updates : int
        The bound.
    """

    limits = True

    def __init__(self, updates: int) -> None:
        self._bound = updates
        self._possible: dict[int, int] = {}  # staleness of those that run, the oldest first

    def open(self) -> bool:
        # The possible staleness of the oldest is the largest but for those that began before it.
        return max(self._possible.values(), default=-1) < self._bound

    def begin(self, closure: Closure) -> None:
        for each in self._possible:
            self._possible[each] += 1
        self._possible[closure.id] = len(self._possible)

    def put_back(self, closure: Closure) -> None:
        self._possible.pop(closure.id, None)

    def end(self, closure: Closure, *, pushed: bool) -> None:
        self._possible.pop(closure.id, None)
