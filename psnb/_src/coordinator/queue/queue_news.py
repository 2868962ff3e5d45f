"""QueueNews: what happened to closures, until it is told. Pure, without locks.

The queue adds to it under its lock, takes it all, and tells it when the lock is free again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from psnb._src.coordinator.closures import Closure
from psnb._src.monitor import EventKind, EventLog


class QueueNews:
    """Events and failures that were not told yet; true if there are any."""

    def __init__(self) -> None:
        self._events: list[tuple[EventKind, str, Sequence[Closure]]] = []
        self._failures: list[tuple[str, Closure, bytes]] = []

    def __bool__(self) -> bool:
        return bool(self._events or self._failures)

    def add(self, kind: EventKind, text: str, closures: Sequence[Closure] = ()) -> None:
        """Add an event, and the closures that it is about."""
        self._events.append((kind, text, closures))

    def add_failure(self, worker: str, closure: Closure, error: bytes) -> None:
        """Add what a closure raised, pickled, and where it ran."""
        self._failures.append((worker, closure, error))

    def take(self) -> QueueNews:
        """Return all that was added, and forget it."""
        taken = QueueNews()
        taken._events, self._events = self._events, taken._events
        taken._failures, self._failures = self._failures, taken._failures
        return taken

    def tell(self, events: EventLog, on_failure: Callable[[str, Closure, bytes], None]) -> None:
        """Write the events into a log and call back with each failure."""
        for kind, text, closures in self._events:
            events.add(kind, text, closures=closures)
        for failure in self._failures:
            on_failure(*failure)
