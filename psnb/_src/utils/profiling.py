"""Phases: what the time of a closure goes to. Pure.

A clock is turned at the doors that a closure goes through: an iterator's ``next``, a pull, a push,
and the commit at its end. It is always in one phase, so nothing counts twice, and the phases add up
to the closure's time. A door within a door (a lookup in a dataset's function) counts as the inner
one.

Threads: each closure's thread has a clock of its own; doors in other threads count nothing.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, replace
from itertools import groupby
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

from psnb._src.utils.text import size_text, text_table

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
    """Make a function a door: its time counts as that of a phase."""

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


# Stages: what the parts of a dataset's chain have given, and what they took. Pure.
#
# A snapshot is plain data and never changes. Those of several workers are added place by place.

WORTH_TELLING = 0.2
"""The share of their time that workers must spend on reading before they are shown as waiting."""


@dataclass(frozen=True, slots=True)
class StageStatistics:
    """One part of a dataset's chain.

    Attributes
    ----------
    name : str
        What the chain calls it, such as ``map(parse)``.
    elements : int
        How many it has given.
    seconds : float
        Its own time: that in which a reader waited for its elements, without the time in which it
        waited for its inputs. Of a parallel `map`, the time in which no result was ready.
    waits : bool
        It reads ahead in a thread: its time is spent on waiting for what is before it.
    level, limit : int or None
        What is in its buffer, and how much has room there: elements of ``prefetch`` and
        ``shuffle``, results that are ready of a parallel ``map``, open datasets of ``interleave``.
        None for parts without a buffer, and if it is not being read.
    depth : int
        0; more for an input that is one of several.
    chain : int
        Which chain it is in, if there are several.
    place : int
        Its place in the chain: the same number for all datasets that are made in the same way.
    moved : int
        Bytes that came from other workers for it: of partitions that Dask holds elsewhere.
    empty_files : int
        Files without a record that it has passed over.
    """

    name: str
    elements: int
    seconds: float
    waits: bool = False
    level: int | None = None
    limit: int | None = None
    depth: int = 0
    chain: int = 0
    place: int = 0
    moved: int = 0
    empty_files: int = 0

    @property
    def values(self) -> tuple[Any, ...]:
        """All attributes, in their order."""
        return astuple(self)

    def plus(self, other: StageStatistics) -> StageStatistics:
        """Return both together."""
        return replace(
            self,
            elements=self.elements + other.elements,
            seconds=self.seconds + other.seconds,
            level=_sum(self.level, other.level),
            limit=_sum(self.limit, other.limit),
            moved=self.moved + other.moved,
            empty_files=self.empty_files + other.empty_files,
        )


class Stages(tuple[StageStatistics, ...]):
    """The parts of a chain, or of several, from the sources on; all that a tuple can."""

    __slots__ = ()

    @property
    def slowest(self) -> StageStatistics | None:
        """The stage with the most time of its own; None if none took any."""
        own = [each for each in self if not each.waits and each.seconds]
        return max(own, key=lambda each: each.seconds, default=None)

    def __repr__(self) -> str:
        chains = [list(rows) for _, rows in groupby(self, lambda each: each.chain)]
        return "\n\n".join(map(_table, chains)) or "no stages"


def merged(several: Iterable[Stages]) -> Stages:
    """Return snapshots of one chain together: of several workers, say."""
    found: dict[int, StageStatistics] = {}
    for stages in sorted(several, key=len, reverse=True):  # some may have begun less
        for each in stages:
            before = found.get(each.place)
            found[each.place] = each if before is None else before.plus(each)
    return Stages(found.values())


def merged_chains(several: Iterable[Mapping[str, Stages]]) -> Stages:
    """Return the stages of several workers, which send them by the kind of the chain."""
    by_kind: dict[str, list[Stages]] = {}
    for chains in several:
        for kind, stages in chains.items():
            by_kind.setdefault(kind, []).append(stages)
    return Stages(
        replace(each, chain=number)
        for number, stages in enumerate(by_kind.values())
        for each in merged(stages)
    )


def starved(read: float, stages: Stages) -> str:
    """Return a sentence that says for what workers wait; empty if they do not wait for data.

    Parameters
    ----------
    read : float
        The share of their time in which they read, 0 to 1.
    stages : Stages
        Of the datasets that they read.
    """
    if read < WORTH_TELLING:
        return ""
    slowest = stages.slowest
    return f"workers wait {read:.0%} of their time for {slowest.name if slowest else 'data'}"


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


def _table(rows: list[StageStatistics]) -> str:
    whole = sum(each.seconds for each in rows if not each.waits) or 1.0
    moved = any(each.moved for each in rows)
    empty = any(each.empty_files for each in rows)
    more = [*(["moved"] if moved else []), *(["empty files"] if empty else [])]
    head = ("stage", "elements", "own time", "", "buffer", *more)
    return text_table(
        head,
        [
            (
                "  " * each.depth + each.name,
                f"{each.elements:,}",
                f"{each.seconds:,.3f} s",
                "waits" if each.waits else f"{each.seconds / whole:.0%}",
                "" if each.level is None else f"{each.level:,} of {each.limit:,}",
                *([size_text(each.moved) if each.moved else ""] if moved else []),
                *([f"{each.empty_files:,}" if each.empty_files else ""] if empty else []),
            )
            for each in rows
        ],
    )
