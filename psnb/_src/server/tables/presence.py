"""Which numbers of a variable a push has gradients for, and how many updates each has had. Pure.

No gradient is not a gradient of zeros: with zeros, moments decay, momentum moves on, weights decay
and the count of updates grows. Many parameters of a model lie in one variable, and a step may use a
few of them. So a push may name the *ranges* that it has gradients for, int64 ``(n, 2)``, ascending,
each with its start and stop; its gradient has their numbers alone, one after the other. All numbers
outside stay as they are, with their state. None stands for the whole variable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from psnb.errors import InvalidArrayError

Ranges = np.ndarray
"""Of the numbers that have gradients."""

Piece = tuple[slice, slice]
"""A range, and where its numbers are in a gradient."""


def whole(extent: int) -> Ranges:
    """Return the range of all numbers."""
    return np.array([[0, extent]], np.int64)


def pieces(ranges: Ranges) -> Iterator[Piece]:
    """Yield the ranges, each with its part of the gradient."""
    done = 0
    for start, stop in ranges.tolist():
        yield slice(start, stop), slice(done, done + stop - start)
        done += stop - start


def count_in(ranges: Ranges) -> int:
    """Return how many numbers there are in ranges."""
    return int((ranges[:, 1] - ranges[:, 0]).sum())


def joined(ranges: Ranges) -> Ranges:
    """Return ranges of which none begins where another one stops."""
    if not len(ranges):
        return ranges
    apart = ranges[1:, 0] != ranges[:-1, 1]
    starts, stops = ranges[np.append(True, apart), 0], ranges[np.append(apart, True), 1]
    return np.stack([starts, stops], 1)


def union(first: Ranges | None, second: Ranges | None) -> Ranges | None:
    """Return what is in one of both."""
    if first is None or second is None:
        return None
    if np.array_equal(first, second):
        return first
    both = np.concatenate([first, second])
    both = both[np.argsort(both[:, 0], kind="stable")]
    reach = np.maximum.accumulate(both[:, 1])
    new = np.append(True, both[1:, 0] > reach[:-1]) if len(both) else np.zeros(0, np.bool_)
    last = np.append(new[1:], True) if len(both) else new
    return np.stack([both[new, 0], reach[last]], 1)


def within(ranges: Ranges, start: int, stop: int) -> tuple[Ranges, slice]:
    """Return what of ranges lies in a part of a variable, counted from there.

    And which of their numbers these are.
    """
    clipped = np.clip(ranges, start, stop)
    before = int((np.minimum(ranges, start)[:, 1] - np.minimum(ranges, start)[:, 0]).sum())
    found = clipped[clipped[:, 0] < clipped[:, 1]] - start
    return found, slice(before, before + count_in(found))


def add_to(total: np.ndarray, gradient: np.ndarray, ranges: Ranges | None) -> None:
    """Add a gradient to one of the whole variable; of no ranges, to one like it."""
    if ranges is None:
        np.add(total, gradient, out=total)
        return
    for columns, part in pieces(ranges):
        total[columns] += gradient[part]


def compacted(total: np.ndarray, ranges: Ranges | None) -> np.ndarray:
    """Return the gradient of ranges, given one of the whole variable, in its memory."""
    if ranges is None:
        return total
    for columns, part in pieces(ranges):
        total[part] = total[columns]  # which lies there or behind it
    return total[: count_in(ranges)]


def check_ranges(what: str, ranges: Ranges, extent: int, size: int) -> None:
    """Raise InvalidArrayError unless these are ranges of ``size`` of ``extent`` numbers."""
    good = (
        ranges.dtype == np.int64
        and ranges.ndim == 2
        and ranges.shape[1] == 2
        and bool((ranges[:, 0] < ranges[:, 1]).all())
        and bool((ranges[1:, 0] >= ranges[:-1, 1]).all())
    )
    if good and len(ranges):
        good = int(ranges[0, 0]) >= 0 and int(ranges[-1, 1]) <= extent
    if not good or count_in(ranges) != size:
        raise InvalidArrayError(
            f"{what}: expected ascending ranges of {size} of {extent} numbers, found {ranges}"
        )


class UpdateCounts(NamedTuple):
    """How many updates numbers have had, where that differs. Immutable.

    Attributes
    ----------
    stops, counts : numpy.ndarray
        int64 ``(n,)``: where each run of numbers stops that have had equally many, and how many.
    """

    stops: np.ndarray
    counts: np.ndarray

    @classmethod
    def even(cls, extent: int, count: int) -> UpdateCounts:
        """Return runs of numbers with equal counts."""
        return cls(np.array([extent], np.int64), np.array([count], np.int64))

    @classmethod
    def of(cls, array: np.ndarray) -> UpdateCounts:
        """Return what `array` has made an array of."""
        return cls(array[:, 0], array[:, 1])

    def array(self) -> np.ndarray:
        """Return them as one array, int64 ``(n, 2)``."""
        return np.stack([self.stops, self.counts], 1)

    def runs(self, ranges: Ranges | None) -> list[tuple[Piece, int]]:
        """Return the runs within ranges, and the count of each."""
        stops, counts = self.stops.tolist(), self.counts.tolist()
        if ranges is None:
            ranges = whole(stops[-1])
        found, run = [], 0
        for columns, part in pieces(ranges):
            start = columns.start
            while start < columns.stop:
                while stops[run] <= start:
                    run += 1
                stop = min(stops[run], columns.stop)
                at = part.start + start - columns.start
                piece = slice(start, stop), slice(at, at + stop - start)
                found.append((piece, counts[run]))
                start = stop
        return found

    def advanced(self, ranges: Ranges | None) -> UpdateCounts:
        """Return those after an update of ranges."""
        if ranges is None:
            return UpdateCounts(self.stops, self.counts + 1)
        # Runs that are wholly in ranges or wholly outside.
        stops = np.union1d(self.stops, ranges)
        stops = stops[stops > 0]
        counts = self.counts[np.searchsorted(self.stops, stops)]
        at = np.searchsorted(ranges[:, 1], stops)
        inside = at < len(ranges)
        if inside.any():
            inside[inside] = ranges[at[inside], 0] < stops[inside]
        return _simplified(stops, counts + inside)

    def merged(self, other: UpdateCounts) -> UpdateCounts:
        """Return those after others have been merged in: the larger one counts."""
        stops = np.union1d(self.stops, other.stops)
        both = [each.counts[np.searchsorted(each.stops, stops)] for each in (self, other)]
        return _simplified(stops, np.maximum(*both))

    def part(self, start: int, stop: int) -> UpdateCounts:
        """Return the counts of a part of the numbers."""
        stops = np.clip(self.stops, start, stop)
        kept = np.diff(stops, prepend=start) > 0
        return UpdateCounts(stops[kept] - start, self.counts[kept])


def _simplified(stops: np.ndarray, counts: np.ndarray) -> UpdateCounts:
    last = np.append(counts[1:] != counts[:-1], True)
    return UpdateCounts(stops[last], counts[last])


def counts_together(
    parts: Sequence[tuple[int, UpdateCounts | None, int]],
) -> UpdateCounts | None:
    """Return the counts of a whole from its parts' counts; None if all numbers have had as many.

    For each part how many numbers it has, its counts if they differ, and how many updates it has
    had in all.
    """
    if all(counts is None for _, counts, _ in parts) and len({step for *_, step in parts}) <= 1:
        return None
    stops, found, done = [], [], 0
    for size, counts, step in parts:
        own = UpdateCounts.even(size, step) if counts is None else counts
        stops.append(own.stops + done)
        found.append(own.counts)
        done += size
    return _simplified(np.concatenate(stops), np.concatenate(found))
