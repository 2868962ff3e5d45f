"""Chooses a coordinator's display: a live widget in a notebook, text anywhere else.

In a notebook the live widget is one output, and a static summary another, which the page hides
while the widget lives (see `saved`). When a cell ends, what is saved of both is brought up to date:
what executes a notebook without a page ends right after the last cell, before the publisher's next
update. When the coordinator is closed, by any thread, the outputs are replaced by its final
summary, which a saved notebook keeps.

It is not done at the end of ``join`` instead: a cell may join a thousand times a second, and takes
milliseconds for each summary, and there are more ways to wait (`drain`, `run_epoch`, trainers).

The widget's libraries are imported when a notebook first asks, never on a worker or in a script.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from psnb._src.jupyter_compat import after_cells, in_notebook
from psnb._src.monitor.events import CLOSED
from psnb._src.monitor.feed import Feed, Viewed
from psnb._src.monitor.history import Statistics
from psnb._src.monitor.html import SavedSummaries, render
from psnb._src.monitor.protocol import Update
from psnb._src.utils.text import counted
from psnb._src.utils.threads import uninterrupted

if TYPE_CHECKING:
    from psnb._src.monitor.widget import CoordinatorWidget


_WIDGET = "application/vnd.jupyter.widget-view+json"
_SCRIPT = Path(__file__).parent / "static" / "widget.js"

_log = logging.getLogger("psnb")

NOT_BUILT = (
    "This is how it was when the cell ran. For a live view, build what pages need with "
    "`make frontend` (it takes Node), and restart the kernel."
)


class LiveView:
    """All displays of one coordinator, which share one widget.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # so that two threads do not make two widgets
        self._widget: CoordinatorWidget | None = None
        self._shown: list[str] = []  # ids of the outputs, to replace them at the end
        self._viewed: weakref.ref[Viewed] | None = None
        self._saved = SavedSummaries()
        self._in_this_cell = False  # whether the cell that runs has shown it
        self._ignore_cells: Callable[[], None] | None = None  # what ends `_catch_up`

    def show(self, viewed: Viewed) -> Any:
        """Display the coordinator: live in a notebook, else its repr as a line of text.

        Returns
        -------
        CoordinatorWidget or None
            What is live, if anything is. A notebook of marimo shows what its cells return: it gets
            its own element around the widget, or the summary if nothing is live.
        """
        if (marimo := _marimo()) is not None:
            return self._element(viewed, marimo)
        if not in_notebook():
            sys.stdout.write(f"{viewed!r}\n")
            return None
        from IPython.display import display

        output = f"psnb-{uuid.uuid4().hex}"
        with self._lock:
            self._viewed = weakref.ref(viewed)
            self._shown.append(output)
        widget = self._live_widget(viewed)
        update = _state(viewed)  # later: it is that of one that is closed, if nothing is live
        if widget is None:
            bundle: dict[str, Any] = {"text/html": _static(update)}
        else:
            bundle = {_WIDGET: widget.get_view_spec()}
        display({**bundle, "text/plain": repr(viewed)}, raw=True, display_id=output)
        if widget is not None:
            self._saved.show(update, f"{output}-saved")
            with self._lock:
                if self._widget is widget:  # not if another thread has closed it by now
                    self._in_this_cell = True
                    self._ignore_cells = self._ignore_cells or after_cells(self._catch_up)
        return widget

    @property
    def watched(self) -> bool:
        """Whether the notebook has a live dashboard."""
        with self._lock:
            return self._widget is not None and self._widget.live and bool(self._shown)

    def stop(self) -> None:
        """Stop the updates, and replace the outputs by the final state; idempotent, any thread."""
        with self._lock:
            viewed = self._viewed() if self._viewed is not None else None
            widget, self._widget = self._widget, None
            shown, self._shown = self._shown, []
            self._end_of_cells()
        if viewed is None:
            return
        update = _state(viewed)
        if widget is not None:
            widget.finish(update)
        if shown and in_notebook():
            from IPython.display import update_display

            bundle = {"text/html": render(update), "text/plain": repr(viewed)}
            for output in shown:
                update_display(bundle, raw=True, display_id=output)
            self._saved.end()

    def _end_of_cells(self) -> None:
        # Under the lock. IPython would keep what it calls, for as long as the kernel runs.
        self._in_this_cell = False
        if self._ignore_cells is not None:
            self._ignore_cells()
            self._ignore_cells = None

    def _element(self, viewed: Viewed, marimo: Any) -> Any:
        with self._lock:
            self._viewed = weakref.ref(viewed)
        widget = self._live_widget(viewed)
        return (
            marimo.Html(_static(_state(viewed))) if widget is None else marimo.ui.anywidget(widget)
        )

    def _show_again(self) -> bool:
        # When a cell displays the widget itself; returns whether all is done for it. The cell that
        # has shown it, and whose last expression returned it, has it already.
        viewed = self._viewed() if self._viewed is not None else None
        if viewed is not None and not self._in_this_cell:
            self.show(viewed)
        return viewed is not None

    @uninterrupted
    def _catch_up(self) -> None:
        # When a cell has ended; publishing waits for no page.
        self._in_this_cell = False
        viewed = self._viewed() if self._viewed is not None else None
        if viewed is None:  # gone without an end, as in a cell that ran again
            with self._lock:
                self._end_of_cells()
            return
        if not self.watched:
            return
        try:
            update = _state(viewed)
            if not self._saved.changed(update["summary"]):
                return
            with self._lock:  # so that nothing comes after the final state
                if self._widget is not None:
                    self._widget.keep(update)
            self._saved.write(update)
        except Exception:  # a boundary: IPython would print the error below the user's cell
            _log.exception("What a notebook saves of a coordinator is not up to date")

    def _follow(self, update: Update) -> None:
        # On the publisher's thread, with each update of the widget.
        viewed = self._viewed() if self._viewed is not None else None
        if viewed is not None and self._saved.due(update["summary"]):
            self._saved.write(_state(viewed))

    def _live_widget(self, viewed: Viewed) -> CoordinatorWidget | None:
        if viewed.statistics().state == CLOSED or not _SCRIPT.is_file():
            return None
        from psnb._src.monitor.widget import CoordinatorWidget

        with self._lock:
            # A widget that ended early, on an error, is replaced by a new one.
            if self._widget is None or not self._widget.live:
                self._widget = CoordinatorWidget(viewed, self._follow, self._show_again)
            return self._widget


def _static(update: Update) -> str:
    return render(update, "" if update["summary"]["state"] == CLOSED else NOT_BUILT)


def _marimo() -> Any:
    """Return marimo, if this is a notebook of it; not if a script has imported it."""
    marimo: Any = sys.modules.get("marimo")
    return marimo if marimo is not None and marimo.running_in_notebook() else None


def _state(viewed: Viewed) -> Update:
    """Return a full update of a coordinator now."""
    update = Feed().next(viewed, time.time())
    assert update is not None  # the first one is full
    return update


# A line of progress: in the terminal, or below the cell of a notebook.
#
# A daemon thread, ``psnb-progress``, draws it while the thread that made it waits for the work.
# They share one event, which ends the thread.


# NotebookLine: a line of progress below a cell, always the same one.

_ONE_LINE = "overflow:hidden;text-overflow:ellipsis;white-space:nowrap"


class NotebookLine:
    """An output of the running cell; its last text stays. For one thread."""

    def __init__(self) -> None:
        self._id = f"psnb-{uuid.uuid4().hex}"
        self._shown = False

    def __enter__(self) -> NotebookLine:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Let the last text stay."""

    def draw(self, done: int, total: int, text: str) -> None:
        """Show how much is done, and a text, in place of what was shown before."""
        from IPython.display import display

        bar = f'<progress value="{done}" max="{total}" style="width:12em"></progress>'
        bundle: dict[str, Any] = {
            "text/html": f'<div class="psnb-progress" style="{_ONE_LINE}" title="{escape(text)}">'
            f"{bar} {escape(text)}</div>",
            "text/plain": text,
        }
        display(bundle, raw=True, display_id=self._id, update=self._shown)
        self._shown = True


_DELAY = 1.0  # seconds; shorter work needs no line
_INTERVAL = 0.25
_END_TIMEOUT = 5.0  # seconds; a blocked terminal must not block the caller


class Share(NamedTuple):
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
        epoch: Callable[[], Share] | None = None,
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
        with NotebookLine() if below_cell else _TerminalLine(self._stream) as line:
            while True:
                ended = self._ended.is_set()  # before it looks: what is shown last is the end
                now = self._viewed.statistics()
                if self._epoch is None:
                    done = now.completed - before
                    line.draw(done, max(1, done + now.queued + now.in_flight), describe(now))
                else:
                    share = self._epoch()
                    # Of all epochs, as other views have it.
                    left = now.eta if now.training else None
                    line.draw(share.done, share.of, describe(now, share, left))
                if ended:
                    return
                self._ended.wait(_INTERVAL)


class _TerminalLine:
    """A line on a terminal, which is gone at the end."""

    def __init__(self, stream: TextIO | None) -> None:
        # Imported only now: importing rich takes as long as many runs.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        one_line = Column(no_wrap=True, overflow="ellipsis")
        text = TextColumn("{task.description}", markup=False, table_column=one_line)
        columns: list[Any] = [BarColumn(20), text]
        console = Console(file=stream or sys.stderr)
        self._progress = Progress(*columns, console=console, transient=True, auto_refresh=False)
        self._task = self._progress.add_task("")

    def __enter__(self) -> _TerminalLine:
        self._progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._progress.stop()

    def draw(self, done: int, total: int, text: str) -> None:
        """Show how much is done, and a text."""
        self._progress.update(
            self._task, completed=done, total=total, description=text, refresh=True
        )


def describe(now: Statistics, epoch: Share | None = None, left: float | None = None) -> str:
    """Return a coordinator's state in one line.

    Parameters
    ----------
    now : Statistics
        The coordinator.
    epoch : Share, optional
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
