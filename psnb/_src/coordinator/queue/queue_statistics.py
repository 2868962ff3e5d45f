"""QueueStatistics: what statistics say of the queue. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """A queue at one moment: numbers of closures, and whether an error waits to be raised.

    Attributes
    ----------
    ended : int
        Those that have completed or failed, were cancelled, or were psnb's own and not needed.
    """

    queued: int
    in_flight: int
    completed: int
    failed: int
    cancelled: int
    ended: int
    retried: int
    failing: bool
    paused: bool
    closed: bool
