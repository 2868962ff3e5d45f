"""PrintedLines: what closures print carries the worker's name, and comes in whole lines. Pure.

Workers of a local cluster print where the notebook does, each from a process of its own. A line
that is written in one piece is not torn by those of others. Standard error goes the same way, and
with it warnings and what `logging` writes there. Each line is sent to the coordinator, too, which
keeps the latest of each worker. A closure that prints without end must not drown the notebook:
beyond a rate lines are left out, and counted.
"""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

from psnb._src.worker.context import context_here

MOST = 1 << 12
"""Characters of a line that is kept until it ends; longer ones are cut in two."""


MOST_LINES = 1000
"""Lines that the closures of a process may print in one burst."""


LINES_PER_SECOND = 100.0
"""Lines that they may print beyond that."""


MAKING = "per-worker value"
"""What stands for the closure of lines that a function writes that makes such a value."""


_STREAMS = ("stdout", "stderr")


class Throttle:
    """Tells which lines of a process may be printed; thread-safe.

    Parameters
    ----------
    clock : callable
        Returns seconds.

    Attributes
    ----------
    unsaid : int
        How many lines were left out, and not counted in a line yet.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards the next three, for a moment each
        self._room, self._since = float(MOST_LINES), clock()
        self.unsaid = 0

    def admit(self, lines: list[str], *, last: bool = False) -> list[str]:
        """Return the lines that may be printed, after one that counts those left out before.

        If they are the ``last``, those left out of them are counted, too.
        """
        with self._lock:
            now = self._clock()
            self._room += (now - self._since) * LINES_PER_SECOND
            self._room, self._since = min(self._room, float(MOST_LINES)), now
            admitted = lines[: int(self._room)]
            self._room -= len(admitted)
            before = self._left_out_line() if admitted else []
            self.unsaid += len(lines) - len(admitted)
            return before + admitted + (self._left_out_line() if last else [])

    def _left_out_line(self) -> list[str]:
        count, self.unsaid = self.unsaid, 0
        return [f"... {count:,} lines were left out, as there were too many"] if count else []


class _Begun(threading.local):
    """The line of a thread that has not ended."""

    text = ""


class PrintedLines:
    """A process's standard output or standard error.

    Any thread may write: closures in whole lines, and other code whatever it likes.

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
        self._begun = _Begun()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    def write(self, text: str) -> int:
        """Write what is whole, and keep the rest."""
        if context_here() is None:
            return self.wrapped.write(text)
        *lines, rest = (self._begun.text + text).split("\n")
        while len(rest) > MOST:
            lines.append(rest[:MOST])
            rest = rest[MOST:]
        self._begun.text = rest
        self._put(self._throttle.admit(lines))
        return len(text)

    def writelines(self, texts: Any) -> None:
        """Write several texts."""
        for text in texts:
            self.write(text)

    def end_line(self) -> None:
        """Write what this thread has begun, and how much was left out; in a closure, at its end."""
        rest = self._begun.text
        if rest or self._throttle.unsaid:  # most closures print nothing
            self._begun.text = ""
            self._put(self._throttle.admit([rest] if rest else [], last=True))

    def _put(self, lines: list[str]) -> None:
        context = context_here()
        if lines and context is not None:
            lines = [_last(line) for line in lines]
            if context.send_lines is not None:  # first: the stream may be broken
                made = f"{context.function} #{context.closure}" if context.function else MAKING
                context.send_lines(made, lines)
            # One call, and flushed: one write of the process.
            self.wrapped.write("".join(f"[{context.worker_name}] {line}\n" for line in lines))
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
    """Put the streams back when the last worker of this process has gone."""
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
