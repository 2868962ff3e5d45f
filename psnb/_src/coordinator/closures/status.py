"""The states of a closure and the transitions between them. Pure."""

from __future__ import annotations

import enum

from psnb.errors import InternalError


class ClosureStatus(enum.Enum):
    """The status of a closure."""

    QUEUED = "queued"
    """Waits for a worker."""
    RUNNING = "running"
    """Was sent to a worker."""
    COMPLETED = "completed"
    """Returned; its value can be fetched."""
    FAILED = "failed"
    """Raised, or was lost with its workers too often."""
    CANCELLED = "cancelled"
    """Never ran to its end: another closure failed, or the coordinator was closed."""


_TRANSITIONS = {
    ClosureStatus.QUEUED: {
        ClosureStatus.RUNNING,
        ClosureStatus.FAILED,  # there was no worker for too long
        ClosureStatus.CANCELLED,
    },
    ClosureStatus.RUNNING: {
        ClosureStatus.QUEUED,  # its worker was lost
        ClosureStatus.COMPLETED,
        ClosureStatus.FAILED,
        ClosureStatus.CANCELLED,
    },
    ClosureStatus.COMPLETED: set(),
    ClosureStatus.FAILED: set(),
    ClosureStatus.CANCELLED: set(),
}


def check_transition(old: ClosureStatus, new: ClosureStatus) -> None:
    """Raise InternalError unless a closure may go from ``old`` to ``new``."""
    if new not in _TRANSITIONS[old]:
        raise InternalError(f"a closure cannot go from {old.value} to {new.value}")
