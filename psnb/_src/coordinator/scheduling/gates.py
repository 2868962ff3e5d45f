"""Gate: when closures may begin, and what must be done with what they pushed. Pure, no locks.

The scheduler asks its gate before it hands out a closure, and calls it when closures begin and
end. What must be done on servers or workers is a `Step`; the coordinator carries it out
(`psnb._src.coordinator.workers.executor`). There is one kind of gate for each update mode
(`psnb._src.protocol.messages`); `Gate` itself is for asynchronous updates: it lets everything
begin and asks for no steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from psnb._src.coordinator.scheduling.work import Work
from psnb._src.protocol.modes import BoundedStaleness, Geo, Mode, Sync
from psnb._src.server.tables.operations import RoundWeights


@dataclass(frozen=True, slots=True)
class ApplyRound:
    """Servers must apply what a round pushed.

    Attributes
    ----------
    number : int
        The round.
    closures : tuple of int
        Commit numbers of its closures that pushed and have completed, in the order in which they
        were scheduled.
    weights : RoundWeights or None
        What each counts; None if all count the same.
    """

    number: int
    closures: tuple[int, ...]
    weights: RoundWeights | None = None


@dataclass(frozen=True, slots=True)
class Flush:
    """Workers must send the updates that they have kept."""


Step = ApplyRound | Flush
"""What a gate asks for."""


class Gate:
    """Lets every closure begin at any time."""

    limits = False
    """Whether it may ever refuse; then no worker is sent more than it can begin at once."""

    exchanges = False
    """Whether workers keep updates, and commit those of several closures together."""

    round: int | None = None
    """The round of the closures that begin now, if there are rounds."""

    def open(self) -> bool:
        """Return whether anything may begin."""
        return True

    def admits(self, closure: Work) -> bool:
        """Return whether this closure may begin now."""
        return self.open()

    def begin(self, closure: Work) -> None:
        """Note that a closure that was admitted is sent to a worker."""

    def put_back(self, closure: Work) -> None:
        """Note that a closure that had begun has had no effect, and waits to begin again."""

    def end(self, closure: Work, *, pushed: bool, weight: float | None = None) -> None:
        """Note that a closure that had begun has ended, and whether it completed with pushes.

        ``weight`` is what it counts in its round, if it has said so.
        """

    def midway(self) -> bool:
        """Return whether what has begun waits for others to begin: holding them would break it."""
        return False

    def finish(self) -> None:
        """Note that no closure runs, and that a caller waits until all have had their effect."""

    def complete(self) -> bool:
        """Return whether all closures that have ended have had their effect."""
        return True

    def due(self) -> Step | None:
        """Return the step that must be done now, if there is one; each step once."""
        return None

    def stepped(self) -> None:
        """Note that the step was done, or has failed and will not be tried again."""


class RoundGate(Gate):
    """Lets a round begin when the one before it has been applied.

    A round has a number of slots. A closure takes a slot when it begins, and keeps it when it ends.
    A closure that was lost with its worker and has had no effect gives its slot up. As the first in
    the queue it takes the slot again, unless a closure of a higher priority does: then it runs in a
    later round. Of the closures of one slot of an epoch (`OrderedLeases`), one runs at a time.

    Parameters
    ----------
    closures : int
        The number of slots.

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
        self._running: set[int] = set()  # their ids
        self._slots: set[int | None] = set()  # theirs; never None
        self._pushed: dict[int, int] = {}  # by id, the commit
        self._weights: dict[int, float] = {}  # by id, of those that have one
        self._over = False  # to be applied; nothing begins
        self._applying = False

    def open(self) -> bool:
        return not self._over and self._taken < self._size

    def admits(self, closure: Work) -> bool:
        return self.open() and closure.options.slot not in self._slots

    def begin(self, closure: Work) -> None:
        self._taken += 1
        self._running.add(closure.id)
        if closure.options.slot is not None:
            self._slots.add(closure.options.slot)

    def put_back(self, closure: Work) -> None:
        self._leave(closure)
        self._taken -= 1

    def _leave(self, closure: Work) -> None:
        self._running.discard(closure.id)
        self._slots.discard(closure.options.slot)

    def end(self, closure: Work, *, pushed: bool, weight: float | None = None) -> None:
        if closure.id not in self._running:
            return  # cancelled while it waited to run again
        self._leave(closure)
        if pushed:
            self._pushed[closure.id] = closure.execution.commit - 1  # of the step that is done
        if weight is not None:
            self._weights[closure.id] = weight
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
        pushed = sorted(self._pushed.items())
        weights = self._round_weights([closure for closure, _ in pushed])
        return ApplyRound(self.round, tuple(commit for _, commit in pushed), weights)

    def stepped(self) -> None:
        self.round += 1
        self._taken = 0
        self._pushed, self._weights = {}, {}
        self._over = self._applying = False

    def _round_weights(self, pushed: list[int]) -> RoundWeights | None:
        """Return the weights of the closures that pushed; None if all of the round are equal."""
        each = [self._weights.get(closure, 1.0) for closure in pushed]
        without = self._weights.keys() - set(pushed)
        total = math.fsum([*each, *(self._weights[closure] for closure in without)])
        if not total or (total == each[0] * len(each) and len(set(each)) == 1):
            return None
        return RoundWeights(each, total)

    def _end_round(self) -> None:
        if self._pushed:
            self._over = True
        else:
            self.stepped()  # there is nothing to apply


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

    def begin(self, closure: Work) -> None:
        for each in self._possible:
            self._possible[each] += 1
        self._possible[closure.id] = len(self._possible)

    def put_back(self, closure: Work) -> None:
        self._possible.pop(closure.id, None)

    def end(self, closure: Work, *, pushed: bool, weight: float | None = None) -> None:
        self._possible.pop(closure.id, None)


class FlushGate(Gate):
    """Lets everything begin; before the queue says that all is done, workers send their updates."""

    exchanges = True

    def __init__(self) -> None:
        self._held = self._wanted = self._flushing = False

    def begin(self, closure: Work) -> None:
        self._held = True
        self._wanted = False  # not before it has ended: it would be left out

    def finish(self) -> None:
        self._wanted = self._held

    def complete(self) -> bool:
        return not self._held and not self._flushing

    def due(self) -> Flush | None:
        if not self._wanted or self._flushing:
            return None
        self._held = self._wanted = False
        self._flushing = True
        return Flush()

    def stepped(self) -> None:
        self._flushing = False


def gate_for(mode: Mode) -> Gate:
    """Return a new gate for an update mode."""
    match mode:
        case Sync(closures=closures) if closures is not None:
            return RoundGate(closures)
        case BoundedStaleness(updates=updates):
            return StalenessGate(updates)
        case Geo():
            return FlushGate()
    return Gate()
