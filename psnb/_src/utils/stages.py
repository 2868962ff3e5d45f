"""Stages: how many elements the parts of a dataset's chain have given, and their time. Pure.

A snapshot is plain data and never changes. The snapshots of several workers are added place by
place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, replace
from itertools import groupby
from typing import Any

from psnb._src.utils.text import size_text, text_table

WORTH_TELLING = 0.2
"""The share of their time that workers must spend on reading before they are shown as waiting."""


@dataclass(frozen=True, slots=True)
class StageStatistics:
    """One part of a dataset's chain.

    Attributes
    ----------
    name : str
        Its name in the chain, such as ``map(parse)``.
    elements : int
        How many it has given.
    seconds : float
        Its own time: how long a reader waited for its elements, without its waiting for its inputs.
        For a parallel `map`, the time in which no result was ready.
    waits : bool
        It reads ahead in a thread: its time is spent waiting for the stages before it.
    level, limit : int or None
        The elements in its buffer, and how many it can hold: elements of ``prefetch`` and
        ``shuffle``, results that are ready of a parallel ``map``, open datasets of ``interleave``.
        None for parts without a buffer, and if it is not being read.
    depth : int
        0; more for an input that is one of several.
    chain : int
        Which chain it is in, if there are several.
    place : int
        Its place in the chain: the same number for all datasets that are made in the same way.
    moved : int
        Bytes that came from other workers for it, of partitions that Dask holds elsewhere.
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
