"""Phases: where the time of a closure goes. Pure.

A clock is turned at the doors that a closure goes through: an iterator's ``next``, a pull, a push,
and the commit at its end. It is always in one phase, so nothing counts twice, and the phases add up
to the closure's time. A door within a door (a lookup in a dataset's function) counts as the inner
one.

Threads: each closure's thread has a clock of its own; doors in other threads count nothing.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

PHASES = ("read", "pull", "compute", "push", "commit")
READ, PULL, COMPUTE, PUSH, COMMIT = range(len(PHASES))


@dataclass(frozen=True, slots=True)
class PhaseStatistics:
    """What the time of closures went to, in seconds.

    Attributes
    ----------
    read : float
        Getting the function and its arguments, with per-worker values, and ``next`` on iterators of
        datasets.
    pull : float
        Reads and lookups of parameters.
    compute : float
        All else that the closures' functions do.
    push : float
        Handing over gradients and other writes; they are held back until the closure's end.
    commit : float
        From the end of the function until the servers have its writes. The next closure of the
        same thread may run meanwhile.
    """

    read: float = 0.0
    pull: float = 0.0
    compute: float = 0.0
    push: float = 0.0
    commit: float = 0.0

    @property
    def total(self) -> float:
        """All of them together, in seconds."""
        return sum(self.seconds)

    @property
    def seconds(self) -> tuple[float, ...]:
        """All five, in the order in which a step goes through them."""
        return self.read, self.pull, self.compute, self.push, self.commit

    @property
    def shares(self) -> dict[str, float]:
        """The share of each phase by its name, 0 to 1; all are 0 if no time has passed."""
        total = self.total or 1.0
        return dict(zip(PHASES, (each / total for each in self.seconds), strict=True))

    @classmethod
    def sum(cls, several: Iterable[PhaseStatistics]) -> PhaseStatistics:
        """Return the sum of several."""
        columns = zip(*(each.seconds for each in several), strict=True)
        return cls(*map(sum, columns))


class PhaseClock:
    """Divides the time of a thread; it runs from its beginning in one of the phases.

    Attributes
    ----------
    seconds : list of float
        The time in each phase, up to the last turn.
    phase, since
        The phase that it is in, and since when.
    """

    __slots__ = ("phase", "seconds", "since")

    def __init__(self, phase: int) -> None:
        self.seconds = [0.0, 0.0, 0.0, 0.0, 0.0]
        self.phase, self.since = phase, perf_counter()

    def turn(self, phase: int) -> int:
        """Begin another phase, or the same one again, and return the one before."""
        before, since = self.phase, self.since
        self.phase, self.since = phase, perf_counter()
        self.seconds[before] += self.since - since
        return before


class _CurrentClock(threading.local):
    clock: PhaseClock | None = None


_current = _CurrentClock()


def start_clock(phase: int) -> PhaseClock:
    """Return a new clock, which the doors of this thread turn until `stop_clock`."""
    clock = _current.clock = PhaseClock(phase)
    return clock


def stop_clock() -> None:
    """Let the doors of this thread count nothing."""
    _current.clock = None


def counted_as(phase: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function a door: its time counts for a phase."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def door(*args: P.args, **kwargs: P.kwargs) -> R:
            clock = _current.clock
            if clock is None:
                return function(*args, **kwargs)
            # As `turn` does, which would take a third longer.
            before, since = clock.phase, clock.since
            clock.phase, clock.since = phase, perf_counter()
            clock.seconds[before] += clock.since - since
            try:
                return function(*args, **kwargs)
            finally:
                since, clock.phase = clock.since, before
                clock.since = perf_counter()
                clock.seconds[phase] += clock.since - since

        return door

    return decorate
