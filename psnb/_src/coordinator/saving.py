"""Saving: the checkpoint managers of a coordinator, and all automatic saves.

Callers that wait for closures poll, each in its own thread: `ClusterCoordinator.done`, `join`,
`run_epoch`, and trainers. If a save is due, that starts a thread, ``psnb-saving``, which ends with
it. So nothing is saved, and no thread lives, when no caller polls. There is one such thread at a
time; while it lives, it alone uses the save schedules; otherwise polling callers do, under the
lock, or a trainer at the end of an epoch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from psnb._src.checkpoint.manager import FolderManager
from psnb._src.checkpoint.save_schedule import SaveSchedule
from psnb._src.monitor.events import EventKind, EventLog
from psnb._src.monitor.statistics import CheckpointStatistics
from psnb._src.utils.interrupts import Lock
from psnb._src.utils.paths import AnyPath
from psnb.errors import CheckpointError, CoordinatorClosedError, PsnbError

logger = logging.getLogger("psnb")


@dataclass(frozen=True, eq=False)
class Saves:
    """What saves automatically, and when.

    Parameters
    ----------
    manager : FolderManager
        What saves.
    schedule : SaveSchedule
        When.
    step : callable
        Returns where its steps are.
    timeout : float
        Seconds that closures get to end; meanwhile no other save begins.
    saved : callable
        Called with each checkpoint, in the thread that saves.
    """

    manager: FolderManager
    schedule: SaveSchedule
    step: Callable[[], int]
    timeout: float
    saved: Callable[[AnyPath], object] = bool


class Saving:
    """The managers that were made for a coordinator: of each directory the last one.

    Thread-safe.

    Parameters
    ----------
    events : EventLog
        Receives the outcomes of automatic saves.
    """

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._lock = Lock()  # makes one of two threads the first; and see above
        self._all: dict[AnyPath, Saves] = {}  # by directory, the newest last; never changed
        self._trainers: list[Saves] = []  # one call each adds, removes or copies, atomically
        # Whether no thread saves. Not the thread's `join`: after an interrupt of it, Python 3.11
        # takes a thread that runs for one that has ended.
        self._ended = threading.Event()
        self._ended.set()

    def use(self, saves: Saves) -> None:
        """Use this manager from now on, and no other one for its directory."""
        directory = saves.manager.directory
        with self._lock:
            others = {name: each for name, each in self._all.items() if name != directory}
            self._all = {**others, directory: saves}

    @contextmanager
    def training(self, saves: Saves) -> Iterator[None]:
        """Save by this schedule, too, while the block runs; its saves have ended with it."""
        self._trainers.append(saves)
        try:
            yield
        finally:
            self._trainers.remove(saves)
            self.finish()

    def poll(self) -> None:
        """Begin the saves that are due; cheap, never waits for one."""
        every = (*self._all.values(), *self._trainers)
        if not any(each.schedule.wanted for each in every):
            return
        now = time.monotonic()
        with self._lock:
            if not self._ended.is_set():
                return
            if due := [each for each in every if each.schedule.due(now, each.step())]:
                run = partial(self._run, due)
                threading.Thread(target=run, name="psnb-saving", daemon=True).start()
                self._ended.clear()

    def finish(self) -> None:
        """Wait for the end of automatic saves: one that ends later would be the newest."""
        self._ended.wait()

    @property
    def status(self) -> CheckpointStatistics:
        """The status of the newest save; cheap."""
        manager = self._current()
        return CheckpointStatistics() if manager is None else manager.status

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
        manager = self._current()
        if manager is None:
            raise CheckpointError(self.cannot)
        return manager.save()

    def _current(self) -> FolderManager | None:
        return next((each.manager for each in reversed(self._all.values())), None)

    def _run(self, due: Sequence[Saves]) -> None:
        try:
            for each in due:
                self.attempt(each)
        finally:
            with self._lock:
                self._ended.set()

    def attempt(self, saves: Saves) -> AnyPath | None:
        """Save automatically; return the path, or None if it failed: it is due again then."""
        manager, schedule = saves.manager, saves.schedule
        began, step = time.monotonic(), saves.step()
        try:
            path = manager.save(timeout=saves.timeout)
        except Exception as error:  # a full disk, a lost server, what a user's state= raises
            # What was closed meanwhile, as when a script ends, tries nothing again. (The errors of
            # a lost scheduler and a lost ownership derive from this one.)
            if type(error) is not CoordinatorClosedError:
                self._failed(saves, error)
            return None
        failures, held = schedule.failures, manager.status.held
        schedule.saved(began, step)
        text = f"saved {str(path)!r}"
        if failures:
            text += f", after {failures} attempts that failed: checkpoints are saved again"
        if held:
            text += f"; closures were held for {held:.2g} s"
        self._events.add(EventKind.CHECKPOINT_SAVED, text)
        saves.saved(path)
        return path

    def _failed(self, saves: Saves, error: Exception) -> None:
        reason = str(error) if isinstance(error, PsnbError) else f"{type(error).__name__}: {error}"
        first = not saves.schedule.failures
        pause = saves.schedule.failed(time.monotonic())
        if first:  # once, until it works again
            self._events.add(
                EventKind.CHECKPOINT_FAILED,
                # The reason first: the middle of what is long is cut out.
                f"no checkpoint can be saved: {reason}; that was in "
                f"{str(saves.manager.directory)!r}; closures go on, and it is tried again in "
                f"{pause:g} s, then less and less often",
            )
        else:
            logger.debug("still no checkpoint can be saved: %s", error)
