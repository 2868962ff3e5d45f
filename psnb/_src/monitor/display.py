"""Chooses a coordinator's display: a live widget in a notebook, text anywhere else.

In a notebook the live widget is one output, and a static summary another: a notebook is saved at
any moment, and a widget's output is nothing without its kernel. The page hides the summary while
the widget lives, and it is replaced while the coordinator works. When a cell ends, the saved form
of both is brought up to date: a program that executes a notebook without a page ends right after
the last cell, before the publisher's next update. When the coordinator is closed, by any thread,
the outputs are replaced by its final summary, which a saved notebook keeps.

It is not done at the end of ``join`` instead: a cell may join a thousand times a second, and takes
milliseconds for each summary, and there are more ways to wait (`drain`, `run_epoch`, trainers).

The widget's libraries are imported when a notebook first asks, never on a worker or in a script.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psnb._src.jupyter_compat import after_cells, in_notebook
from psnb._src.monitor.feed import Feed
from psnb._src.monitor.html.summary import moment, render
from psnb._src.monitor.protocol import Summary, Update
from psnb._src.monitor.states import CLOSED
from psnb._src.monitor.viewed import Viewed
from psnb._src.utils.interrupts import uninterrupted
from psnb.errors import ConfigurationError

if TYPE_CHECKING:
    from psnb._src.monitor.own_page import CoordinatorWidgets
    from psnb._src.monitor.widget import CoordinatorWidget


_WIDGET = "application/vnd.jupyter.widget-view+json"
_SCRIPT = Path(__file__).parent / "static" / "widget.js"
_log = logging.getLogger("psnb")

INTERVAL = 10.0
"""Seconds between two summaries while a coordinator works: each is saved with the notebook."""

KEPT = 10
"""How many outputs are replaced: a cell that runs again makes another one, and the page has dropped
the old one. One that is too many is emptied."""

_EMPTY = {"text/html": "", "text/plain": ""}
_MOVING = {"time", "elapsed", "eta"}

NOT_BUILT = (
    "This is how it was when the cell ran. For a live view, build what pages need with "
    "`make frontend` (it takes Node), and restart the kernel."
)


class SavedSummaries:
    """The static summaries that accompany the widgets of one coordinator. Thread-safe.

    Each is written by the thread that shows it first, then by the `Publisher`'s and, when a cell
    ends, by the one that runs cells; it is emptied by the thread that closes the coordinator.
    """

    def __init__(self) -> None:
        # So that nothing is written after the end; it is not held across a network call.
        self._lock = threading.Lock()
        self._outputs: list[str] = []
        self._written: Summary | None = None

    def show(self, update: Update, output: str) -> None:
        """Display a summary in an output of this id; in a notebook only."""
        from IPython.display import display

        with self._lock:
            if len(self._outputs) == KEPT:
                _replace(self._outputs[:1], _EMPTY)
                del self._outputs[0]
            self._outputs.append(output)
            self._written = update["summary"]
            display(_bundle(update), raw=True, display_id=output)

    def due(self, summary: Summary, interval: float = INTERVAL) -> bool:
        """Return whether figures differ so that outputs, if not too new, should be replaced."""
        written = self._written
        if written is None:
            return False
        changed = {name for name, value in summary.items() if value != written.get(name)}
        if not changed - _MOVING:
            return False
        return summary["state"] != written["state"] or summary["time"] - written["time"] >= interval

    def write(self, update: Update) -> None:
        """Replace the outputs by the summary of a full update, unless theirs is a later one."""
        with self._lock:
            if self._written is None or update["summary"]["time"] < self._written["time"]:
                return
            self._written = update["summary"]
            _replace(self._outputs, _bundle(update))

    def end(self) -> None:
        """Empty the outputs: another one has the final summary. Idempotent."""
        with self._lock:
            _replace(self._outputs, _EMPTY)
            self._outputs.clear()
            self._written = None


def _replace(outputs: list[str], bundle: dict[str, Any]) -> None:
    from IPython.display import update_display

    for output in outputs:
        update_display(bundle, raw=True, display_id=output)


def _bundle(update: Update) -> dict[str, Any]:
    # A reader may have the kernel or not, and this text cannot know: it must hold for both.
    summary = update["summary"]
    note = (
        f"Saved at {moment(summary['time'])}, and not live: it was “{summary['state']}” then. "
        "If the kernel still runs, the panel “psnb” shows how it is now, also while a cell runs; "
        "if the kernel was restarted or shut down, it has ended. "
        "Run the cell again for a live view."
    )
    html = f'<div class="psnb-static">{render(update, note)}</div>'
    return {"text/html": html, "text/plain": ""}


class LiveView:
    """All displays of one coordinator, which share one widget.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # so that two threads do not make two widgets
        self._widget: CoordinatorWidget | None = None
        self._singly: CoordinatorWidgets | None = None
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
        marimo: Any = sys.modules.get("marimo")  # a script may have imported it, too
        if marimo is not None and marimo.running_in_notebook():
            widget = self._live_widget(viewed)
            if widget is None:
                return marimo.Html(_static(_state(viewed)))
            return marimo.ui.anywidget(widget)
        if not in_notebook():
            sys.stdout.write(f"{viewed!r}\n")
            return None
        from IPython.display import display

        output = f"psnb-{uuid.uuid4().hex}"
        with self._lock:
            self._shown.append(output)
        widget = self._live_widget(viewed)
        update = _state(viewed)  # later: it belongs to a closed view, if none is live
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

    def widgets(self, viewed: Viewed) -> CoordinatorWidgets:
        """Return the single widgets of the coordinator, which are made once."""
        try:
            from psnb._src.monitor.own_page import CoordinatorWidgets
        except ImportError as error:
            raise ConfigurationError(
                "coordinator.widgets needs ipywidgets, which cannot be imported here: "
                "pip install ipywidgets"
            ) from error
        with self._lock:
            if self._singly is None:
                self._singly = CoordinatorWidgets(viewed)
            return self._singly

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
            singly = self._singly
        if singly is not None:
            singly.publisher.stop()
        if viewed is None:
            return
        update = _state(viewed)
        if widget is not None:
            widget.finish(update)
        if shown and in_notebook():
            _replace(shown, {"text/html": render(update), "text/plain": repr(viewed)})
            self._saved.end()

    def _end_of_cells(self) -> None:
        # Under the lock. IPython would keep what it calls, for as long as the kernel runs.
        self._in_this_cell = False
        if self._ignore_cells is not None:
            self._ignore_cells()
            self._ignore_cells = None

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
            if not self._saved.due(update["summary"], 0.0):
                return
            with self._lock:  # so that nothing comes after the final state
                if self._widget is not None:
                    self._widget.first = json.dumps(update)  # on pages that open later
            self._saved.write(update)
        except Exception:  # a boundary: IPython would print the error below the user's cell
            _log.exception("What a notebook saves of a coordinator is not up to date")

    def _follow(self, update: Update) -> None:
        # On the publisher's thread, with each update of the widget.
        viewed = self._viewed() if self._viewed is not None else None
        if viewed is not None and self._saved.due(update["summary"]):
            self._saved.write(_state(viewed))

    def _live_widget(self, viewed: Viewed) -> CoordinatorWidget | None:
        with self._lock:
            self._viewed = weakref.ref(viewed)
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


def _state(viewed: Viewed) -> Update:
    """Return a full update of a coordinator now."""
    update = Feed().next(viewed, time.time())
    assert update is not None  # the first one is full
    return update
