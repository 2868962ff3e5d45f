"""LoadedModel: an exported model that predicts on this machine.

All that a prediction uses is one `ModelState`, which it reads once: so it is of one checkpoint,
also while another thread puts a newer one in its place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from psnb._src.checks import period
from psnb._src.excerpt import excerpt
from psnb._src.export.exported import Fetch
from psnb._src.export.following import Following
from psnb._src.export.model_feed import ModelFeed
from psnb._src.export.model_manifest import ModelManifest
from psnb._src.export.model_state import ModelState, ModelVersion, newer_state
from psnb._src.export.nested import nested
from psnb._src.remote_path import as_place
from psnb._src.threads import Lock
from psnb.errors import ConfigurationError

_NOWHERE = (
    "there is nothing to follow: give psnb.export(follow=manager), or the directory of checkpoints"
)


class LoadedModel:
    """A model that `psnb.export` wrote; made by `load_model`.

    Thread-safe. It has neither Dask nor the training code; rows are mapped into memory, so several
    processes of a machine share them. Do not change or shorten its files while it is used.

    Parameters
    ----------
    path : pathlib.Path
        Its folder.
    manifest : ModelManifest
        What is in it.
    dense : mapping of str to numpy.ndarray
        The dense parameters in it.
    state : ModelState
        What predictions use.
    """

    def __init__(
        self,
        path: Path,
        manifest: ModelManifest,
        dense: Mapping[str, np.ndarray],
        state: ModelState,
    ) -> None:
        self._path, self._manifest, self._dense = path, manifest, dense
        self._state, self._failure = state, ""  # one assignment each, atomically
        follows = manifest.follows
        self._place = None if follows is None else as_place(follows.directory)
        self._following: Following | None = None
        # Held while a state takes the place of an older one, or following begins or ends.
        self._changing = Lock()

    def __repr__(self) -> str:
        feeds = ", ".join(feed.name for feed in self.feeds)
        fetches = ", ".join(fetch.name for fetch in self.fetches)
        state = self._state
        rows = sum(len(table.content) for table in state.tables.values())
        used = "" if state.checkpoint is None else f" of {state.checkpoint.path.name}"
        return (
            f"<psnb.LoadedModel {str(self._path)!r}: {feeds} -> {fetches}; {rows} rows in "
            f"{len(state.tables)} tables{used}>"
        )

    def __enter__(self) -> LoadedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def feeds(self) -> tuple[ModelFeed, ...]:
        """What it needs of a batch: names, dtypes and shapes."""
        return self._manifest.feeds

    @property
    def fetches(self) -> tuple[Fetch, ...]:
        """What it returns: names, dtypes and shapes."""
        return self._manifest.fetches

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What `psnb.export` was given."""
        return self._manifest.metadata

    @property
    def row_errors(self) -> Mapping[str, Mapping[str, float]]:
        """By table, the largest error of a number in its rows, and the root of the mean square.

        It is of the rows that were exported; those of checkpoints have none.
        """
        return {table.name: table.error for table in self._manifest.tables}

    @property
    def version(self) -> ModelVersion:
        """What it predicts with: the export, or which checkpoint."""
        return self._state.version

    @property
    def failure(self) -> str:
        """Why the last `refresh` failed; empty if it did not."""
        return self._failure

    def follow(
        self, directory: str | os.PathLike[str] | None = None, *, every: float | str = "10 s"
    ) -> LoadedModel:
        """Take each newer checkpoint of the run that it was exported from, in the background.

        A thread calls `refresh` until `close`, or until nobody has the model any more. If that
        fails, the model stays as it is: a warning tells it once, `failure` as long as it lasts, and
        it is tried again after 1 s, then after growing pauses of at most 5 minutes.

        Parameters
        ----------
        directory : path, optional
            Where checkpoints appear, as this machine reaches it: a path, or an address that fsspec
            understands. By default what `psnb.export` was given as ``follow=``.
        every : float or str
            Seconds between two looks, or ``"90 s"``, ``"5 min"``.

        Returns
        -------
        LoadedModel
            This one: ``with psnb.load_model(path).follow() as model:`` ends it with the block.

        Raises
        ------
        ConfigurationError
            If there is no directory, or it follows already.
        """
        pause = period("follow: every", every)
        place = self._place if directory is None else as_place(directory)
        if place is None:
            raise ConfigurationError(_NOWHERE)
        with self._changing:
            if self._following is not None:
                raise ConfigurationError(
                    f"{self!r} follows {str(self._place)!r} already: close() it before"
                )
            self._place = place
            self._following = Following(self, pause)
        return self

    def refresh(self, directory: str | os.PathLike[str] | None = None) -> bool:
        """Take the newest checkpoint, if it is newer than what there is; return whether it was.

        Predictions of other threads go on meanwhile. What they see is the export or one checkpoint
        wholly: dense parameters and rows, with rows that came, changed and vanished. Only files are
        read that are new: of a delta its own.

        A checkpoint is newer if its number is larger than that of the one before, or of the newest
        one that was there when the model was exported with ``follow=``.

        Parameters
        ----------
        directory : path, optional
            As for `follow`.

        Raises
        ------
        CheckpointError
            If it is damaged, cannot be read, or is none of this model (then all that is different
            is told); the model stays as it is.
        ConfigurationError
            If there is no directory.
        """
        place = self._place if directory is None else as_place(directory)
        if place is None:
            raise ConfigurationError(_NOWHERE)
        try:
            new = newer_state(self._manifest, self._dense, self._state, place)
        except Exception as error:
            self._failure = excerpt(str(error)) or type(error).__name__
            raise
        self._failure = ""
        if new is None:
            return False
        with self._changing:
            if newer := new.version.number > self._state.version.number:
                self._state = new
        return newer

    def close(self) -> None:
        """End following; it predicts on with what it has. Idempotent."""
        with self._changing:
            following, self._following = self._following, None
        if following is not None:
            following.end()

    def predict(self, batch: Any) -> Any:
        """Return what the model returns for a batch.

        Parameters
        ----------
        batch : mapping, or sequence of arrays
            The `feeds` by name (what else it has is left out), or in their order. A model with one
            feed takes the array as well.

        Returns
        -------
        array or nested structure of arrays
            As the model returned before it was exported, with numpy arrays.

        Raises
        ------
        ConfigurationError
            If a feed is missing, or has another shape or dtype.
        IdOutOfRangeError
            If an id is outside the rows of a table.
        """
        return nested(self._manifest.outputs, self.predict_flat(batch))

    def predict_flat(self, batch: Any) -> Sequence[np.ndarray]:
        """Return the arrays of all `fetches`, in their order; see `predict`."""
        taken = {
            feed.name: feed.taken(value)
            for feed, value in zip(self.feeds, self._values(batch), strict=True)
        }
        lengths = {
            feed.name: len(taken[feed.name])
            for feed in self.feeds
            if feed.holds != "any" and None in feed.shape
        }
        if len(set(lengths.values())) > 1:
            raise ConfigurationError(f"the feeds of a batch differ in their length: {lengths}")
        state = self._state  # read once: all of it is of one checkpoint
        return state.computation(taken, state.tables)

    def _values(self, batch: Any) -> list[Any]:
        names = [feed.name for feed in self.feeds]
        if isinstance(batch, Mapping):
            if missing := [name for name in names if name not in batch]:
                raise ConfigurationError(
                    f"a batch lacks {missing}; it has {sorted(map(str, batch))}"
                )
            return [batch[name] for name in names]
        if isinstance(batch, tuple | list) and len(batch) == len(names):
            return list(batch)
        if len(names) == 1:
            return [batch]
        raise ConfigurationError(
            f"a batch is a mapping with {names}, or as many arrays in this order; found "
            f"{type(batch).__name__}"
        )
