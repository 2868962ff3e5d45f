"""Timeline: when which worker ran closures, over the last minute. Thread-safe.

The coordinator's event loop writes it, the views' threads read it. A worker may run ten thousand
closures a second, too many to see each: consecutive short ones become one span.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypedDict

from psnb._src.threads import Lock

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
