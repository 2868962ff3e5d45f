"""Rate: the recent amount of something per second. Pure."""

from __future__ import annotations

SECONDS = 5
"""The length of the window."""


class Rate:
    """Counts over a sliding window of whole seconds.

    Not thread-safe for writers; a reader in another thread may get a slightly old value.
    """

    __slots__ = ("_counts", "_first", "_newest")

    def __init__(self) -> None:
        self._counts = [0.0] * (SECONDS + 1)  # of the current second, and of those before
        self._newest = -1
        self._first = -1.0  # when counting began

    def add(self, amount: float, now: float) -> None:
        """Count something that happened now.

        Parameters
        ----------
        amount : float
            How much.
        now : float
            Seconds by a monotonic clock, always the same one.
        """
        if self._first < 0:
            self._first = now
        self._move(int(now))
        self._counts[int(now) % len(self._counts)] += amount

    def value(self, now: float) -> float:
        """Return the amount per second over the last seconds; 0 before the first `add`."""
        if self._first < 0:
            return 0.0
        second = int(now)
        # It writes nothing, so any thread may call it. Counts that are too old are skipped.
        if second == self._newest:
            total = sum(self._counts)
        else:
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
