"""Saving: the checkpoint managers of a coordinator, and their automatic saves.

Callers that wait for closures poll, each in its own thread: `ClusterCoordinator.done`, `join`,
`run_epoch`. If a save is due, that starts a thread, ``psnb-saving``, which ends with it. So
nothing is saved, and no thread lives, when no caller polls. There is one such thread at a time;
while it lives, it alone uses the save schedules; otherwise polling callers do, under the lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

from psnb._src.checkpoint.save_schedule import SaveSchedule
from psnb._src.monitor.events import EventKind, EventLog
from psnb._src.monitor.statistics import CheckpointStatistics
from psnb._src.utils.interrupts import Lock
from psnb._src.utils.paths import AnyPath
from psnb.errors import CheckpointError, CoordinatorClosedError, PsnbError

logger = logging.getLogger("psnb")


class Saver(Protocol):
    """What saves checkpoints.

    Attributes
    ----------
    directory : AnyPath
        Where to.
    save_timeout : float
        Seconds that closures get to end for an automatic save; meanwhile no other
        begins.
    """

    directory: AnyPath
    save_timeout: float

    @property
    def status(self) -> CheckpointStatistics:
        """The status of the newest save."""

    def save(self, *, timeout: float | None = None) -> AnyPath:
        """Save a checkpoint; return its path."""


class Closures(Protocol):
    """What is needed of the queue here."""

    @property
    def completed(self) -> int:
        """How many closures have returned."""


class _Saves(NamedTuple):
    """What saves, and when."""

    saver: Saver
    rhythm: SaveSchedule


class Saving:
    """The managers that were made for a coordinator: of each directory the last one.

    Thread-safe.

    Parameters
    ----------
    events : EventLog
        Receives the outcomes of automatic saves.
    closures : Closures
        The queue.
    """

    def __init__(self, events: EventLog, closures: Closures) -> None:
        self._events, self._closures = events, closures
        self._lock = Lock()  # guards the next two; and see above
        self._all: dict[AnyPath, _Saves] = {}  # by directory; the newest manager's is last
        self._busy = False  # the thread lives
        self._wanted = False  # whether any is ever due

    def use(self, saver: Saver, rhythm: SaveSchedule) -> None:
        """Use this manager from now on, and no other one for its directory."""
        with self._lock:
            self._all.pop(saver.directory, None)
            self._all[saver.directory] = _Saves(saver, rhythm)
            self._wanted = any(each.rhythm.wanted for each in self._all.values())

    def poll(self) -> None:
        """Begin the saves that are due; cheap, never waits for one."""
        if not self._wanted or self._busy:
            return
        now, step = time.monotonic(), self._closures.completed
        with self._lock:
            due = [each for each in self._all.values() if each.rhythm.due(now, step)]
            if due and not self._busy:
                run = partial(self._run, due)
                threading.Thread(target=run, name="psnb-saving", daemon=True).start()
                self._busy = True

    @property
    def status(self) -> CheckpointStatistics:
        """The status of the newest save; cheap."""
        saver = self._current()
        return CheckpointStatistics() if saver is None else saver.status

    @property
    def cannot(self) -> str:
        """Why nothing can be saved; empty if it can."""
        if self._current() is not None:
            return ""
        return (
            "there is nothing to save with: make a psnb.CheckpointManager(coordinator, directory)"
        )

    def save(self) -> AnyPath:
        """Save all parameters; return the path.

        Raises
        ------
        CheckpointError
            If there is no manager, or as for `CheckpointManager.save`.
        """
        saver = self._current()
        if saver is None:
            raise CheckpointError(self.cannot)
        return saver.save()

    def _current(self) -> Saver | None:
        with self._lock:
            return next(reversed(self._all.values())).saver if self._all else None

    def _run(self, due: Sequence[_Saves]) -> None:
        try:
            for each in due:
                self.attempt(each.saver, each.rhythm, self._closures.completed)
        finally:
            with self._lock:
                self._busy = False

    def attempt(self, saver: Saver, rhythm: SaveSchedule, step: int) -> AnyPath | None:
        """Save automatically; return the path, or None if it failed: it is due again then.

        Parameters
        ----------
        saver : Saver
            What saves.
        rhythm : SaveSchedule
            Learns of the outcome.
        step : int
            Where its steps are.
        """
        began = time.monotonic()
        try:
            path = saver.save(timeout=saver.save_timeout)
        except Exception as error:  # a full disk, a lost server, what a user's state= raises
            # What was closed meanwhile, as when a script ends, tries nothing again. (The errors of
            # a lost scheduler and a lost ownership derive from this one.)
            if type(error) is not CoordinatorClosedError:
                self._failed(saver, rhythm, error)
            return None
        failures, held = rhythm.failures, saver.status.held
        rhythm.saved(began, step)
        text = f"saved {str(path)!r}"
        if failures:
            text += f", after {failures} attempts that failed: checkpoints are saved again"
        if held:
            text += f"; closures were held for {held:.2g} s"
        self._events.add(EventKind.CHECKPOINT_SAVED, text)
        return path

    def _failed(self, saver: Saver, rhythm: SaveSchedule, error: Exception) -> None:
        first = not rhythm.failures
        pause = rhythm.failed(time.monotonic())
        if first:  # once, until it works again
            self._events.add(
                EventKind.CHECKPOINT_FAILED,
                # The reason first: the middle of what is long is cut out.
                f"no checkpoint can be saved: {_reason(error)}; that was in "
                f"{str(saver.directory)!r}; closures go on, and it is tried again in "
                f"{pause:g} s, then less and less often",
            )
        else:
            logger.debug("still no checkpoint can be saved: %s", error)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, PsnbError) else f"{type(error).__name__}: {error}"
