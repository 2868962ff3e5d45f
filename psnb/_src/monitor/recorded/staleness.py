"""Staleness: how many other updates came between a closure's read and its update. Thread-safe.

The coordinator's event loop writes it, the notebook's and the widget's threads read it. One lock
guards the counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from psnb._src.threads import Lock


@dataclass(frozen=True, slots=True)
class StalenessStatistics:
    """The staleness of all updates so far.

    The staleness of a closure's update is the number of updates by other closures that a shard has
    applied between the closure's first read there and its own commit. With several shards the
    largest number counts. A closure that read nothing has staleness 0; one that wrote nothing made
    no update.

    Attributes
    ----------
    count : int
        Updates.
    mean : float
        NaN before the first.
    max : int
        0 before the first.
    histogram : tuple of int
        How many had staleness 0, 1, 2 to 3, 4 to 7, and so on by powers of two; as long as needed.
    """

    count: int
    mean: float
    max: int
    histogram: tuple[int, ...]


class Staleness:
    """Counts updates by their staleness."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards the fields below, for a moment each
        self._count = self._total = self._max = 0
        self._histogram: list[int] = []

    def add(self, staleness: int) -> None:
        """Count one update."""
        place = staleness.bit_length()
        with self._lock:
            self._count += 1
            self._total += staleness
            self._max = max(self._max, staleness)
            while len(self._histogram) <= place:
                self._histogram.append(0)
            self._histogram[place] += 1

    def statistics(self) -> StalenessStatistics:
        """Return a snapshot."""
        with self._lock:
            mean = self._total / self._count if self._count else float("nan")
            return StalenessStatistics(self._count, mean, self._max, tuple(self._histogram))
