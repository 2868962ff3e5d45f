"""Following: a thread that looks for newer checkpoints for a model, until it is ended. Pure.

The thread ``psnb-following`` keeps the model only while it refreshes it. So it ends with the
model, too: when that is collected, and when Python ends.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import Protocol

from psnb._src.checkpoint.save_schedule import SaveSchedule
from psnb._src.utils.interrupts import uninterrupted
from psnb._src.utils.text import truncate

logger = logging.getLogger("psnb")

_AT_THE_END = 5.0
"""Seconds to wait for the thread when Python ends: it may be reading from a network."""


class Refreshed(Protocol):
    """A model that can be refreshed."""

    def refresh(self) -> bool:
        """Do so; raise if that fails."""


class Following:
    """Refreshes a model again and again.

    Parameters
    ----------
    model : Refreshed
        The model.
    every : float
        Seconds between two times. After a failure it is tried again after 1 s, then after growing
        pauses of at most 5 minutes.
    """

    def __init__(self, model: Refreshed, every: float) -> None:
        self._ended = threading.Event()
        given = weakref.ref(model), self._ended, every
        self._thread = threading.Thread(
            target=_refresh, args=given, name="psnb-following", daemon=True
        )
        with uninterrupted:
            self._thread.start()
        weakref.finalize(model, _end, self._ended, self._thread)

    def end(self) -> None:
        """End it, and wait for its reading; idempotent."""
        self._ended.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()


def _end(ended: threading.Event, thread: threading.Thread) -> None:
    ended.set()
    if threading.current_thread() is not thread:
        thread.join(_AT_THE_END)


def _refresh(found: weakref.ref[Refreshed], ended: threading.Event, every: float) -> None:
    schedule, pause = SaveSchedule(every, None, time.monotonic()), 0.0
    while not ended.wait(pause) and (model := found()) is not None:
        try:
            model.refresh()
        except Exception as error:  # the thread must continue, whatever a store raises
            pause = schedule.failed(time.monotonic())
            if schedule.failures == 1:
                reason = truncate(str(error)) or type(error).__name__
                logger.warning("%r goes on with what it has, and tries again: %s", model, reason)
        else:
            if schedule.failures:
                logger.info("%r follows again", model)
            schedule.saved(time.monotonic(), 0)
            pause = every
        del model
