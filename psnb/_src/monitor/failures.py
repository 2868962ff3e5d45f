"""FailureLog: which closures raised, where, and with what traceback. Thread-safe.

The threads that settle closures write it, the notebook's and the views' threads read it.
Exceptions stay pickled until they are read: unpickling runs code of the exception's class, for
which neither a lock nor an event loop should wait. The call of a closure, for `Failure.rerun`, is
pickled, too, and only here: a `Failure` in a variable keeps none of it alive.
"""

from __future__ import annotations

import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from psnb._src.utils.interrupts import Lock
from psnb._src.utils.text import PAGE, text_of, truncate
from psnb.errors import ConfigurationError

MOST_FAILURES = 200
"""Failures that are kept; beyond that the oldest are forgotten."""

MOST_BYTES = 16 << 20
"""Bytes of unread exceptions; beyond that, the oldest exceptions are dropped."""

MOST_CALL_BYTES = 64 << 20
"""Bytes of functions and arguments that are kept to be called again; beyond that, the oldest are
dropped, and a larger call is not kept at all."""


class FailedCall(Protocol):
    """What is needed to call a closure again."""

    @property
    def parts(self) -> list[bytes]:
        """What it keeps; the same object in several calls counts once."""

    def __call__(self) -> Any:
        """Call it."""


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
        The text in the notebook: the whole message, a line about the call, and the user's frames;
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
    _log: weakref.ref[FailureLog] | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # Elsewhere there is nothing to call.
        return Failure, tuple(getattr(self, each.name) for each in fields(self) if each.compare)

    def __repr__(self) -> str:
        return f"<psnb.Failure {self.number}: {self.closure} on {self.worker}: {self.error}>"

    def rerun(self) -> Any:
        """Call the closure again, in this process, and write nothing: for ``%debug`` and for pdb.

        Function and arguments are the closure's, from when it was scheduled; remote values among
        them have their results. Parameters are read from the servers as they are now; pushes and
        assigned values are checked, seen by later reads of this call, and dropped. (Only an id that
        is pushed and then looked up may get its row, with its initial values.) Operations that
        would change a parameter immediately, such as `Embedding.shrink`, are refused. `psnb.report`
        is dropped, and `psnb.worker_context` returns the worker's.

        Per-worker values are made here again, by the same function, without changes that closures
        have made since. An iterator gives the elements that the closure had taken when it failed:
        they were kept if they were at most 64, of 8 MiB together, and can be pickled. They are as
        the closure left them, with its changes in place: copies of all would cost every closure
        time.

        The arguments of the last 200 failures are kept, 64 MiB at most, until the coordinator is
        forgotten; a `Failure` that is held does not keep them.

        Returns
        -------
        object
            What the closure returns, if it does not fail this time.

        Raises
        ------
        Exception
            The closure's exception, with the frames of this process.
        ClosureInputError
            If it asks for an element that was not kept, or a per-worker value cannot be made here.
        ConfigurationError
            If its arguments are not kept any more, or it would change parameters immediately.
        CoordinatorClosedError
            If the strategy is closed.
        """
        log = None if self._log is None else self._log()
        call = None if log is None else log.call_of(self.number)
        if call is None:
            raise ConfigurationError(
                f"the arguments of failure {self.number} are not kept: those of the last "
                f"{MOST_FAILURES} are, up to {MOST_CALL_BYTES >> 20} MiB, for as long as the "
                "coordinator is there"
            )
        return call()


@dataclass
class _Record:
    number: int
    time: float
    worker: str
    closure: str
    packed: bytes
    call: FailedCall | None
    read: Failure | None = None


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
        self._records: deque[_Record] = deque(maxlen=MOST_FAILURES)
        self._count = 0
        self._last: dict[str, _Record] = {}  # by worker

    def add(self, worker: str, closure: str, packed: bytes, call: FailedCall | None = None) -> None:
        """Note that a closure failed now, and how to call it again."""
        with self._lock:
            record = _Record(self._count, time.time(), worker, closure, packed, call)
            self._count += 1
            self._records.append(record)
            self._last[worker] = record
            kept: set[int] = set()  # what some call keeps, by identity
            total = 0
            for record in reversed(self._records):
                new = {id(part): len(part) for part in record.call.parts} if record.call else {}
                total += sum(count for part, count in new.items() if part not in kept)
                kept |= new.keys()
                if total > MOST_CALL_BYTES:
                    record.call = None
            unread = sum(len(each.packed) for each in self._records)
            for record in list(self._records)[:-1]:  # the newest is kept, however large
                if unread <= MOST_BYTES:
                    break
                unread -= len(record.packed)
                if record.read is None:
                    self._keep(record, _SHED, _SHED, _SHED)

    def since(self, number: int) -> tuple[Failure, ...]:
        """Return the kept failures with this number or a higher one, oldest first."""
        with self._lock:
            records = [each for each in self._records if each.number >= number]
        return tuple(map(self._read, records))

    def last_of(self, worker: str) -> str:
        """Return the error of a worker's last failure, in one line; empty if there was none."""
        with self._lock:
            record = self._last.get(worker)
        return "" if record is None else self._read(record).error

    def call_of(self, number: int) -> FailedCall | None:
        """Return what calls the closure of a failure again, if that is kept."""
        with self._lock:
            return next((each.call for each in self._records if each.number == number), None)

    def _read(self, record: _Record) -> Failure:
        # In this order: once `read` is set, `packed` is dropped.
        packed, read = record.packed, record.read
        if read is not None:
            return read
        # Two threads may both do this; the result is the same.
        error = self._unpack(packed)
        kind, first = type(error).__name__, text_of(error).partition("\n")[0]
        text = "".join(traceback.format_exception_only(error)).rstrip()
        full = truncate(getattr(error, "full_traceback", text), PAGE)
        line = truncate(f"{kind}: {first}" if first else kind)
        return self._keep(record, line, truncate(text, PAGE), full)

    def _keep(self, record: _Record, error: str, shown: str, full: str) -> Failure:
        """Keep the texts, and drop the exception."""
        where = record.number, record.time, record.worker, record.closure
        record.read = read = Failure(*where, error, shown, full, weakref.ref(self))
        record.packed = b""
        return read
