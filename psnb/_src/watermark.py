"""Watermark: the number below which all numbers have ended. Pure; callers must lock it."""

from __future__ import annotations


class Watermark:
    """Tracks numbers that end in any order.

    Attributes
    ----------
    low : int
        Every number below has ended. It never goes down.
    """

    def __init__(self) -> None:
        self.low = 0
        self._ended: set[int] = set()

    def end(self, number: int) -> None:
        """Note that a number has ended."""
        self._ended.add(number)
        while self.low in self._ended:
            self._ended.discard(self.low)
            self.low += 1

    def ended(self) -> frozenset[int]:
        """Return the numbers above `low` that have ended."""
        return frozenset(self._ended)
