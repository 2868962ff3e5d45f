"""A progress line in the terminal, for use without a notebook.

A daemon thread, ``psnb-progress``, draws it while the thread that made it waits for the work. They
share one event, which ends the thread.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, TextIO

from psnb._src.jupyter_internals import in_notebook
from psnb._src.monitor.recorded import Statistics
from psnb._src.monitor.told import Viewed

if TYPE_CHECKING:
    from rich.progress import Progress

_DELAY = 1.0  # seconds; shorter work needs no line
_INTERVAL = 0.25
_END_TIMEOUT = 5.0  # seconds; a blocked terminal must not block the caller


def wanted(progress: bool | None, stream: TextIO | None = None) -> bool:
    """Return whether to show a line: as ``progress`` says, else if the stream is a terminal."""
    if progress is not None:
        return progress
    stream = sys.stderr if stream is None else stream
    return not in_notebook() and stream is not None and stream.isatty()


class ProgressLine:
    """A line on the terminal (stderr) while its block runs; it leaves nothing behind.

    Parameters
    ----------
    viewed : Viewed
        The coordinator.
    stream : file, optional
        Where to write in place of stderr.
    delay : float
        Seconds before it appears.
    """

    def __init__(self, viewed: Viewed, stream: TextIO | None = None, delay: float = _DELAY) -> None:
        self._viewed, self._stream, self._delay = viewed, stream, delay
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="psnb-progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._thread.join(_END_TIMEOUT)

    def _run(self) -> None:
        if self._ended.wait(self._delay):
            return
        # Imported only now: importing rich takes as long as many runs.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        before = self._viewed.statistics().completed
        columns: list[Any] = [BarColumn(30), TextColumn("{task.description}", markup=False)]
        console = Console(file=self._stream or sys.stderr)
        with Progress(*columns, console=console, transient=True, auto_refresh=False) as line:
            task = line.add_task("")
            while True:
                self._draw(line, task, before)
                if self._ended.wait(_INTERVAL):
                    return

    def _draw(self, line: Progress, task: Any, before: int) -> None:
        now = self._viewed.statistics()
        done = now.completed - before
        line.update(
            task,
            completed=done,
            total=max(1, done + now.queued + now.in_flight),
            description=describe(now),
            refresh=True,
        )


def describe(now: Statistics) -> str:
    """Return a coordinator's state in one line."""
    ready = sum(worker.state == "ready" for worker in now.workers)
    parts = [
        now.state,
        f"{now.completed:,} completed",
        f"{now.queued + now.in_flight:,} to do",
        f"{now.closures_per_second:,.0f}/s",
    ]
    if now.eta is not None:
        minutes, seconds = divmod(round(now.eta), 60)
        parts.append(f"{minutes}:{seconds:02d} left")
    parts.append(f"{ready} worker{'s' if ready != 1 else ''}")
    parts += [f"{now.failed:,} failed"] if now.failed else []
    parts += [f"{now.retried:,} retried"] if now.retried else []
    parts += [f"{name} {metric.smoothed:.4g}" for name, metric in list(now.metrics.items())[:3]]
    return ", ".join(parts)
