"""Coordinators for the widget's tests: figures that tests set, and nothing behind them."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from psnb.monitor.history import History
from psnb.monitor.staleness import Staleness
from psnb.monitor.statistics import Statistics, WorkerStatistics

DEADLINE = 10.0

WORKER = WorkerStatistics("alice", "tcp://127.0.0.1:1", 0, "ready", 2, 10, 1, 3.5)
STATISTICS = Statistics(
    "idle", 7.0, 5, 2, 10, 1, 3, 4, (WORKER,), ("tcp://127.0.0.1:9",), {}, Staleness().statistics()
)


class FakeSource:
    """A coordinator's outside, with figures that tests set."""

    def __init__(self, **changes: Any) -> None:
        self.history = History()
        self.now = replace(STATISTICS, **changes)
        self.error: Exception | None = None
        self.asked = threading.Semaphore(0)  # Released at each look at the source.

    def statistics(self) -> Statistics:
        self.asked.release()
        if self.error is not None:
            raise self.error
        return replace(self.now, metrics=self.history.metrics())

    def set(self, **changes: Any) -> None:
        self.now = replace(self.now, **changes)

    def wait_for_looks(self, count: int) -> None:
        """Wait until the publisher has looked so many times more."""
        while self.asked.acquire(blocking=False):
            pass
        for _ in range(count):
            assert self.asked.acquire(timeout=DEADLINE), "the publisher does not look"


def reporting(*values: float) -> FakeSource:
    source = FakeSource()
    for step, value in enumerate(values):
        source.history.add(float(step), {"loss": value})
    return source
