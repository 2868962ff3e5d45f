"""Live view of a coordinator in a notebook cell: state, workers, servers and reported metrics.

The cell that shows the widget usually ends at once, and a later cell then blocks the notebook's
thread in ``join`` for minutes. So each widget has one daemon thread, ``psnb-widget``, which takes
a snapshot of the coordinator four times a second and sets one synchronised trait: one comm message
a tick, which the page draws (``widget.js``) while the notebook's thread is busy or asleep.

The threads meet in three places. The thread reads the source only through its ``statistics`` and
``history``, which must be thread-safe. ``stop``, from whichever thread, sets an event that the
publisher waits on. And the trait is written by the constructor before the thread starts and by the
thread alone from then on. So nothing here needs a lock of its own.
"""

from __future__ import annotations

import json
import logging
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from psnb.monitor.payload import Payload, Source, snapshot, worth_sending

INTERVAL = 0.25
"""Seconds between two updates: smooth to the eye, and next to nothing for kernel and network."""

STOP_TIMEOUT = 2.0
"""Most seconds that ``stop`` waits for the last update; a stuck source must not hang a cell."""

_log = logging.getLogger("psnb")


class Publisher:
    """Sends a source's snapshots at a steady pace from a thread of its own, until stopped.

    It ends by itself when the source is closed. The source is held weakly where Python allows it: a
    coordinator that nobody refers to any more can be collected while its widget still stands in a
    cell, and the thread ends then. The thread never raises: an error is logged once to the logger
    ``psnb``, the page is told, and it ends.

    Parameters
    ----------
    source : Source
        What to watch.
    send : callable
        Takes each `Payload` that is worth sending; called from the publisher's thread only.
    interval : float
        Seconds between two looks at the source.
    """

    def __init__(
        self, source: Source, send: Callable[[Payload], object], interval: float = INTERVAL
    ) -> None:
        self._source = _weakly(source)
        self._send = send
        self._interval = interval
        self._last = snapshot(source)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="psnb-widget", daemon=True)

    @property
    def first(self) -> Payload:
        """The snapshot made at construction; it is not sent, the caller shows it."""
        return self._last

    @property
    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after one last snapshot; harmless when it has ended or never started.

        Waits for that snapshot, but no longer than `STOP_TIMEOUT`. Do not call it while holding a
        lock that the source's ``statistics`` takes.
        """
        self._stopped.set()
        # The thread itself comes here when it drops the last reference to a source whose
        # finalizer stops its widget.
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(STOP_TIMEOUT)

    def _run(self) -> None:
        try:
            stopping = False
            while not stopping:
                # Read before the snapshot is made, so a stop always gets one made after it.
                stopping = self._stopped.wait(self._interval)
                more = self._tick(stopping)
                stopping = stopping or not more
        except Exception as error:  # a boundary: nobody else would learn of what ends a thread
            _log.exception("The coordinator's widget stops updating")
            # Whatever the coordinator's state is, it is not known here any more.
            self._end("unknown", f"No longer updated: {type(error).__name__}: {error}")

    def _tick(self, last: bool) -> bool:
        """Look at the source once, and return whether there may be more to come."""
        # In a function of its own, so that no local keeps the source alive during the wait.
        source = self._source()
        if source is None:
            self._end("closed", "The coordinator is gone.")
            return False
        payload = snapshot(source, self._last)
        if last and payload["state"] != "closed":
            payload["notice"] = "No longer updated."  # The coordinator goes on without the page.
        if last or worth_sending(payload, self._last):
            self._send(payload)
            self._last = payload
        return payload["state"] != "closed"

    def _end(self, state: str, notice: str) -> None:
        # Figures that stand still must not look live: the page would say "running" for ever.
        try:
            self._send({**self._last, "state": state, "notice": notice})
        except Exception:  # of the kernel's comms, which raise what their transport raises
            # The page cannot be reached, and a reason that mattered has been logged already.
            _log.debug("The coordinator's widget could not send its last update", exc_info=True)


def _weakly(source: Source) -> Callable[[], Source | None]:
    try:
        return weakref.ref(source)
    except TypeError:  # A class with slots and without __weakref__.
        return lambda: source


class CoordinatorWidget(anywidget.AnyWidget):
    """Live view of a coordinator.

    It updates itself from the moment it is made until `stop` or `close` is called, or the source
    is closed or collected.

    Parameters
    ----------
    source : Source
        What to show; held weakly.
    interval : float
        Seconds between two updates.

    Attributes
    ----------
    snapshot : dict
        The newest `Payload`; the only trait that updates travel in, as JSON text.
    """

    _esm = Path(__file__).with_name("widget.js")
    _css = Path(__file__).with_name("widget.css")

    # Travels as JSON text: ipywidgets would look at each of a thousand points for a binary buffer,
    # which takes longer than all else that sending does.
    snapshot = traitlets.Dict().tag(sync=True, to_json=lambda value, _: json.dumps(value))

    def __init__(self, source: Source, interval: float = INTERVAL) -> None:
        self._publisher = Publisher(source, self._show, interval)
        # Given here, it travels in the message that opens the comm: the page never draws nothing.
        super().__init__(snapshot=self._publisher.first)
        self._publisher.start()

    @property
    def live(self) -> bool:
        """Whether it still follows its source."""
        return self._publisher.alive

    def stop(self) -> None:
        """Send the final state and end the updates; idempotent, any thread."""
        self._publisher.stop()

    def close(self) -> None:
        """Stop and take the widget off the page."""
        # A widget whose constructor failed is closed by its finalizer and has no publisher.
        publisher: Publisher | None = getattr(self, "_publisher", None)
        if publisher is not None:
            publisher.stop()
        super().close()

    def __repr__(self) -> str:
        """Return what a page without widgets shows in its place."""
        now: dict[str, Any] = self.snapshot
        return (
            f"<psnb coordinator, {now['state']}: {now['completed']} completed, "
            f"{now['failed']} failed, {len(now['workers'])} workers>"
        )

    def _show(self, payload: Payload) -> None:
        self.snapshot = dict(payload)
