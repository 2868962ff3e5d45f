"""ResultSender: results and reports on their way from the closure threads to the coordinator.

A result is sent at once if no more closures wait. Otherwise results are gathered until they are as
many as the closures that still wait, so that the coordinator can send more in time, or for
`HELD_SECONDS`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sized

from psnb._src.phases import PHASES
from psnb._src.runtime.session_messages import ClosureResult, ClosureResults

HELD_SECONDS = 0.015
"""Seconds that a result waits at most for others to be sent with it."""

_NO_TIME = [0.0] * len(PHASES)


class ResultSender:
    """Gathers what closure threads hand over; `expect` belongs to the event loop.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
        The loop whose timer sends.
    unstarted : collection
        The closures that wait to be run; only its length is used.
    send : callable
        Sends them; called by any thread.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        unstarted: Sized,
        send: Callable[[ClosureResults], None],
    ) -> None:
        self._loop, self._unstarted, self._send = loop, unstarted, send
        self._lock = threading.Lock()  # guards the next four, used by several threads
        self._results: list[ClosureResult] = []
        self._reports: list[tuple[float, dict[str, float]]] = []
        self._phases: list[list[float]] = [_NO_TIME]  # of these results, in seconds
        self._expected = 0  # results that are still to come
        self._ticking = False  # the loop's alone

    def expect(self, count: int) -> None:
        """Expect this many more results."""
        with self._lock:
            self._expected += count
        if not self._ticking and self._expected:
            self._ticking = True
            self._loop.call_later(HELD_SECONDS, self._tick)

    def forgo(self, count: int) -> None:
        """Expect this many results less; any thread."""
        with self._lock:
            self._expected -= count

    def add_result(self, result: ClosureResult, phases: list[float]) -> None:
        """Hand a result over, and how long its closure was in each phase, in seconds."""
        with self._lock:
            self._expected -= 1
            self._phases.append(phases)
            self._results.append(result)
            enough = len(self._results) >= len(self._unstarted)
        if enough:
            self.flush()

    def add_report(self, when: float, values: dict[str, float]) -> None:
        """Hand metrics over; they go with the next results, or after `HELD_SECONDS`."""
        with self._lock:
            self._reports.append((when, values))

    def flush(self) -> None:
        """Send all there is, if there is anything; any thread."""
        with self._lock:
            results, self._results = self._results, []
            reports, self._reports = self._reports, []
            phases, self._phases = self._phases, [_NO_TIME]
        if results or reports:
            together = [float(sum(each)) for each in zip(*phases, strict=True)]
            self._send(ClosureResults(reports, results, together))

    def _tick(self) -> None:
        with self._lock:
            self._ticking = self._expected > 0
        self.flush()
        if self._ticking:
            self._loop.call_later(HELD_SECONDS, self._tick)
