"""Events: what happened to workers, servers and closures, and when. Pure, thread-safe."""

from __future__ import annotations

import enum
import logging
import time
import traceback
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any, Literal, NamedTuple, Protocol

from psnb._src.utils.text import NAME, PAGE, text_of, truncate
from psnb._src.utils.threads import Lock, uninterrupted
from psnb.errors import ConfigurationError

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
    """A worker gets no new closures, and finishes those that it has."""
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
    COORDINATOR_PAUSED = "coordinator paused"
    """No closure begins from now on."""
    COORDINATOR_RESUMED = "coordinator resumed"
    """Closures begin again."""
    CHECKPOINT_SAVED = "checkpoint saved"
    """A checkpoint was saved automatically."""
    CHECKPOINT_FAILED = "checkpoint failed"
    """One that was due cannot be saved; it is tried again, and success is an event, too."""
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
    EventKind.UPDATES_LOST,
    EventKind.SHARDS_LOST,
    EventKind.CHECKPOINT_FAILED,
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

    Of one kind at most `MOST_WARNINGS` a minute are logged as warnings.

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
        except Exception:  # of a user's handler or filter: what was to be recorded goes on
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
        """Return how many there were of a kind, those that are forgotten included."""
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


# The states of coordinators, workers and servers: what each means, and which tone it has. Pure.
#
# They are defined here once. Widget, panel, saved summary and progress line show the words as they
# are, and have one colour a tone.

Tone = Literal["good", "busy", "waiting", "bad", "quiet"]
"""How a state is to be taken: all is well; work is done; something is awaited, or held back on
purpose; people must do something; nothing goes on any more, or nothing is known."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What the state of a coordinator is derived from.

    Attributes
    ----------
    closed : bool
        Whether it was closed.
    failing : bool
        Whether the error of a closure waits to be raised.
    parameters_lost : bool
        Whether shards are lost with all of their replicas.
    paused : bool
        Whether no closures are begun.
    queued, in_flight : int
        Closures that wait, and closures that workers have.
    workers : int
        Workers that are here, or that it is connecting to.
    """

    closed: bool = False
    failing: bool = False
    parameters_lost: bool = False
    paused: bool = False
    queued: int = 0
    in_flight: int = 0
    workers: int = 1


class StateRule(NamedTuple):
    """A state of a coordinator: its word, its tone, what it means, and when it holds."""

    state: str
    tone: Tone
    meaning: str
    holds: Callable[[Situation], object]


CLOSED = "closed"
RUNNING = "running"
IDLE = "idle"

COORDINATOR_STATES: tuple[StateRule, ...] = (
    StateRule(CLOSED, "quiet", "It was closed; these are its last figures.", lambda s: s.closed),
    StateRule(
        "failing",
        "bad",
        "A closure has failed. The next schedule, join or done raises its error.",
        lambda s: s.failing,
    ),
    StateRule(
        "parameters lost",
        "bad",
        "Servers are lost with all copies of some parameters. strategy.recover() brings these back "
        "from a checkpoint, strategy.recover(initialize=True) starts over without one.",
        lambda s: s.parameters_lost,
    ),
    StateRule(
        "draining",
        "waiting",
        "No closure begins any more; those that workers have end.",
        lambda s: s.paused and s.in_flight,
    ),
    StateRule("paused", "waiting", "No closure begins until Resume.", lambda s: s.paused),
    StateRule(
        "no workers",
        "bad",
        "Closures wait, and there is no worker. Start one, for example with `dask worker`.",
        lambda s: s.queued and not s.workers,
    ),
    StateRule(RUNNING, "busy", "Closures run or wait.", lambda s: s.queued or s.in_flight),
    StateRule(IDLE, "good", "All that was scheduled has ended.", lambda s: True),
)
"""The states of a coordinator: it is in the first one that holds."""

WORKER_TONES: dict[str, Tone] = {
    "connecting": "waiting",
    "ready": "good",
    "draining": "waiting",
    "retired": "quiet",
    "lost": "bad",
    "released": "quiet",
}
"""The states of a worker. Retired is one that left on purpose; released, one whose coordinator was
closed."""

SERVER_TONES: dict[str, Tone] = {
    "unknown": "quiet",
    "serving": "good",
    "unreachable": "bad",
    "lost": "bad",
    "released": "quiet",
}
"""The states of a server. Unknown is one that was not asked yet; lost, one whose process has ended,
until all shards have a server again; released, one whose coordinator was closed."""

_RULES = {rule.state: rule for rule in COORDINATOR_STATES}


def coordinator_state(situation: Situation) -> str:
    """Return the word for the state of a coordinator."""
    return next(rule.state for rule in COORDINATOR_STATES if rule.holds(situation))


def coordinator_tone(state: str) -> Tone:
    """Return the tone of a coordinator's state; an unknown state is quiet."""
    return _RULES[state].tone if state in _RULES else "quiet"


def meaning(state: str) -> str:
    """Return what a coordinator's state means, in a sentence; nothing for an unknown state."""
    return _RULES[state].meaning if state in _RULES else ""


# Failures: which closures raised, where, and with what traceback. Thread-safe.
#
# The threads that settle closures write it, the notebook's and the views' threads read it.
# Exceptions stay pickled until they are read: unpickling runs code of the exception's class,
# for which neither a lock nor an event loop should wait. What calls a closure again is pickled,
# too, and is only here: a `Failure` in a variable keeps none of it alive.

MOST_FAILURES = 200
"""Failures that are kept; beyond that the oldest are forgotten."""

MOST_BYTES = 16 << 20
"""Bytes of unread exceptions; beyond that, the oldest exceptions are dropped."""

MOST_CALL_BYTES = 64 << 20
"""Bytes of functions and arguments that are kept to be called again; beyond that, the oldest are
dropped, and those of a call that is larger are not kept at all."""


class FailedCall(Protocol):
    """What is needed to call a closure again."""

    @property
    def parts(self) -> list[bytes]:
        """What it keeps; the same object in several calls counts once."""

    def __call__(self) -> Any:
        """Call it."""


class _Calls:
    """The way from a failure to what its log keeps; it keeps nothing alive."""

    def __init__(self, log: FailureLog | None = None) -> None:
        self._log = None if log is None else weakref.ref(log)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Calls, ()  # elsewhere there is nothing to call

    def find(self, number: int) -> FailedCall:
        log = None if self._log is None else self._log()
        call = None if log is None else log.call_of(number)
        if call is None:
            raise ConfigurationError(
                f"the arguments of failure {number} are not kept: those of the last "
                f"{MOST_FAILURES} are, up to {MOST_CALL_BYTES >> 20} MiB, for as long as the "
                "coordinator is there"
            )
        return call


@dataclass(frozen=True, slots=True)
class Failure:
    """A closure that raised, or was lost with its workers too often.

    Attributes
    ----------
    number : int
        Counts a coordinator's failures from 0.
    time : float
        When the notebook learned of it, in seconds since the epoch.
    worker : str
        The name of the worker where it ran last; empty if unknown.
    closure : str
        ``"function #id"``.
    error : str
        ``"Type: message"``, the message's first line; at most 300 characters.
    traceback : str
        What the notebook shows: the whole message, a line about the call, and the user's frames;
        at most 10,000 characters. A longer text loses its middle.
    full : str
        All frames of the worker, psnb's and the libraries' too, and of what caused the error; as
        long at most.
    """

    number: int
    time: float
    worker: str
    closure: str
    error: str
    traceback: str
    full: str
    _calls: _Calls = field(repr=False, compare=False)

    def __repr__(self) -> str:
        return f"<psnb.Failure {self.number}: {self.closure} on {self.worker}: {self.error}>"

    def rerun(self) -> Any:
        """Call the closure again, in this process, and write nothing: for ``%debug`` and for pdb.

        The function and its arguments are those of the closure, from when it was scheduled; remote
        values among them have their results. Parameters are read from the servers as they are now;
        pushes and assigned values are checked, seen by later reads of this call, and dropped.
        (Only an id that is pushed and then looked up may get its row, with its initial values.)
        What would change a parameter at once and for all, such as `Embedding.shrink`, is refused.
        `psnb.report` is dropped, and `psnb.worker_context` is that of the worker.

        Per-worker values are made here again, by the same function: what closures have changed in
        them since is not in them. An iterator gives the elements that the closure had taken when it
        failed: they were kept if they were at most 64, of 8 MiB together, and can be pickled. They
        are as the closure left them, as copies of all would cost every closure time: what it has
        written into a batch is in it.

        The arguments of the last 200 failures are kept, 64 MiB at most, until the coordinator is
        forgotten; a `Failure` that is held does not keep them.

        Returns
        -------
        object
            What the closure returns, if it does not fail this time.

        Raises
        ------
        Exception
            What the closure raises, with the frames of this process.
        ClosureInputError
            If it asks for an element that was not kept, or a per-worker value cannot be made here.
        ConfigurationError
            If its arguments are not kept any more, or it would change parameters at once.
        CoordinatorClosedError
            If the strategy is closed.
        """
        return self._calls.find(self.number)()


@dataclass
class _Noted:
    number: int
    time: float
    worker: str
    closure: str
    packed: bytes
    call: FailedCall | None
    calls: _Calls
    read: Failure | None = None

    def tell(self, error: str, shown: str, full: str) -> Failure:
        """Keep the texts, and drop the exception."""
        read = Failure(
            self.number, self.time, self.worker, self.closure, error, shown, full, self.calls
        )
        self.read = read
        self.packed = b""
        return read


_SHED = "not kept: too much was raised before it was read"


class FailureLog:
    """The latest failures of a coordinator.

    Parameters
    ----------
    unpack : callable
        Turns the bytes of a failure into its exception, and never raises.
    """

    def __init__(self, unpack: Callable[[bytes], BaseException]) -> None:
        self._unpack = unpack
        self._lock = Lock()  # guards the next three, for a moment each
        self._noted: deque[_Noted] = deque(maxlen=MOST_FAILURES)
        self._count = 0
        self._last: dict[str, _Noted] = {}  # by worker
        self._calls = _Calls(self)

    def add(self, worker: str, closure: str, packed: bytes, call: FailedCall | None = None) -> None:
        """Note that a closure failed now, and how to call it again."""
        with self._lock:
            noted = _Noted(self._count, time.time(), worker, closure, packed, call, self._calls)
            self._count += 1
            self._noted.append(noted)
            self._last[worker] = noted
            self._shed()

    def since(self, number: int) -> tuple[Failure, ...]:
        """Return the kept failures with this number or a higher one, oldest first."""
        with self._lock:
            noted = [each for each in self._noted if each.number >= number]
        return tuple(map(self._read, noted))

    def last_of(self, worker: str) -> str:
        """Return the error of a worker's last failure, in one line; empty if there was none."""
        with self._lock:
            noted = self._last.get(worker)
        return "" if noted is None else self._read(noted).error

    def call_of(self, number: int) -> FailedCall | None:
        """Return what calls the closure of a failure again, if that is kept."""
        with self._lock:
            return next((each.call for each in self._noted if each.number == number), None)

    def _shed(self) -> None:
        kept: set[int] = set()  # what some call keeps, by identity
        total = 0
        for noted in reversed(self._noted):
            new = {id(part): len(part) for part in noted.call.parts} if noted.call else {}
            total += sum(count for part, count in new.items() if part not in kept)
            kept |= new.keys()
            if total > MOST_CALL_BYTES:
                noted.call = None
        unread = sum(len(each.packed) for each in self._noted)
        for noted in islice(self._noted, len(self._noted) - 1):  # the newest is kept, however large
            if unread <= MOST_BYTES:
                break
            unread -= len(noted.packed)
            if noted.read is None:
                noted.tell(_SHED, _SHED, _SHED)

    def _read(self, noted: _Noted) -> Failure:
        # In this order: once `read` is set, `packed` is dropped.
        packed, read = noted.packed, noted.read
        if read is None:
            # Two threads may both do this; the result is the same.
            error = self._unpack(packed)
            read = noted.tell(_one_line(error), *_pages(error))
        return read


def _one_line(error: BaseException) -> str:
    first = text_of(error).partition("\n")[0]
    return truncate(f"{type(error).__name__}: {first}" if first else type(error).__name__)


def _pages(error: BaseException) -> tuple[str, str]:
    text = "".join(traceback.format_exception_only(error)).rstrip()
    return truncate(text, PAGE), truncate(getattr(error, "full_traceback", text), PAGE)
