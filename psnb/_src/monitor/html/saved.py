"""SavedSummaries: a coordinator in a notebook that is opened without its kernel.

A notebook is saved at any moment, and a widget's output is nothing without its kernel. So each
live widget has a second output: a static summary, which the page hides while the widget lives,
and which is replaced while the coordinator works. Each is written by the thread that shows it
first, then by the `Publisher`'s and, when a cell ends, by the one that runs cells; it is emptied
by the thread that closes the coordinator.
"""

from __future__ import annotations

import threading
from typing import Any

from psnb._src.monitor.html.summary import moment, render
from psnb._src.monitor.protocol import Summary, Update

INTERVAL = 10.0
"""Seconds between two summaries while a coordinator works: each is saved with the notebook."""

KEPT = 10
"""How many outputs are replaced: a cell that runs again makes another one, and the page has dropped
the old one. One that is too many is emptied."""

_EMPTY = {"text/html": "", "text/plain": ""}
_MOVING = ("time", "elapsed", "eta")


class SavedSummaries:
    """The static summaries that accompany the widgets of one coordinator. Thread-safe."""

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
                replace(self._outputs[:1], _EMPTY)
                del self._outputs[0]
            self._outputs.append(output)
            self._written = update["summary"]
            display(_bundle(update), raw=True, display_id=output)

    def due(self, summary: Summary, interval: float = INTERVAL) -> bool:
        """Return whether figures differ so that outputs, if not too new, should be replaced."""
        written = self._written
        if written is None or all(
            summary[name] == written[name] for name in summary if name not in _MOVING
        ):
            return False
        return summary["state"] != written["state"] or summary["time"] - written["time"] >= interval

    def write(self, update: Update) -> None:
        """Replace the outputs by the summary of a full update, unless theirs is a later one."""
        with self._lock:
            if self._written is None or update["summary"]["time"] < self._written["time"]:
                return
            self._written = update["summary"]
            replace(self._outputs, _bundle(update))

    def end(self) -> None:
        """Empty the outputs: another one has the final summary. Idempotent."""
        with self._lock:
            replace(self._outputs, _EMPTY)
            self._outputs.clear()
            self._written = None


def replace(outputs: list[str], bundle: dict[str, Any]) -> None:
    """Show something else in outputs of the notebook."""
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
