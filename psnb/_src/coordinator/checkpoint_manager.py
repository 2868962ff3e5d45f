"""CheckpointManager: saves and restores all parameters of a coordinator's strategy."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from psnb._src.checkpoint import FolderManager, Rhythm
from psnb._src.coordinator.coordinator import ClusterCoordinator, saved_run, view_of
from psnb._src.coordinator.saving_settings import SavingSettings
from psnb._src.excerpt import shown
from psnb._src.strategy import core_of
from psnb.errors import ConfigurationError


class CheckpointManager(FolderManager):
    """Numbered checkpoints in one directory.

    The servers write what they hold, in parallel, while training goes on: see `save`. So they must
    reach the directory, too.

    With ``every`` or ``steps`` it saves by itself while somebody waits for closures: polls
    `ClusterCoordinator.done`, or is in `join`, `join_async`, `run_epoch` or a `Trainer`. That
    happens in the background. If one fails, training goes on: a warning and an event tell it once,
    it is tried again after 1 s, then after growing pauses of at most 5 minutes, and an event tells
    when it works again. The same if closures run for more than ``save_timeout``. When nobody waits,
    nothing is saved.

    Thread-safe. Several managers, of one notebook or of many, may share a directory. Saves are
    numbered in the order in which they end. Of those that one coordinator has for a directory, only
    the last that was made saves by itself, so a cell that makes one can be run again.

    Parameters
    ----------
    coordinator : ClusterCoordinator
        The variables and embeddings of its strategy are saved, with their optimizer state.
    directory : str or os.PathLike
        A path on disks that the notebook and all servers share, or an address that fsspec
        understands, like ``s3://bucket/run-1``. Created if it does not exist, but for a bucket.
    max_to_keep : int
        How many checkpoints to keep. Each save removes older ones, whoever saved them; one that is
        being restored is removed by a later save.
    every : float or str, optional
        Save by itself after so many seconds, or ``"90 s"``, ``"5 min"``, ``"6 h"``, ``"1 d"``.
    steps : int, optional
        Save by itself when so many closures have completed since. With both, whichever comes first.
        It is looked at ten times a second, so a few closures more may have completed.
    keep_every : float or str, optional
        Of each such period one checkpoint stays for ever, beyond ``max_to_keep`` and whichever
        manager removes old ones: it has a file ``kept``, which you may remove.
    full_every : int
        With 10, one save of ten is whole; the nine between are deltas, for which servers write only
        what changed since the save before: the rows that were touched. All else they share with
        the checkpoints before: on disks by hard links, elsewhere by naming their files. So a delta
        is restored, copied and kept like any other, and nothing is lost when those before it are
        removed. A server that was lost or has moved since writes all of its part again, and so does
        one where most rows have changed. Servers then need two bytes more a row. A new manager
        begins with a whole one.
    state : callable, optional
        Returns metadata, a mapping that JSON can hold, to be kept with each checkpoint: for example
        ``lambda: {"epoch": iterator.state()}``. It is called at the moment that is saved, while no
        closure runs, in another thread, and must be quick and wait for no closure. What `save` is
        given, and what a `Trainer` keeps with its checkpoints, takes precedence.
    consistent : bool
        Whether closures are held when a save begins, so that it is of one moment. If not, they go
        on; the manifest says which it was.
    save_timeout : float
        Seconds that closures get to end for a save that the manager begins by itself; meanwhile no
        other begins. `save` has a ``timeout`` of its own.

    Attributes
    ----------
    save_timeout : float
        As given.

    Raises
    ------
    CheckpointError
        If the directory cannot be written.
    ConfigurationError
        If an argument is of the wrong kind.
    """

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        directory: str | os.PathLike[str],
        max_to_keep: int = 3,
        *,
        every: float | str | None = None,
        steps: int | None = None,
        keep_every: float | str | None = None,
        full_every: int = 1,
        state: Callable[[], Mapping[str, Any]] | None = None,
        consistent: bool = True,
        save_timeout: float = 300.0,
    ) -> None:
        if not isinstance(coordinator, ClusterCoordinator):
            raise ConfigurationError(
                f"coordinator must be a psnb.ClusterCoordinator, found {shown(coordinator)}"
            )
        if state is not None and not callable(state):
            raise ConfigurationError(
                f"state must be a function that returns a mapping, found {shown(state)}"
            )
        self._coordinator = coordinator  # the servers live as long as its strategy does
        view = view_of(coordinator)
        settings = SavingSettings(
            max_to_keep,
            every,  # type: ignore[arg-type]  # it makes seconds of text
            steps,
            keep_every,  # type: ignore[arg-type]
            full_every,
            consistent,
            save_timeout,
        )
        self.save_timeout = settings.save_timeout
        rhythm = Rhythm(
            settings.every, settings.steps, time.monotonic(), view.statistics().completed
        )
        super().__init__(
            core_of(coordinator.strategy),
            directory,
            settings.max_to_keep,
            settings.keep_every,
            settings.full_every,
            view.held if consistent else None,
            state,
            lambda: saved_run(coordinator, settings).described(),
            core_of(coordinator.strategy).model_parts,
        )
        view.saving.use(self, rhythm)
