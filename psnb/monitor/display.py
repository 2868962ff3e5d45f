"""Chooses how a coordinator shows itself: a live widget in a notebook, text anywhere else.

The widget's libraries are imported when a notebook first asks, never on a worker or in a script.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from psnb.monitor.kernel import in_notebook
from psnb.monitor.source import Source

if TYPE_CHECKING:
    from psnb.monitor.widget import CoordinatorWidget


class LiveView:
    """The one widget of a coordinator, made when a notebook first shows it.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # two threads that show it must not make two widgets
        self._widget: CoordinatorWidget | None = None

    def mimebundle(self, source: Source, **options: Any) -> Any:
        """Return what to display for the coordinator: live in a notebook, else its repr."""
        if not in_notebook():
            return {"text/plain": repr(source)}
        from psnb.monitor.widget import CoordinatorWidget

        with self._lock:
            # One that ended early, on an error, is followed by a new one.
            if self._widget is None or not self._widget.live:
                self._widget = CoordinatorWidget(source)
        return self._widget._repr_mimebundle_(**options)

    def stop(self) -> None:
        """Show the final state and update no more; idempotent."""
        with self._lock:
            widget = self._widget
        if widget is not None:
            widget.stop()
