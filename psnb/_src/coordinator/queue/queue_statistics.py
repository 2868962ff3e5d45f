"""QueueStatistics: what statistics say of the queue. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """A queue at one moment: numbers of closures, and whether an error waits to be raised."""

    queued: int
    in_flight: int
    completed: int
    failed: int
    cancelled: int
    retried: int
    failing: bool
    paused: bool
    closed: bool
