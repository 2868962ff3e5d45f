"""ProgressLine: a line of progress, on the terminal or below the cell of a notebook.

A daemon thread, ``psnb-progress``, draws it while the thread that made it waits for the work.
They share one event, which ends the thread.
"""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, NamedTuple, TextIO

from psnb._src.jupyter_compat import in_notebook
from psnb._src.monitor.statistics import Statistics
from psnb._src.monitor.viewed import Viewed
from psnb._src.utils.text import counted

_ONE_LINE = "overflow:hidden;text-overflow:ellipsis;white-space:nowrap"


Draw = Callable[[int, int, str], None]
"""Shows how much is done, of how much, and a text, in place of the previous ones."""


@contextmanager
def _line_below_cell() -> Iterator[Draw]:
    """Give what draws an output of the running cell; its last text stays."""
    from IPython.display import display

    output, shown = f"psnb-{uuid.uuid4().hex}", False

    def draw(done: int, total: int, text: str) -> None:
        nonlocal shown
        bar = f'<progress value="{done}" max="{total}" style="width:12em"></progress>'
        bundle: dict[str, Any] = {
            "text/html": f'<div class="psnb-progress" style="{_ONE_LINE}" title="{escape(text)}">'
            f"{bar} {escape(text)}</div>",
            "text/plain": text,
        }
        display(bundle, raw=True, display_id=output, update=shown)
        shown = True

    yield draw


@contextmanager
def _line_on_terminal(stream: TextIO | None) -> Iterator[Draw]:
    """Give what draws a line, which is gone at the end."""
    # Imported only now: importing rich takes as long as many runs.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    one_line = Column(no_wrap=True, overflow="ellipsis")
    text = TextColumn("{task.description}", markup=False, table_column=one_line)
    console = Console(file=stream or sys.stderr)
    with Progress(
        BarColumn(20), text, console=console, transient=True, auto_refresh=False
    ) as progress:
        task = progress.add_task("")

        def draw(done: int, total: int, text: str) -> None:
            progress.update(task, completed=done, total=total, description=text, refresh=True)

        yield draw


_DELAY = 1.0  # seconds; shorter work needs no line
_INTERVAL = 0.25
_END_TIMEOUT = 5.0  # seconds; a blocked terminal must not block the caller


class WorkDone(NamedTuple):
    """How much of some work is done.

    Attributes
    ----------
    done, of : int
        How much, of how much.
    what : str
        What is counted.
    name : str
        What the work is called, if there are several in turn; empty if there is one.
    """

    done: int
    of: int
    what: str
    name: str = ""


def wanted(progress: bool | None, watched: bool, stream: TextIO | None = None) -> bool:
    """Return whether to show a line: as ``progress`` says, else if people look and see nothing.

    Parameters
    ----------
    progress : bool or None
        What the user says.
    watched : bool
        Whether the notebook has a live dashboard.
    stream : file, optional
        In place of stderr.
    """
    if progress is not None:
        return progress
    if in_notebook():
        return not watched
    stream = sys.stderr if stream is None else stream
    return stream is not None and stream.isatty()


class ProgressLine:
    """A line while its block runs: on the terminal (stderr), where it vanishes, or below a cell.

    Parameters
    ----------
    viewed : Viewed
        The coordinator.
    stream : file, optional
        Where to write in place of stderr.
    delay : float
        Seconds before it appears.
    epoch : callable, optional
        Returns how much of an epoch is done: its closures are scheduled a few at a time, so those
        to do say nothing.
    """

    def __init__(
        self,
        viewed: Viewed,
        stream: TextIO | None = None,
        delay: float = _DELAY,
        epoch: Callable[[], WorkDone] | None = None,
    ) -> None:
        self._viewed, self._stream, self._delay, self._epoch = viewed, stream, delay, epoch
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
        before = self._viewed.statistics().completed
        below_cell = self._stream is None and in_notebook()
        with _line_below_cell() if below_cell else _line_on_terminal(self._stream) as draw:
            while True:
                ended = self._ended.is_set()  # before it looks: the end is shown last
                now = self._viewed.statistics()
                if self._epoch is None:
                    done = now.completed - before
                    draw(done, max(1, done + now.queued + now.in_flight), describe(now))
                else:
                    work = self._epoch()
                    # Over all epochs, as other views have it.
                    left = now.eta if now.training else None
                    draw(work.done, work.of, describe(now, work, left))
                if ended:
                    return
                self._ended.wait(_INTERVAL)


def describe(now: Statistics, epoch: WorkDone | None = None, left: float | None = None) -> str:
    """Return a coordinator's state in one line.

    Parameters
    ----------
    now : Statistics
        The coordinator.
    epoch : WorkDone, optional
        How much of an epoch is done.
    left : float, optional
        The seconds until it is over.
    """
    ready = sum(worker.state == "ready" for worker in now.workers)
    parts = [now.state]
    if epoch is None:
        parts += [f"{now.completed:,} completed", f"{now.queued + now.in_flight:,} to do"]
        left = now.eta
    else:
        parts += [epoch.name] if epoch.name else [f"{now.completed:,} completed"]
        parts.append(f"{epoch.done:,} of {epoch.of:,} {epoch.what}")
    if now.examples_per_second:
        parts.append(f"{now.examples_per_second:,.0f} examples/s")
    else:
        parts.append(f"{now.closures_per_second:,.0f}/s")
    if not now.closures_per_second:  # what takes it so long to begin
        parts += sorted({worker.activity for worker in now.workers if worker.activity})[:1]
    if left is not None:
        minutes, seconds = divmod(round(left), 60)
        parts.append(f"{minutes}:{seconds:02d} left")
    parts.append(counted(ready, "worker"))
    parts += [f"{now.failed:,} failed"] if now.failed else []
    parts += [f"{now.retried:,} retried"] if now.retried else []
    parts += [f"{counted(now.workers_lost, 'worker')} lost"] if now.workers_lost else []
    parts += [f"{counted(now.servers_lost, 'server')} lost"] if now.servers_lost else []
    parts += [f"{name} {metric.smoothed:.4g}" for name, metric in list(now.metrics.items())[:3]]
    return ", ".join(parts)
