"""Timeline: when which worker ran closures, over the last minute. Thread-safe.

Written by the coordinator's event loop, read by the views' threads. A worker may run ten thousand
closures a second, of which nobody can see each: short ones that follow each other become one span.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypedDict

from psnb._src.threads import Lock

MINUTE = 60.0
"""How far back the timeline goes, in seconds."""

_SHORT = 0.1  # seconds; what is shorter is not seen on its own
_GAP = 0.05  # seconds; nor is a shorter pause
_LONGEST = 1.0  # of a span of many closures, so that what a view has need not be sent again
_MOST = 600  # spans a worker


class Span(TypedDict):
    """Closures on one worker, one after the other without a gap that could be seen.

    One with the worker and start of a span that a view has replaces that one. Views forget what
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
        """Note closures whose outcomes came together.

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
