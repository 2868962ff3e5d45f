"""Events of workers, servers and closures, with their times. Pure, thread-safe."""

from __future__ import annotations

import enum
import logging
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, takewhile

from psnb._src.utils.interrupts import Lock, uninterrupted
from psnb._src.utils.text import NAME, truncate

logger = logging.getLogger("psnb")

MOST_EVENTS = 10_000
"""Events that are kept; beyond that the oldest are forgotten."""

_MOST_CLOSURES = 20


class EventKind(enum.Enum):
    """The kind of an event."""

    WORKER_JOINED = "worker joined"
    """A worker answers and gets work; its per-worker values are made there from now on."""
    WORKER_UNREACHABLE = "worker unreachable"
    """A worker that Dask knows does not answer, or is not prepared; psnb tries again."""
    WORKER_RETIRING = "worker retiring"
    """A worker gets no new closures, and finishes its present ones."""
    WORKER_RETIRED = "worker retired"
    """A retiring worker has finished them."""
    WORKER_LOST = "worker lost"
    """A worker died, hung, or did not finish in time; its closures run again elsewhere."""
    WORKER_AWAITED = "worker awaited"
    """Closures wait, by ``schedule(worker=)``, for a worker that was not here for some seconds."""
    NO_WORKERS = "no workers"
    """There was no worker for ``worker_timeout``, or ``heartbeat_timeout`` if parameters are lost:
    the queued closures have failed."""
    CLOSURES_RETRIED = "closures retried"
    """Closures of a lost worker are queued again."""
    CLOSURE_FAILED = "closure failed"
    """A closure raised, or was lost with its workers too often."""
    CLOSURES_CANCELLED = "closures cancelled"
    """Closures were cancelled, because another one failed or on close."""
    CLOSURES_ABANDONED = "closures abandoned"
    """Closures had not ended when their coordinator was closed, or at the end of Python."""
    FAILURES_CLEARED = "failures cleared"
    """Closures were cancelled with one whose error ``fetch`` has raised; later ones run."""
    SERVER_LOST = "server lost"
    """A parameter server has ended; the shards that only it held are lost."""
    SERVER_UNRESPONSIVE = "server unresponsive"
    """A parameter server does not answer: it is frozen or out of reach, and may come back."""
    SERVER_BACK = "server back"
    """An unresponsive parameter server answers again."""
    SERVER_NEARLY_FULL = "server nearly full"
    """A parameter server has four fifths of the memory that it may have. Near the end of it,
    `ServerMemoryError` refuses what would be too much."""
    SERVER_JOINED = "server joined"
    """A worker has become a parameter server, in place of a lost one or for `rebalance`."""
    SERVER_RETIRING = "server retiring"
    """A server's process was asked to end; its shards move to others while it answers."""
    SERVER_RETIRED = "server retired"
    """It has handed over all shards, or all was saved, and it has ended."""
    SHARDS_TAKEN_OVER = "shards taken over"
    """The replicas of a lost server's shards have taken over."""
    UPDATES_LOST = "updates lost"
    """Copies that were no longer kept complete have taken over; the latest updates may be
    missing."""
    SHARDS_LOST = "shards lost"
    """Shards were lost with all of their replicas; `recover` brings them back from a checkpoint."""
    SHARDS_RECOVERED = "shards recovered"
    """`recover` has brought shards back."""
    SHARDS_MOVED = "shards moved"
    """`rebalance` has moved shards to other servers."""
    ROWS_UNMOVED = "rows hardly moved"
    """An epoch has hardly moved the rows of embeddings that were pushed: they learn nothing."""
    BOUND_TOO_SMALL = "bound too small"
    """Of the ids that were pushed to a table with ``max_rows``, more than 1 % had lost their rows
    to others since they were looked up."""
    COORDINATOR_PAUSED = "coordinator paused"
    """No closure begins from now on."""
    COORDINATOR_RESUMED = "coordinator resumed"
    """Closures begin again."""
    CHECKPOINT_SAVED = "checkpoint saved"
    """A checkpoint was saved automatically."""
    CHECKPOINT_FAILED = "checkpoint failed"
    """One that was due cannot be saved; it is tried again, and success is an event, too."""
    REWOUND = "rewound"
    """All parameters went back to a mark or a checkpoint."""
    COMMAND_GIVEN = "command given"
    """Somebody used a control of a live view."""
    COORDINATOR_CLOSED = "coordinator closed"
    """The coordinator was closed, or the Dask client under it."""


_WARNED = {
    EventKind.WORKER_UNREACHABLE,
    EventKind.WORKER_LOST,
    EventKind.WORKER_AWAITED,
    EventKind.NO_WORKERS,
    EventKind.CLOSURE_FAILED,
    EventKind.CLOSURES_ABANDONED,
    EventKind.FAILURES_CLEARED,
    EventKind.SERVER_LOST,
    EventKind.SERVER_UNRESPONSIVE,
    EventKind.SERVER_NEARLY_FULL,
    EventKind.UPDATES_LOST,
    EventKind.SHARDS_LOST,
    EventKind.CHECKPOINT_FAILED,
    EventKind.ROWS_UNMOVED,
    EventKind.BOUND_TOO_SMALL,
}

MOST_WARNINGS, _MINUTE = 20, 60.0
"""Warnings of one kind that are logged within a minute; further ones are logged as infos. A step
that fails on each of many workers would fill the notebook's page otherwise."""


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
        The name of the worker that it concerns; empty if there is none.
    message : str
        A description for people, in one line of at most 300 characters.
    closures : tuple of str
        The affected closures, as ``"function #id"``: the first twenty; the message says how many
        there are.
    """

    time: float
    kind: EventKind
    worker: str
    message: str
    closures: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<psnb.Event {self.kind.value}: {self.message}>"


class EventLog:
    """The latest events of a coordinator or strategy; each is logged under ``psnb`` as well.

    At most `MOST_WARNINGS` a minute of one kind are logged as warnings.

    How many there were of each kind is never forgotten. Thread-safe.

    Parameters
    ----------
    limit : int
        How many are kept.
    """

    def __init__(self, limit: int = MOST_EVENTS) -> None:
        self._lock = Lock()  # guards the deque, which must not grow while it is copied, and counts
        self._events: deque[Event] = deque(maxlen=limit)
        self._counts: Counter[EventKind] = Counter()
        self._warned: dict[EventKind, tuple[float, int]] = {}  # since when, and how many

    @uninterrupted  # logging has locks too, which the event loop needs
    def add(
        self, kind: EventKind, message: str, worker: str = "", closures: Iterable[object] = ()
    ) -> None:
        """Record an event now."""
        affected = tuple(str(closure) for closure in islice(closures, _MOST_CLOSURES))
        message, worker = truncate(message), truncate(str(worker), NAME)
        event = Event(time.time(), kind, worker, message, affected)
        with self._lock:
            self._events.append(event)
            self._counts[kind] += 1
            warned = self._warn(event)
        if warned == MOST_WARNINGS:
            message += " (of this kind, this is the last warning for a minute)"
        level = logging.WARNING if 0 < warned <= MOST_WARNINGS else logging.INFO
        try:
            logger.log(level, "%s", message)
        except Exception:  # of a user's handler or filter: the event is recorded all the same
            traceback.print_exc()

    def _warn(self, event: Event) -> int:
        """Return how many warnings of its kind there are within a minute; 0 if it is none."""
        if event.kind not in _WARNED:
            return 0
        since, number = self._warned.get(event.kind, (event.time, 0))
        if not 0 <= event.time - since < _MINUTE:  # clocks are also set back
            since, number = event.time, 0
        self._warned[event.kind] = since, number + 1
        return number + 1

    def count(self, kind: EventKind) -> int:
        """Return how many there were of a kind, including forgotten ones."""
        with self._lock:
            return self._counts[kind]

    def all(self) -> tuple[Event, ...]:
        """Return the events that are kept, the oldest first."""
        with self._lock:
            return tuple(self._events)

    def since(self, when: float) -> tuple[Event, ...]:
        """Return the events after a time, in seconds since the epoch, oldest first."""
        with self._lock:
            late = tuple(takewhile(lambda event: event.time > when, reversed(self._events)))
        return late[::-1]
