"""Failures: which closures raised, where, and with what traceback. Thread-safe.

The threads that settle closures write it, the notebook's and the views' threads read it. Exceptions
stay pickled until someone reads them: unpickling runs code of the exception's class, for which
neither a lock nor an event loop should wait.
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from psnb._src.excerpt import PAGE, excerpt
from psnb._src.threads import Lock

MOST_FAILURES = 200
"""Failures that are kept; beyond that the oldest are forgotten."""

MOST_BYTES = 16 << 20
"""Bytes of exceptions that nobody has read yet; beyond that, the oldest exceptions are dropped."""


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

    def __repr__(self) -> str:
        return f"<psnb.Failure {self.number}: {self.closure} on {self.worker}: {self.error}>"


@dataclass
class _Noted:
    number: int
    time: float
    worker: str
    closure: str
    packed: bytes
    read: Failure | None = None

    def tell(self, *texts: str) -> Failure:
        """Keep the texts, and drop the exception."""
        read = Failure(self.number, self.time, self.worker, self.closure, *texts)
        self.read = read
        self.packed = b""
        return read


_SHED = "not kept: too much was raised before anybody looked"


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

    def add(self, worker: str, closure: str, packed: bytes) -> None:
        """Note that a closure failed now."""
        with self._lock:
            noted = _Noted(self._count, time.time(), worker, closure, packed)
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

    def _shed(self) -> None:
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
    try:
        message = str(error)
    except Exception:  # of a user's class, which may do anything
        message = "(its message cannot be told)"
    first = message.partition("\n")[0]
    return excerpt(f"{type(error).__name__}: {first}" if first else type(error).__name__)


def _pages(error: BaseException) -> tuple[str, str]:
    try:
        text = "".join(traceback.format_exception_only(error)).rstrip()
    except Exception:  # likewise
        text = f"{type(error).__name__} (its message cannot be told)"
    return excerpt(text, PAGE), excerpt(getattr(error, "full_traceback", text), PAGE)
