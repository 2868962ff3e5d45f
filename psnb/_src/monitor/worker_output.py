"""OutputLog: what closures have printed, warned of and logged, by worker. Thread-safe.

The event loop writes it as lines arrive, the notebook's and the views' threads read it. A worker's
lines stay when it has left or is lost: they are what one looks for then.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from psnb._src.monitor.protocol import OutputFound, OutputRow
from psnb._src.utils.interrupts import Lock
from psnb._src.utils.text import unknown
from psnb.errors import ConfigurationError

MOST_LINES, MOST_BYTES = 1000, 1 << 20
"""Lines of a worker that are kept, and their bytes; beyond that the oldest are forgotten."""

MOST_BYTES_IN_ALL = 32 << 20
"""Bytes of all workers; beyond that, those that have been silent for longest are forgotten."""

MOST_SHOWN = 200
"""Lines that a view shows."""

_OVERHEAD = 150
"""Bytes that a line takes beside its texts, about."""


class OutputLine(NamedTuple):
    """A line that a closure has printed, warned of or logged.

    Attributes
    ----------
    time : float
        When it was written, in seconds since the epoch, by the worker's clock.
    worker : str
        The worker's name.
    closure : str
        ``"function #number"``; ``"per-worker value"`` of a function that makes one.
    text : str
        At most 4,096 characters; a longer line loses its middle.
    """

    time: float
    worker: str
    closure: str
    text: str


def _size(line: OutputLine) -> int:
    return sys.getsizeof(line.text) + sys.getsizeof(line.closure) + _OVERHEAD


@dataclass
class _Kept:
    lines: deque[OutputLine] = field(default_factory=deque)
    nbytes: int = 0
    left_out: int = 0

    def forget_oldest(self) -> None:
        self.nbytes -= _size(self.lines.popleft())
        self.left_out += 1


class OutputLog:
    """The latest lines of each worker of a coordinator."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards the next two, for a moment each
        self._kept: dict[tuple[str, int], _Kept] = {}  # by name and index; the latest to write last
        self._nbytes = 0

    def add(self, worker: str, index: int, lines: Iterable[tuple[float, str, str]]) -> None:
        """Keep lines of a worker: of each the time, the closure and the text."""
        with self._lock:
            kept = self._kept.pop((worker, index), None) or _Kept()
            self._kept[worker, index] = kept
            self._nbytes -= kept.nbytes
            for time, closure, text in lines:
                kept.lines.append(line := OutputLine(time, worker, closure, text))
                kept.nbytes += _size(line)
                while len(kept.lines) > MOST_LINES or kept.nbytes > MOST_BYTES:
                    kept.forget_oldest()
            self._nbytes += kept.nbytes
            silent = iter(self._kept.values())
            while self._nbytes > MOST_BYTES_IN_ALL:
                oldest = next(silent)
                self._nbytes -= oldest.nbytes
                while oldest.lines:
                    oldest.forget_oldest()

    def of(
        self, worker: str | int, known: Iterable[tuple[str, int]]
    ) -> tuple[list[OutputLine], int]:
        """Return the lines of a worker, the oldest first, and how many before them are forgotten.

        Parameters
        ----------
        worker : str or int
            Its name, or its index: then of all workers that have had it.
        known : iterable of tuple
            Names and indices of workers; those that have written something are known, too.

        Raises
        ------
        ConfigurationError
            If there is no such worker; names those that there are.
        """
        with self._lock:
            found = [kept for key, kept in self._kept.items() if worker in key]
            lines = [line for kept in found for line in kept.lines]
            left_out = sum(kept.left_out for kept in found)
            every = {*known, *self._kept}
        if not any(worker in each for each in every):
            if isinstance(worker, str):
                raise ConfigurationError(unknown("worker", worker, sorted({n for n, _ in every})))
            names = [f"{index} ({name})" for name, index in sorted(every, key=lambda each: each[1])]
            raise ConfigurationError(unknown("worker of index", worker, names))
        return sorted(lines, key=lambda line: line.time) if len(found) > 1 else lines, left_out

    def shown(self, worker: str) -> OutputFound:
        """Return the last lines of a worker that a view has, for it."""
        lines, left_out = self.of(worker, [(worker, -1)])
        rows = [
            OutputRow(time=each.time, closure=each.closure, text=each.text)
            for each in lines[-MOST_SHOWN:]
        ]
        return OutputFound(worker=worker, left_out=left_out + len(lines) - len(rows), lines=rows)
