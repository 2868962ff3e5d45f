"""Publisher: sends a coordinator's updates to one view at a steady pace, from its own thread.

The notebook's thread may be blocked in ``join`` for minutes; this one continues. The threads share
only events: `wake` and `stop`, called from any thread, set one that the publisher waits on, and no
interrupt can cut that in half. All that it reads of the coordinator is thread-safe. It has only a
weak reference to the coordinator, which can be garbage-collected while its view is still in a cell;
then the thread ends.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable

from psnb._src.monitor.feed import Feed
from psnb._src.monitor.protocol import Update
from psnb._src.monitor.states import CLOSED, coordinator_tone
from psnb._src.monitor.updates import bare, plain
from psnb._src.monitor.viewed import Viewed
from psnb._src.utils.interrupts import uninterrupted
from psnb._src.utils.text import truncate

INTERVAL = 0.25
"""Seconds between two updates: smooth to the eye, and cheap for kernel and network."""

_LONGEST_PAUSE = 30.0
_log = logging.getLogger("psnb")


class Publisher:
    """Sends updates until it is stopped, or the coordinator is closed or garbage-collected.

    The thread never raises. If ``send`` raises an OSError, the view is out of reach: the publisher
    tries again with a full update, after pauses that grow to half a minute. Any other error is
    logged once to the logger ``psnb``, and the thread ends.

    Parameters
    ----------
    viewed : Viewed
        The coordinator.
    send : callable
        Takes each `Update`; called from the publisher's thread only.
    name : str
        The thread's name, ``psnb-...``.
    interval : float
        Seconds between two updates.
    stop_timeout : float
        Seconds that `stop` waits for the last update at most; a stuck view must not block a cell.

    Attributes
    ----------
    last : Update
        The newest one. The first is full, made at construction, and not sent: the caller may do so.
    """

    def __init__(
        self,
        viewed: Viewed,
        send: Callable[[Update], object],
        name: str,
        interval: float = INTERVAL,
        stop_timeout: float = 2.0,
    ) -> None:
        self._viewed = weakref.ref(viewed)
        self._send = send
        self._interval, self._stop_timeout = interval, stop_timeout
        self._feed = Feed()
        first = self._feed.next(viewed, time.time())
        assert first is not None  # the first update is always made
        self.last = first
        self._hello = threading.Event()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    @uninterrupted
    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    @uninterrupted
    def wake(self, full: bool = False) -> None:
        """Send soon what has changed, as a view waits for it; any thread.

        Or everything, for a view that is new or missed something.
        """
        if full:
            self._hello.set()
        self._wake.set()

    @uninterrupted
    def stop(self) -> None:
        """End the thread after one last update; harmless when it has ended or never started.

        Waits for that update, but no longer than ``stop_timeout``. Do not call it while holding a
        lock that the coordinator's ``statistics`` takes.
        """
        self._stopped.set()
        self._wake.set()
        # The thread itself may call this: it may drop the last reference to a coordinator, whose
        # finalizer stops its view.
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(self._stop_timeout)

    def ended(self) -> None:
        """Handle that nothing will be sent any more; the thread's last call."""

    def _run(self) -> None:
        pause = self._interval
        try:
            more = True
            while more:
                self._wake.wait(pause)
                self._wake.clear()
                try:
                    more = self._tick()
                    pause = self._interval
                except OSError as error:
                    _log.debug("a view of a coordinator is out of reach: %s", error)
                    self._hello.set()
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    more = not self._stopped.is_set()
        except Exception as error:  # a boundary: otherwise the error would be lost with the thread
            _log.exception("A view of a coordinator stops updating")
            # The coordinator's state is not known here any more.
            why = truncate(f"No longer updated: {type(error).__name__}: {error}")
            self._end("unknown", plain(why))
        try:
            self.ended()
        except Exception:  # as above
            _log.debug("a view of a coordinator has not received its end", exc_info=True)

    def _tick(self) -> bool:
        """Make and send one update, and return whether there may be more."""
        # In a function of its own, so that no local variable keeps the coordinator alive during the
        # wait.
        viewed = self._viewed()
        if viewed is None:
            self._end(CLOSED, "The coordinator is gone.")
            return False
        # Read before the update is made, so that `stop` always gets an update made after it.
        last, full = self._stopped.is_set(), self._hello.is_set()
        self._hello.clear()
        viewed.watch()
        update = self._feed.next(viewed, time.time(), full or last)
        if update is not None:
            if last and update["summary"]["state"] != CLOSED:
                # The coordinator continues without the view.
                update["notice"] = "No longer updated."
            self.last = update
            self._send(update)
        return not last and self.last["summary"]["state"] != CLOSED

    def _end(self, state: str, notice: str) -> None:
        # Figures that are not updated must not look live: the view would say "running" for ever.
        summary = self.last["summary"]
        self.last = bare(self.last)
        self.last["sequence"] += 1
        self.last["notice"] = notice
        self.last["summary"] = {
            **summary,
            "state": state,
            "tone": coordinator_tone(state),
            "meaning": notice,
        }
        try:
            self._send(self.last)
        except Exception:  # the sender may raise anything
            # The view cannot be reached; an important reason has been logged already.
            _log.debug("a view of a coordinator could not receive its end", exc_info=True)
