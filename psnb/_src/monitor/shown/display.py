"""Chooses a coordinator's display: a live widget in a notebook, text anywhere else.

In a notebook the live widget is one output, and a static summary another, which the page hides
while the widget lives (see `saved`). When the coordinator is closed, by any thread, the outputs are
replaced by its final summary, which a saved notebook keeps.

The widget's libraries are imported when a notebook first asks, never on a worker or in a script.
"""

from __future__ import annotations

import sys
import threading
import time
import uuid
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psnb._src.jupyter_internals import in_notebook
from psnb._src.monitor.recorded import CLOSED
from psnb._src.monitor.shown.saved import SavedSummaries
from psnb._src.monitor.shown.summary import render
from psnb._src.monitor.told import Feed, Update, Viewed

if TYPE_CHECKING:
    from psnb._src.monitor.shown.widget import CoordinatorWidget

_WIDGET = "application/vnd.jupyter.widget-view+json"
_SCRIPT = Path(__file__).parent / "static" / "widget.js"

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

    def show(self, viewed: Viewed) -> None:
        """Display the coordinator: live in a notebook, else its repr as a line of text."""
        if not in_notebook():
            sys.stdout.write(f"{viewed!r}\n")
            return
        from IPython.display import display

        output = f"psnb-{uuid.uuid4().hex}"
        with self._lock:
            self._viewed = weakref.ref(viewed)
            self._shown.append(output)
        bundle, update = self._bundle(viewed)
        display(bundle, raw=True, display_id=output)
        if _WIDGET in bundle:
            self._saved.show(update, f"{output}-saved")

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

    def _follow(self, update: Update) -> None:
        # On the publisher's thread, with each update of the widget.
        viewed = self._viewed() if self._viewed is not None else None
        if viewed is not None and self._saved.due(update["summary"]):
            self._saved.write(_state(viewed))

    def _bundle(self, viewed: Viewed) -> tuple[dict[str, Any], Update]:
        update = _state(viewed)
        text = {"text/plain": repr(viewed)}
        if update["summary"]["state"] == CLOSED:
            return {"text/html": render(update), **text}, update
        if not _SCRIPT.is_file():
            return {"text/html": render(update, NOT_BUILT), **text}, update
        from psnb._src.monitor.shown.widget import CoordinatorWidget

        with self._lock:
            # A widget that ended early, on an error, is replaced by a new one.
            if self._widget is None or not self._widget.live:
                self._widget = CoordinatorWidget(viewed, self._follow)
            widget = self._widget
        return {_WIDGET: widget.get_view_spec(), **text}, update


def _state(viewed: Viewed) -> Update:
    """Return a full update of a coordinator now."""
    update = Feed().next(viewed, time.time())
    assert update is not None  # the first one is full
    return update
