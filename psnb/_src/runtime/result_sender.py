"""ResultSender: results and reports on their way from the closure threads to the coordinator.

A lone result leaves at once. While more closures wait, results gather: until they are as many as
those that wait still, so that the coordinator can send more in time, or for `HELD_SECONDS`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sized
from typing import Any

HELD_SECONDS = 0.015
"""How long a result waits at most for others to travel with."""


class ResultSender:
    """Gathers what closure threads hand over; `expect` belongs to the event loop.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
        Whose clock tells when to send.
    unstarted : collection
        Its length tells how many closures wait to be run.
    send : callable
        Sends lists of results and reports, and what else it is given; called by any thread.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        unstarted: Sized,
        send: Callable[..., None],
    ) -> None:
        self._loop, self._unstarted, self._send = loop, unstarted, send
        self._lock = threading.Lock()  # guards the next three, used by several threads
        self._results: list[tuple[Any, ...]] = []
        self._reports: list[tuple[float, dict[str, float]]] = []
        self._expected = 0  # results that closures owe
        self._ticking = False  # the loop's alone

    def expect(self, count: int) -> None:
        """Look after this many results more, or fewer if it is negative."""
        with self._lock:
            self._expected += count
        if not self._ticking and self._expected:
            self._ticking = True
            self._loop.call_later(HELD_SECONDS, self._tick)

    def add_result(self, result: tuple[Any, ...]) -> None:
        """Hand a result over."""
        with self._lock:
            self._expected -= 1
            self._results.append(result)
            enough = len(self._results) >= len(self._unstarted)
        if enough:
            self.flush()

    def add_report(self, when: float, values: dict[str, float]) -> None:
        """Hand metrics over; they go with the next results, or after `HELD_SECONDS`."""
        with self._lock:
            self._reports.append((when, values))

    def flush(self, **more: int) -> None:
        """Send all there is, if only a sign of life, and what else is to be told; any thread."""
        with self._lock:
            results, self._results = self._results, []
            reports, self._reports = self._reports, []
        self._send(results, reports, **more)

    def _tick(self) -> None:
        with self._lock:
            something = bool(self._results or self._reports)
            self._ticking = self._expected > 0
        if something:
            self.flush()
        if self._ticking:
            self._loop.call_later(HELD_SECONDS, self._tick)
