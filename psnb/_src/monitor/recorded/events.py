"""Events: what happened to workers, servers and closures, and when. Pure, thread-safe."""

from __future__ import annotations

import enum
import logging
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, takewhile

from psnb._src.excerpt import NAME, excerpt
from psnb._src.threads import Lock, uninterrupted

logger = logging.getLogger("psnb")

MOST_EVENTS = 10_000
"""Events that are kept; beyond that the oldest are forgotten."""

_MOST_CLOSURES = 20


class EventKind(enum.Enum):
    """What an event tells of."""

    WORKER_JOINED = "worker joined"
    """A worker answers and gets work; its per-worker values are made there from now on."""
    WORKER_UNREACHABLE = "worker unreachable"
    """A worker that Dask knows does not answer, or is not prepared; it is tried again."""
    WORKER_RETIRING = "worker retiring"
    """A worker gets no new closures and finishes those that it has."""
    WORKER_RETIRED = "worker retired"
    """A retiring worker has finished them."""
    WORKER_LOST = "worker lost"
    """A worker died, hung, or did not finish in time; its closures run again elsewhere."""
    NO_WORKERS = "no workers"
    """There was no worker for ``worker_timeout`` seconds; what was queued has failed."""
    CLOSURES_RETRIED = "closures retried"
    """Closures of a lost worker are queued again."""
    CLOSURE_FAILED = "closure failed"
    """A closure raised, or was lost with its workers too often."""
    CLOSURES_CANCELLED = "closures cancelled"
    """Closures were cancelled, because another one failed or on close."""
    SERVER_LOST = "server lost"
    """A parameter server has ended, and what it held with it."""
    SERVER_SILENT = "server silent"
    """A parameter server says nothing: it is frozen or out of reach, and may come back."""
    SERVER_BACK = "server back"
    """A parameter server that said nothing answers again."""
    SERVER_JOINED = "server joined"
    """A worker has become a parameter server, in place of a lost one or for `rebalance`."""
    SHARDS_TAKEN_OVER = "shards taken over"
    """The copies of a lost server's shards have become the shards."""
    UPDATES_LOST = "updates lost"
    """Shards were taken over by copies that were no more kept complete; the latest updates of these
    few moments may be missing."""
    SHARDS_LOST = "shards lost"
    """Shards were lost with all of their copies; `recover` brings them back from a checkpoint."""
    SHARDS_RECOVERED = "shards recovered"
    """`recover` has brought shards back."""
    SHARDS_MOVED = "shards moved"
    """`rebalance` has moved shards to other servers."""
    COORDINATOR_PAUSED = "coordinator paused"
    """Nothing new is begun from now on."""
    COORDINATOR_RESUMED = "coordinator resumed"
    """Closures are begun again."""
    COMMAND_GIVEN = "command given"
    """Somebody used a control of a live view."""
    COORDINATOR_CLOSED = "coordinator closed"
    """The coordinator was closed, or the Dask client under it."""


_LOSSES = {
    EventKind.WORKER_UNREACHABLE,
    EventKind.WORKER_LOST,
    EventKind.NO_WORKERS,
    EventKind.SERVER_LOST,
    EventKind.SERVER_SILENT,
    EventKind.UPDATES_LOST,
    EventKind.SHARDS_LOST,
}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    Attributes
    ----------
    time : float
        When, in seconds since the epoch.
    kind : EventKind
        What.
    worker : str
        The name of the worker that it happened to; empty if to none.
    message : str
        The same for people, in one line of at most 300 characters.
    closures : tuple of str
        The closures that were affected, as ``"function #id"``: the first twenty of them, the
        message tells how many there are.
    """

    time: float
    kind: EventKind
    worker: str
    message: str
    closures: tuple[str, ...]


class EventLog:
    """The latest events of a coordinator or strategy; each is logged under ``psnb`` as well.

    Thread-safe.

    Parameters
    ----------
    limit : int
        How many are kept.
    """

    def __init__(self, limit: int = MOST_EVENTS) -> None:
        self._lock = Lock()  # guards the deque, which must not grow while it is copied
        self._events: deque[Event] = deque(maxlen=limit)

    @uninterrupted  # the locks of logging too, which the event loop needs
    def add(
        self, kind: EventKind, message: str, worker: str = "", closures: Iterable[object] = ()
    ) -> None:
        """Note that something happened now."""
        affected = tuple(str(closure) for closure in islice(closures, _MOST_CLOSURES))
        message, worker = excerpt(message), excerpt(str(worker), NAME)
        event = Event(time.time(), kind, worker, message, affected)
        with self._lock:
            self._events.append(event)
        logger.log(logging.WARNING if kind in _LOSSES else logging.INFO, "%s", message)

    def all(self) -> tuple[Event, ...]:
        """Return the events that are kept, the oldest first."""
        with self._lock:
            return tuple(self._events)

    def since(self, when: float) -> tuple[Event, ...]:
        """Return those later than that, in seconds since the epoch, the oldest first."""
        with self._lock:
            late = tuple(takewhile(lambda event: event.time > when, reversed(self._events)))
        return late[::-1]
