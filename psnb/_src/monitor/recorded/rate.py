"""Rate: how much of something there was a second, lately. Pure."""

from __future__ import annotations

SECONDS = 5
"""How far back "lately" goes."""


class Rate:
    """Counts over a sliding window of whole seconds.

    Not thread-safe; a reader in another thread may see a figure that is a moment old.
    """

    __slots__ = ("_counts", "_first", "_newest")

    def __init__(self) -> None:
        self._counts = [0.0] * (SECONDS + 1)  # of the second that runs, and of those before
        self._newest = -1
        self._first = -1.0  # when counting began

    def add(self, amount: float, now: float) -> None:
        """Count something that happened now.

        Parameters
        ----------
        amount : float
            How much.
        now : float
            Seconds by a clock that never goes back, always the same one.
        """
        if self._first < 0:
            self._first = now
        self._move(int(now))
        self._counts[int(now) % len(self._counts)] += amount

    def value(self, now: float) -> float:
        """Return the amount a second over the last seconds; 0 before the first."""
        if self._first < 0:
            return 0.0
        second = int(now)
        # Without writing: any thread may ask. What is too old to count is not added up.
        total = sum(
            self._counts[each % len(self._counts)]
            for each in range(max(0, second - SECONDS), min(second, self._newest) + 1)
            if each > self._newest - len(self._counts)
        )
        return total / min(max(now - self._first, 0.25), SECONDS + now - second)

    def _move(self, second: int) -> None:
        size = len(self._counts)
        for each in range(max(self._newest + 1, second - size + 1), second + 1):
            self._counts[each % size] = 0.0
        self._newest = max(self._newest, second)
