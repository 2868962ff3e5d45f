"""Counters of a coordinator: rates, the staleness of updates, and when which worker ran closures.

The coordinator's event loop writes them, the notebook's and the views' threads read them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypedDict

from psnb._src.monitor.statistics import StalenessStatistics
from psnb._src.utils.interrupts import Lock

MINUTE = 60.0
"""How far back the timeline goes, in seconds."""

_SHORT = 0.1  # seconds; shorter closures are merged
_GAP = 0.05  # seconds; shorter pauses are merged too
_LONGEST = 1.0  # seconds of a merged span, so that old spans need not be sent again
_MOST = 600  # spans a worker


class Span(TypedDict):
    """Consecutive closures on one worker, without a visible gap.

    A span replaces the one with the same worker and start that a view has. Views drop spans that
    ended more than a minute ago.
    """

    worker: int  # index
    start: float  # seconds since the epoch
    end: float
    closures: int
    failed: int


class Timeline:
    """Spans of closures by worker."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards the spans, which must not change while copied
        self._spans: dict[int, deque[Span]] = {}

    def add(
        self, worker: int, seconds: Sequence[float], failed: int, threads: int, now: float
    ) -> None:
        """Note closures whose outcomes arrived together.

        Parameters
        ----------
        worker : int
            Its index.
        seconds : sequence of float
            How long each took.
        failed : int
            How many raised.
        threads : int
            How many ran side by side at most.
        now : float
            When they came, in seconds since the epoch.
        """
        length = max(max(seconds), sum(seconds) / threads)
        start, count = now - length, len(seconds)
        with self._lock:
            spans = self._spans.setdefault(worker, deque(maxlen=_MOST))
            last = spans[-1] if spans else None
            if (
                last is not None
                and start - last["end"] < _GAP
                and length / count < _SHORT
                and (last["end"] - last["start"]) / last["closures"] < _SHORT
                and now - last["start"] < _LONGEST
            ):
                last["end"] = max(now, last["end"])
                last["closures"] += count
                last["failed"] += failed
            else:
                spans.append(
                    Span(worker=worker, start=start, end=now, closures=count, failed=failed)
                )
            while spans[0]["end"] < now - MINUTE:
                spans.popleft()

    def since(self, when: float) -> list[Span]:
        """Return copies of the spans that have ended, or grown, later than that."""
        found: list[Span] = []
        with self._lock:
            for spans in self._spans.values():
                for span in reversed(spans):
                    if span["end"] <= when:
                        break
                    found.append(span.copy())
        return found


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
        second, size = int(now), SECONDS + 1
        if second > self._newest:
            if self._first < 0:
                self._first = now
            for each in range(max(self._newest + 1, second - SECONDS), second + 1):
                self._counts[each % size] = 0.0
            self._newest = second
        self._counts[second % size] += amount

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


class Staleness:
    """Counts updates by their staleness."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards the fields below, for a moment each
        self._count = self._total = self._max = 0
        self._histogram: list[int] = []

    def add(self, staleness: int) -> None:
        """Count one update."""
        self.add_all([staleness])

    def add_all(self, several: Sequence[int]) -> None:
        """Count updates."""
        with self._lock:
            self._count += len(several)
            self._total += sum(several)
            self._max = max(self._max, *several)
            self._histogram += [0] * (self._max.bit_length() + 1 - len(self._histogram))
            for staleness in several:
                self._histogram[staleness.bit_length()] += 1

    def statistics(self) -> StalenessStatistics:
        """Return a snapshot."""
        with self._lock:
            mean = self._total / self._count if self._count else float("nan")
            return StalenessStatistics(self._count, mean, self._max, tuple(self._histogram))
