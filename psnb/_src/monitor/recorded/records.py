"""Records: written by the connections to workers, read by views. Each part is thread-safe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from psnb._src.monitor.recorded.events import EventLog
from psnb._src.monitor.recorded.failures import FailureLog
from psnb._src.monitor.recorded.history import History
from psnb._src.monitor.recorded.merged_metrics import MergedMetrics
from psnb._src.monitor.recorded.staleness import Staleness
from psnb._src.monitor.recorded.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Records:
    """The records of one coordinator.

    Attributes
    ----------
    history : History
        What closures reported.
    merged : MergedMetrics
        The metrics that they reported as states, merged.
    staleness : Staleness
        How stale their updates were.
    events : EventLog
        What happened to workers and closures.
    failures : FailureLog
        Which closures raised, and what.
    timeline : Timeline
        When closures ran where.
    """

    history: History
    merged: MergedMetrics
    staleness: Staleness
    events: EventLog
    failures: FailureLog
    timeline: Timeline

    @classmethod
    def empty(cls, unpack: Callable[[bytes], BaseException]) -> Records:
        """Return new records; ``unpack`` as for `FailureLog`."""
        history = History()
        merged, failures = MergedMetrics(history), FailureLog(unpack)
        return cls(history, merged, Staleness(), EventLog(), failures, Timeline())
