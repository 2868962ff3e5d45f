"""FolderManager: saves parameters into a folder of numbered checkpoints, and restores them. Pure.

Servers take snapshots, while closures are held if the caller can hold them; then they write the
files themselves, while training continues. So servers and notebook must all reach the directory. If
managers share it, its `psnb._src.checkpoint.store` keeps them apart.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from html import escape
from typing import Any

from psnb._src.checkpoint.folders import checkpoints_in, is_gone, not_read, store_at
from psnb._src.checkpoint.loading import Checkpoint
from psnb._src.checkpoint.manifest import checked_metadata
from psnb._src.checkpoint.restore import (
    ModelPartsOf,
    Rename,
    RestoreChoice,
    Restored,
    no_models,
    restore_choice,
)
from psnb._src.checkpoint.writing import DeltaBase, UsedBase, in_use, write_checkpoint
from psnb._src.client.snapshots import TableSnapshots
from psnb._src.monitor.html.tables import html_table
from psnb._src.monitor.statistics import CheckpointStatistics
from psnb._src.utils.checks import integer, path_text
from psnb._src.utils.foreign_names import FixedAttributes
from psnb._src.utils.paths import AnyPath, as_path
from psnb._src.utils.text import truncate
from psnb._src.utils.threads import run_in_thread
from psnb.errors import CheckpointError, ServerLostError

logger = logging.getLogger("psnb")

_ATTEMPTS = 5
"""How often a checkpoint is begun: each time, servers have ended on which it was taken."""


State = Callable[[], Mapping[str, Any]]
"""Returns metadata, as of the moment that is saved."""

Barrier = Callable[[float | None], AbstractContextManager[None]]
"""Returns a context in which no closure runs; it takes the seconds that it may wait for that."""


class FolderManager(FixedAttributes):
    """Numbered checkpoints of a strategy in one directory; users hold a `CheckpointManager`.

    Parameters
    ----------
    strategy : StrategyCore
        The strategy whose parameters are saved.
    directory, max_to_keep
        As for `CheckpointManager`.
    keep_every : float, optional
        As for `CheckpointManager`, in seconds.
    full_every : int
        As for `CheckpointManager`.
    barrier : callable, optional
        Holds closures while it saves. None: they run on.
    state : callable, optional
        Returns metadata.
    run : callable
        Returns the state of the run, for resuming; it is called as ``state`` is.
    models : callable
        Returns the records of models, here and in the checkpoint.
    """

    directory: AnyPath

    def __init__(
        self,
        strategy: Any,
        directory: str | os.PathLike[str],
        max_to_keep: int,
        keep_every: float | None = None,
        full_every: int = 1,
        barrier: Barrier | None = None,
        state: State | None = None,
        run: State = dict,
        models: ModelPartsOf = no_models,
    ) -> None:
        max_to_keep = integer("max_to_keep", max_to_keep, 1)
        self._full_every = integer("full_every", full_every, 1)
        self._base: DeltaBase | None = None  # one assignment each, atomically
        self.directory = as_path(path_text("CheckpointManager: directory", directory))
        self._folder = store_at(self.directory)
        self._strategy, self._max_to_keep, self._keep_every = strategy, max_to_keep, keep_every
        self._barrier = barrier
        self._state, self._run, self._models = state, run, models
        self._more: list[State] = []  # one call each adds, removes or copies, atomically
        self._status = CheckpointStatistics()
        # Set when the restore that began last has ended, also if no caller waits for it any more.
        self._restored = threading.Event()
        self._restored.set()
        self._lock = threading.Lock()  # makes one of two restores the first, for a moment
        self._folder.prepare()

    def __repr__(self) -> str:
        count = len(self.checkpoints)
        return f"<psnb.{type(self).__name__} {str(self.directory)!r}, {count} checkpoints>"

    def _repr_html_(self) -> str:
        rows = [(each.name, self._folder.written(each)) for each in reversed(self.checkpoints)]
        table = html_table("checkpoints", ("checkpoint", "written"), rows)
        return f"<div><strong>Checkpoints in {escape(str(self.directory))}</strong></div>{table}"

    @property
    def status(self) -> CheckpointStatistics:
        """The progress of the latest save; cheap, any thread."""
        return self._status

    @property
    def checkpoints(self) -> list[AnyPath]:
        """The checkpoints in the directory, oldest first."""
        return checkpoints_in(self.directory)

    @property
    def latest_checkpoint(self) -> AnyPath | None:
        """The newest checkpoint, or None."""
        found = self.checkpoints
        return found[-1] if found else None

    def save(
        self, metadata: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> AnyPath:
        """Write the next checkpoint, and remove old ones beyond ``max_to_keep``.

        May be called while closures run. Everything is saved as it was at one moment: running
        closures have their effect first, no other begins until the servers have noted that moment,
        and while they write, training continues. ``status.held`` says how long closures were held.
        Direct writes of this notebook to parameters are not held.

        If a server ends before it has written, and others have its shards, as copies or because it
        was drained, all is saved again, as of a later moment.

        With ``consistent=False`` closures are not held. Each shard of a parameter is then saved as
        it was at one moment (no update of it is half there), but those moments differ slightly.

        Parameters
        ----------
        metadata : mapping, optional
            Kept with it, for example the step; anything that JSON can hold.
        timeout : float, optional
            Seconds to wait at most for the closures that run; None waits for as long as it takes.

        Returns
        -------
        pathlib.Path or RemotePath
            The new checkpoint; if this fails, there is none. If the directory is an address, it is
            something else with the same names: ``str(path)``, ``path.name``, ``path.exists()``.

        Raises
        ------
        CheckpointError
            If it cannot be written, by the notebook or a server; earlier ones are untouched.
        ServerLostError
            If a server is gone, or does not respond, whose shards no other has; earlier ones are
            untouched.
        ServerUnresponsiveError
            If a server that does not respond must say whether closures had their effect.
        TimeoutError
            If closures run for longer; nothing was saved.
        """
        run_in_thread(self._restored.wait)
        self._status = CheckpointStatistics("saving")
        try:
            path, pause = self._saved(metadata or {}, timeout)
            self._strategy.note_checkpoint(path)
            # In another thread: an interrupt must not leave a checkpoint half removed.
            run_in_thread(self._folder.prune, self._max_to_keep)
        except BaseException as error:  # an interrupt, too: statistics say how it ended
            reason = truncate(str(error)) or type(error).__name__
            self._status = CheckpointStatistics("failed", error=reason)
            raise
        self._status = CheckpointStatistics("saved", str(path), 1.0, held=pause)
        return path

    def _saved(self, metadata: Mapping[str, Any], timeout: float | None) -> tuple[AnyPath, float]:
        """Write the next checkpoint; return it, and for how many seconds closures were held.

        If a server ends before it has written, while others have its shards, saving begins again,
        as of a later moment: the snapshots of the other servers are of a moment that is over.
        """
        pause, left = 0.0, _ATTEMPTS
        more = self._more.copy()  # a trainer may be gone, or come, before closures have ended
        while True:
            left -= 1
            deep = self._base is not None and self._base.depth + 1 >= self._full_every
            with in_use(self._folder, None if deep else self._base) as base:
                self._strategy.prepare_snapshots()
                began = time.monotonic()
                held = nullcontext() if self._barrier is None else self._barrier(timeout)
                with held, self._strategy.moment():
                    every = list(dict.fromkeys([*more, *self._more]))
                    content, run = self._content(metadata, every), self._run()
                    since = {} if base is None else base.known.marks
                    # Without deltas, servers need not track changes.
                    taken = self._strategy.snapshots(since if self._full_every > 1 else None)
                pause += 0.0 if self._barrier is None else time.monotonic() - began
                try:
                    with closing(taken):
                        self._base = new = self._write(taken, content, run, base)
                    return new.path, pause
                except ServerLostError:
                    if not left or not self._strategy.settled():
                        raise

    def restore(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        strict: bool = True,
        names: str | Sequence[str] | None = None,
        rename: Rename | None = None,
    ) -> Restored:
        """Restore parameters and their optimizer state, onto any number of servers.

        Everything is checked before anything is changed. Call it when no closure runs. An interrupt
        before that leaves all as it was; one that comes later ends only the waiting: the rest is
        restored in the background, which the next `save` or `restore` of this manager waits for.

        Parameters
        ----------
        path : str or os.PathLike, optional
            A checkpoint; None for the latest in the directory.
        strict : bool
            True: parameters and checkpoint must fit. False: parameters that fit are restored, all
            others stay as they are; the result lists them.
        names : str or sequence of str, optional
            Patterns, as of files, of the parameters to restore (``"deep*"``), by the names that
            they have now. The others stay as they are, and the checkpoint need not have them.
        rename : mapping or callable, optional
            From the name in the checkpoint to the name that the parameter has now. Names that a
            mapping lacks are the same.

        Returns
        -------
        Restored
            The metadata that it was saved with, as a mapping; it also says what was restored, and
            what did not fit.

        Raises
        ------
        CheckpointError
            If there is no checkpoint, if it is damaged, or if it does not fit: it lacks a
            parameter, has one more, or has another shape, dtype or optimizer state for one; the
            message lists all of them. Nothing was changed.
        ConfigurationError
            If a pattern fits no parameter, or two get the same name; nothing was changed.
        ServerLostError
            If a server is gone; only a part was restored: a note on the error says which parameters
            were restored, and which were not.
        """
        parameters = self._strategy.parameters()
        choice = restore_choice(names, rename, parameters)
        if path is None:
            saved = self._newest(choice, strict)
        else:
            place = as_path(path_text("restore: path", path))
            saved = Checkpoint(place, parameters, choice, strict=strict, models=self._models)
        caller_gone = threading.Event()
        try:
            # In another thread: an interrupt must not leave a part restored.
            run_in_thread(self._load, saved, caller_gone)
        except KeyboardInterrupt:
            caller_gone.set()
            raise
        return saved.restored

    def _load(self, saved: Checkpoint, caller_gone: threading.Event) -> None:
        # In threads that no interrupt strikes. One after the other, but under no lock, which would
        # be held while all servers write; and a `save` that waits for it might come before a
        # restore that has waited for longer.
        ended = threading.Event()
        with self._lock:
            before, self._restored = self._restored, ended
        try:
            before.wait()
            with self._strategy.moment():
                saved.load()
        except Exception as error:  # no caller sees what ends it after an interrupt
            if caller_gone.is_set():
                logger.warning("%r is restored in part: %s", str(saved.path), error)
            raise
        else:
            if saved.complete:  # from any other, not all could be recovered
                self._strategy.note_checkpoint(saved.path)
        finally:
            ended.set()

    @contextmanager
    def also_saving(self, state: State) -> Iterator[None]:
        """Save the metadata that a function returns, too, while the block runs; for psnb only.

        It takes precedence over all other metadata.
        """
        self._more.append(state)
        try:
            yield
        finally:
            self._more.remove(state)

    def _content(self, metadata: Mapping[str, Any], more: Sequence[State]) -> dict[str, Any]:
        # In another thread: users' functions, which an interrupt must not wait for.
        content: dict[str, Any] = {}
        if self._state is not None:
            content |= checked_metadata(run_in_thread(self._state))
        content |= checked_metadata(metadata)
        for each in more:
            content |= checked_metadata(run_in_thread(each))
        return content

    def _write(
        self,
        taken: TableSnapshots,
        content: Mapping[str, Any],
        run: Mapping[str, Any],
        base: UsedBase | None,
    ) -> DeltaBase:
        def note_share(share: float) -> None:
            self._status = CheckpointStatistics("saving", share=share)

        try:
            kept = self._keep_every is not None and (
                time.time() - self._folder.last_kept() >= self._keep_every
            )
        except OSError as error:
            raise not_read(self.directory, error) from error
        return write_checkpoint(
            self._folder,
            taken,
            content,
            consistent=self._barrier is not None,
            kept=kept,
            on_progress=note_share,
            run=run,
            base=base,
        )

    def _newest(self, choice: RestoreChoice, strict: bool) -> Checkpoint:
        while path := self.latest_checkpoint:
            try:
                parameters = self._strategy.parameters()
                return Checkpoint(path, parameters, choice, strict=strict, models=self._models)
            except CheckpointError:
                if not is_gone(path):
                    raise
                # Other managers have saved newer ones meanwhile, and removed this one.
        raise CheckpointError(f"there is no checkpoint in {str(self.directory)!r}")
