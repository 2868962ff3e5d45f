"""RangeSet: a set of integers that lie in few ranges. Pure; callers must lock it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

Bounds = tuple[int, ...]
"""Ranges as they travel: begin and end of each in turn, in order; none touches the next."""


class RangeSet:
    """A set of integers to which ranges are added, and which needs memory for each range only.

    Parameters
    ----------
    bounds : sequence of int
        What is in it: `Bounds`.
    """

    __slots__ = ("_bounds",)

    def __init__(self, bounds: Sequence[int] = ()) -> None:
        self._bounds = list(bounds)

    def __contains__(self, number: int) -> bool:
        return bisect_right(self._bounds, number) % 2 == 1

    def __len__(self) -> int:
        """Return how many ranges there are, not how many integers."""
        return len(self._bounds) // 2

    def __iter__(self) -> Iterator[range]:
        return (range(*pair) for pair in _pairs(self._bounds))

    def bounds(self) -> Bounds:
        return tuple(self._bounds)

    def add(self, start: int, stop: int) -> None:
        """Add the integers from ``start`` up to, but not including, ``stop``."""
        if start >= stop:
            return
        # Begins of ranges are at even positions, ends at odd ones. Bounds between the new ones go,
        # and a new one stays only if it lies outside of all ranges.
        first, last = bisect_left(self._bounds, start), bisect_right(self._bounds, stop)
        self._bounds[first:last] = [start] * (first % 2 == 0) + [stop] * (last % 2 == 0)

    def gap(self, start: int, stop: int) -> tuple[int, int]:
        """Return the first run of integers in a range that are not in the set; empty if all are."""
        at = bisect_right(self._bounds, start)
        if at % 2 == 1:  # start lies in a range, which ends here
            start, at = min(self._bounds[at], stop), at + 1
        return start, stop if at == len(self._bounds) else min(stop, self._bounds[at])

    def update(self, bounds: Bounds) -> None:
        """Add all that another one has."""
        for start, stop in _pairs(bounds):
            self.add(start, stop)


def _pairs(bounds: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(bounds[::2], bounds[1::2], strict=True)
