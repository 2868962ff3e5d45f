"""What a closure or dataset function can ask about where it runs.

The context is thread-local: set by the runtime around each closure and each function that makes a
per-worker value, absent elsewhere.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TextIO

from numba.core import event

from psnb._src.metrics.metric import MetricState
from psnb._src.protocol.messages import Taken
from psnb._src.protocol.packing import PROTOCOL, dumps
from psnb._src.utils.ahead import require_closure
from psnb._src.utils.foreign_names import SaysWhatToUse
from psnb._src.utils.text import NAME, printable, truncate
from psnb._src.worker.leasing import LeaseRequests
from psnb._src.worker.mail import PeerMessages
from psnb.errors import ConfigurationError

# Activities: what the threads of a worker do at the moment, for people who wait for it.
#
# Each thread writes its own, the event loop reads them: operations on a dict and on a list are
# atomic. Compiling is seen in whatever thread it happens, as closures wait for it.

_doing: dict[int, tuple[str, float]] = {}  # by thread: what, and since when
_compiling: list[str] = []  # functions, the outermost first


class Activity:
    """Notes what a thread does in a block; since when, is that of its outermost block.

    A class, as each closure is such a block: a generator would take three times as long.
    """

    __slots__ = ("_before", "_thread", "_what")

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        self._before = _doing.get(self._thread)
        since = self._before[1] if self._before else time.monotonic()
        _doing[self._thread] = self._what, since

    def __exit__(self, *exc_info: object) -> None:
        if self._before:
            _doing[self._thread] = self._before
        else:
            del _doing[self._thread]


def longest(threads: Iterable[int | None]) -> tuple[str, float]:
    """Return what those of these threads does that is at it the longest, and for how many seconds.

    Nothing, and zero seconds, if none of them does anything.
    """
    busy = [found for each in threads if each is not None and (found := _doing.get(each))]
    if not busy:
        return "", 0.0
    what, since = min(busy, key=lambda each: each[1])
    compiling = _compiling[:1]  # another thread may end it in this moment
    return f"compiling {compiling[0]}" if compiling else what, time.monotonic() - since


class _Listener(event.Listener):
    """Called for what numba compiles, and not for what it finds compiled already."""

    def on_start(self, event: Any) -> None:
        _compiling.append(event.data["dispatcher"].py_func.__name__)

    def on_end(self, event: Any) -> None:
        _compiling.pop()


event.register("numba:compile", _Listener())


# ReportedStates: the metrics that one closure reports, and how they travel. Pure.
#
# They travel in front of the closure's pickled result, and never without it: servers remember them
# beside its commit, and the notebook takes both or none. So a closure that ran twice counts once,
# as its writes do, whichever of its results arrives. Of numbers, weighted sums travel so; besides,
# each is sent at once, for charts.

EXAMPLES = "examples"
"""The number that counts training examples: ``psnb.report(examples=len(batch))``."""

_MARK = b"M"  # a pickle begins with another byte; an outcome without states is sent as it is
_LENGTH = 4


class ReportedStates:
    """What one closure has reported so far; for all threads that it uses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the dicts: two threads may merge under one name
        self._states: dict[str, MetricState] = {}
        # By name: the sum of the finite ones, each times its weight; all weights; and how many are
        # not finite.
        self._numbers: dict[str, tuple[float, float, int]] = {}

    def add(self, states: Mapping[str, MetricState]) -> None:
        """Merge states into those of the same names: all, or none.

        Raises
        ------
        ConfigurationError
            If one of another metric was reported under the same name.
        """
        with self._lock:
            merged = {
                name: self._states[name] + state if name in self._states else state
                for name, state in states.items()
            }
            self._states |= merged

    def add_numbers(self, values: Mapping[str, float]) -> None:
        """Add numbers, each weighted by the examples that are among them; by 1 without."""
        with self._lock:
            for name, value in values.items():
                weight = 1.0 if name == EXAMPLES else values.get(EXAMPLES, 1.0)
                total, weights, not_finite = self._numbers.get(name, (0.0, 0.0, 0))
                if math.isfinite(value):
                    total += value * weight
                else:
                    not_finite += 1
                self._numbers[name] = total, weights + weight, not_finite

    def absorb(self, other: ReportedStates) -> None:
        """Add what another closure has reported; raises if states do not fit, and adds nothing."""
        self.add(other.merged())
        with self._lock:
            for name, added in other._numbers.items():
                before = self._numbers.get(name, (0.0, 0.0, 0))
                total, weights, not_finite = (a + b for a, b in zip(before, added, strict=True))
                self._numbers[name] = total, weights, int(not_finite)

    def merged(self) -> dict[str, MetricState]:
        """Return the states by name."""
        with self._lock:
            return dict(self._states)

    def attach(self, packed: bytes) -> bytes:
        """Return a packed result with numbers and states in front of it, if there are any."""
        with self._lock:
            reported = self._numbers, self._states
        if not any(reported):
            return packed
        try:
            front = pickle.dumps(reported, PROTOCOL)
        except (pickle.PicklingError, AttributeError):
            front = dumps(reported, "the reported metrics")  # by value: a metric of the user's own
        return b"".join((_MARK, len(front).to_bytes(_LENGTH, "little"), front, packed))


def split_outcome(outcome: bytes) -> tuple[bytes, bytes]:
    """Return the packed result, and the packed metrics that were put in front; empty if none."""
    if not outcome.startswith(_MARK):
        return outcome, b""
    start = len(_MARK) + _LENGTH
    end = start + int.from_bytes(outcome[len(_MARK) : start], "little")
    return outcome[end:], outcome[start:end]


_WEIGHT = b"W"
_FLOAT = struct.Struct("<d")


def with_weight(front: bytes, weight: float | None) -> bytes:
    """Return what stands in front of a result, with what it counts in its round, if it says so."""
    return front if weight is None else b"".join((_WEIGHT, _FLOAT.pack(weight), front))


def split_front(front: bytes) -> tuple[bytes, float | None]:
    """Return the packed metrics, empty if none, and what it counts in its round."""
    weight = None
    if front.startswith(_WEIGHT):
        (weight,) = _FLOAT.unpack_from(front, len(_WEIGHT))
        front = front[len(_WEIGHT) + _FLOAT.size :]
    return split_outcome(front)[1], weight


def split_value(outcome: bytes) -> tuple[bytes, bytes]:
    """Return what stands in front of a result, and the packed result."""
    start = len(_WEIGHT) + _FLOAT.size if outcome.startswith(_WEIGHT) else 0
    value, _ = split_outcome(outcome[start:])
    return outcome[: len(outcome) - len(value)], value


_TAKEN = b"T"


def with_taken(packed: bytes, used: Sequence[Taken]) -> bytes:
    """Return an outcome as servers remember it: with what the closure has taken in front of it."""
    if not used:
        return packed
    front = pickle.dumps([tuple(each) for each in used], PROTOCOL)
    return b"".join((_TAKEN, len(front).to_bytes(_LENGTH, "little"), front, packed))


def split_taken(remembered: bytes) -> tuple[bytes, list[Taken]]:
    """Return the outcome, and what was in front of it."""
    if not remembered.startswith(_TAKEN):
        return remembered, []
    start = len(_TAKEN) + _LENGTH
    end = start + int.from_bytes(remembered[len(_TAKEN) : start], "little")
    return remembered[end:], [Taken(*each) for each in pickle.loads(remembered[start:end])]


@dataclass(frozen=True, slots=True)
class InputContext(SaysWhatToUse):
    """The worker on which a dataset or resource function runs; after TensorFlow's class.

    Attributes
    ----------
    num_workers : int
        Workers that the strategy had when this one was connected.
    worker_index : int
        This worker's index, counted from 0. A worker that replaces a lost one takes its index.
    """

    num_workers: int
    worker_index: int


class Cancellation:
    """Tells one closure that its result is not wanted any more; set once, by any thread."""

    __slots__ = ("recalled", "requested", "revoked")

    def __init__(self) -> None:
        self.recalled = False  # if it is a run: to end with the step that it does
        self.requested = False
        self.revoked = False  # likewise, and it must write nothing


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """Where the current closure or function runs.

    Attributes
    ----------
    worker_index : int
        This worker among the coordinator's, counted from 0.
    num_workers : int
        Workers that the strategy had when this one was connected.
    worker_name : str
        Its name in the Dask cluster; ``worker-0`` or the like if it has none there but its address.
    attempt : int
        1 when the closure runs for the first time, one more after each lost worker.
    closure : int
        The closure's number among its coordinator's, the same in all attempts; -1 in a function
        that makes a per-worker value.
    """

    worker_index: int
    num_workers: int
    worker_name: str
    attempt: int
    send_report: Callable[[float, dict[str, float]], None]
    cancellation: Cancellation = field(default_factory=Cancellation)
    lease_requests: LeaseRequests | None = None
    mail: PeerMessages | None = None
    closure: int = -1
    states: ReportedStates | None = None

    @property
    def cancelled(self) -> bool:
        """Whether the closure should stop early; cheap, ask as often as you like.

        True when another closure has failed, whose error is raised once this closure has ended,
        when the coordinator has closed or is out of reach, and after a call to
        `RemoteValue.cancel`. Nothing stops a closure that does not ask. One that returns while this
        is true has completed like any other, unless it was cancelled: what it returns and writes
        counts. Raise an exception if it must not count.
        """
        return self.cancellation.requested


_local = threading.local()


@contextmanager
def entered(context: WorkerContext) -> Iterator[None]:
    """Make a context the current one of this thread, in place of the one before."""
    before = _context()
    _local.context = context
    try:
        yield
    finally:
        _local.context = before


def current_context() -> WorkerContext | None:
    """Return the context of this thread; None outside of closures."""
    require_closure()
    return _context()


def _context() -> WorkerContext | None:
    found: WorkerContext | None = getattr(_local, "context", None)
    return found


def worker_context() -> WorkerContext:
    """Return where the closure or dataset function that calls this runs.

    Raises
    ------
    ConfigurationError
        If called outside of a closure.
    """
    context = current_context()
    if context is None:
        raise ConfigurationError(
            "worker_context() and worker_index() work inside a closure, a dataset function or a "
            "resource function, and this is none: schedule it with coordinator.schedule(...)"
        )
    return context


def worker_index() -> int:
    """Return the index of the worker that runs the closure, counted from 0.

    Raises
    ------
    ConfigurationError
        If called outside of a closure.
    """
    return worker_context().worker_index


def report(**metrics: float | MetricState) -> None:
    """Report metrics from inside a closure, for the widget, the progress line and the history.

    Cheap and never blocks. Outside a closure the values are checked and dropped, so a step can be
    tried out by hand.

    A number is sent at once, and charted as one value among others: a closure that runs again after
    its worker was lost is charted again. What `Trainer` makes of numbers, and the totals in
    `ClusterCoordinator.statistics`, go with the closure's result: one that ran twice counts once,
    and one that raises does not count. A number is weighted by the ``examples`` that are reported
    in the same call, if they are: so a shorter batch counts less in the mean of an epoch.

    The state of a metric of `psnb.metrics` goes with the closure's result, too, and those of all
    closures are merged exactly. `ClusterCoordinator.metrics` has them; the history and the
    live views have the merged value as ``auc``, and that of the examples of about the last second
    as ``batch_auc`` (of ``train/auc`` as ``train/batch_auc``).

    Parameters
    ----------
    **metrics : float or MetricState
        Values by name: anything that `float` accepts, or the state of a metric, such as
        ``auc=psnb.metrics.AUC()(labels, scores)``; a name has one or the other, and control
        characters of it are escaped. A loss may be NaN or infinite, and is shown so; ``examples``,
        of which a sum is kept, must be finite. A coordinator keeps the first 500 names; what is
        reported under others is dropped, with a warning in its log.

    Raises
    ------
    ConfigurationError
        If a value is neither, ``examples`` is not a finite number, a name has over 200 characters,
        or the closure has reported a state of another metric under this name. For a state in a
        function that makes a per-worker value, which has no result.
    """
    values: dict[str, float] = {}
    states: dict[str, MetricState] = {}
    for given, value in metrics.items():
        name = printable(given)
        if isinstance(value, MetricState):
            states[name] = value
        else:
            values[name] = _number(name, value)
        if len(name) > NAME:
            raise ConfigurationError(
                f"report({truncate(name, NAME)}=...): a name has {NAME} characters at most"
            )
    if EXAMPLES in states or not math.isfinite(values.get(EXAMPLES, 0.0)):
        raise ConfigurationError(
            f"report(examples={metrics['examples']}): the number of examples must be finite, it "
            "is summed up; report what may be NaN under another name"
        )
    context = current_context()
    if context is None:
        return
    if states:
        if context.states is None:
            raise ConfigurationError(
                f"report({truncate(next(iter(states)), NAME)}=...): the state of a metric travels "
                "with the result of a closure, and this function makes a per-worker value"
            )
        context.states.add(states)
    if values and context.states is not None:
        context.states.add_numbers(values)
    if values or not states:
        context.send_report(time.time(), values)


def _number(name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(
            f"report({truncate(name, NAME)}=...): expected a number, found "
            f"{type(value).__name__}: {truncate(str(error))}"
        ) from error


# PrintedLines: what closures print carries the worker's name, and comes in whole lines. Pure.
#
# Workers of a local cluster print where the notebook does, each from a process of its own. A line
# that is written at once is not torn by those of others. Standard error goes the same way, and with
# it warnings and what `logging` writes there. A closure that prints without end must not drown the
# notebook: beyond a rate lines are left out, and counted.

_MOST = 1 << 12
"""Characters of a line that is kept until it ends; longer ones are cut in two."""

MOST_LINES = 1000
"""Lines that the closures of a process may print at once."""

LINES_PER_SECOND = 100.0
"""Lines that they may print beyond that."""

_STREAMS = ("stdout", "stderr")


class Throttle:
    """Tells which lines of a process may be printed; thread-safe.

    Parameters
    ----------
    clock : callable
        Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards the next three, for a moment each
        self._room, self._since = float(MOST_LINES), clock()
        self._left_out = 0

    def admit(self, lines: list[str]) -> list[str]:
        """Return the lines that may be printed, after one that counts those left out before."""
        with self._lock:
            now = self._clock()
            self._room += (now - self._since) * LINES_PER_SECOND
            self._room, self._since = min(self._room, float(MOST_LINES)), now
            admitted = lines[: int(self._room)]
            self._room -= len(admitted)
            before = self._left_out_line() if admitted else []
            self._left_out += len(lines) - len(admitted)
            return before + admitted

    def left_out(self) -> list[str]:
        """Return the line that counts those left out, if there are any."""
        with self._lock:
            return self._left_out_line()

    def _left_out_line(self) -> list[str]:
        count, self._left_out = self._left_out, 0
        return [f"... {count:,} lines were left out, as there were too many"] if count else []


class PrintedLines:
    """A process's standard output or standard error.

    Any thread may write. Those that run closures get whole lines; what others write passes through.

    Parameters
    ----------
    stream : file
        Where it goes.
    throttle : Throttle
        Tells which lines may be printed.

    Attributes
    ----------
    wrapped : file
        The stream.
    """

    def __init__(self, stream: TextIO, throttle: Throttle) -> None:
        self.wrapped, self._throttle = stream, throttle
        self._begun = threading.local()  # each thread's line that has not ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    def write(self, text: str) -> int:
        """Write what is whole, and keep the rest."""
        if _context() is None:
            return self.wrapped.write(text)
        *lines, rest = (getattr(self._begun, "text", "") + text).split("\n")
        while len(rest) > _MOST:
            lines.append(rest[:_MOST])
            rest = rest[_MOST:]
        self._begun.text = rest
        self._put(self._throttle.admit(lines))
        return len(text)

    def writelines(self, texts: Any) -> None:
        """Write several texts."""
        for text in texts:
            self.write(text)

    def end_line(self) -> None:
        """Write what this thread has begun, and how much was left out; in a closure, at its end."""
        rest, self._begun.text = getattr(self._begun, "text", ""), ""
        self._put([*(self._throttle.admit([rest]) if rest else ()), *self._throttle.left_out()])

    def _put(self, lines: list[str]) -> None:
        context = _context()
        if lines and context is not None:
            # One call, and flushed: one write of the process.
            self.wrapped.write(
                "".join(f"[{context.worker_name}] {_last(line)}\n" for line in lines)
            )
            self.wrapped.flush()


def _last(line: str) -> str:
    """Return what is seen of a line that returned to its beginning, as progress bars do."""
    return line.rstrip("\r").rpartition("\r")[2]


_lock = threading.Lock()  # guards the next: clusters in this process begin and end at any time
_workers = 0  # in this process, for which its streams are `PrintedLines`


def begin_printing() -> None:
    """Make this process's streams `PrintedLines`, for one more worker that is in it."""
    global _workers
    with _lock:
        _workers += 1
        throttle = Throttle()
        for name in _STREAMS:
            if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
                setattr(sys, name, PrintedLines(stream, throttle))


def end_printing() -> None:
    """Put the streams back when the last of these workers has gone."""
    global _workers
    with _lock:
        _workers -= 1
        for name in _STREAMS if not _workers else ():
            if isinstance(stream := getattr(sys, name), PrintedLines):
                setattr(sys, name, stream.wrapped)


def end_printed_lines() -> None:
    """Write what the closure of this thread has printed without an end of line."""
    for name in _STREAMS:
        if isinstance(stream := getattr(sys, name), PrintedLines):
            stream.end_line()
