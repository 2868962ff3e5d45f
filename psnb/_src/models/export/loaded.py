"""LoadedModel: an exported model that predicts on this machine.

All that a prediction uses is one `ModelState`, which it reads once: so it is of one checkpoint,
also while another thread puts a newer one in its place.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from psnb._src.data.formats.tables import columns_of
from psnb._src.models.export.manifest import (
    DENSE,
    MANIFEST,
    Fetch,
    ModelFeed,
    ModelManifest,
    TableEntry,
    check_file,
    read_model_manifest,
)
from psnb._src.models.export.model_state import ModelState, ModelVersion, following, newer_state
from psnb._src.models.export.nested import nested
from psnb._src.models.export.tables import StoredRows, StoredTable, check_index, mapped, place_dtype
from psnb._src.utils.arrays import frame_text
from psnb._src.utils.checks import integer, path_text, period
from psnb._src.utils.interrupts import Lock
from psnb._src.utils.paths import AnyPath, as_path
from psnb._src.utils.text import shown, truncate
from psnb.errors import ConfigurationError, ExportError


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
        self._place = None if follows is None else as_path(follows.directory)
        self._following: Callable[[], None] | None = None
        # Held while a state takes the place of an older one, or following begins or ends.
        self._changing = Lock()

    def __repr__(self) -> str:
        feeds = ", ".join(feed.name for feed in self.feeds)
        fetches = ", ".join(fetch.name for fetch in self.fetches)
        state = self._state
        rows = sum(len(table.content) for table in state.tables.values())
        used = "" if state.checkpoint is None else f" of {state.checkpoint.reader.path.name}"
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

        It is of the exported rows; rows of checkpoints have none.
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

        A thread calls `refresh` until `close`, or until the model is not referenced any more. If
        that fails, the model stays as it is: a warning says so once, `failure` as long as it lasts,
        and it is tried again after 1 s, then after growing pauses of at most 5 minutes.

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
        place = self._where(directory)
        with self._changing:
            if self._following is not None:
                raise ConfigurationError(
                    f"{self!r} follows {str(self._place)!r} already: close() it before"
                )
            self._place = place
            self._following = following(self, pause)
        return self

    def refresh(self, directory: str | os.PathLike[str] | None = None) -> bool:
        """Take the newest checkpoint, if it is newer than the present one; return whether it was.

        Predictions of other threads continue meanwhile. They see either the export or one
        checkpoint as a whole: dense parameters and rows, with rows that came, changed and vanished.
        Only new files are read: of a delta its own.

        A checkpoint is newer if its number is larger than the present one's, or than the newest
        one's at the time of the export with ``follow=``.

        Parameters
        ----------
        directory : path, optional
            As for `follow`.

        Raises
        ------
        CheckpointError
            If it is damaged, cannot be read, or is none of this model (then all that is different
            is named); the model stays as it is.
        ConfigurationError
            If there is no directory.
        """
        place = self._where(directory)
        try:
            new = newer_state(self._manifest, self._dense, self._state, place)
        except Exception as error:  # shown by `status`, whatever it is
            self._failure = truncate(str(error)) or type(error).__name__
            raise
        self._failure = ""
        if new is None:
            return False
        with self._changing:
            if newer := new.version.number > self._state.version.number:
                self._state = new
        return newer

    def close(self) -> None:
        """End following; it predicts with its present checkpoint from then on. Idempotent."""
        with self._changing:
            end, self._following = self._following, None
        if end is not None:
            end()

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

    def predict_dask(
        self,
        frame: Any,
        features: Callable[[dict[str, Any]], Any] | None = None,
        batch_size: int = 4096,
    ) -> Any:
        """Return predictions for the rows of a Dask DataFrame, as one with its partitions.

        Nothing is computed yet. The model is loaded once in each process that computes some of it,
        from its folder, which must be there.

        Parameters
        ----------
        frame : dask.dataframe.DataFrame
            Its columns are the `feeds`; others are left out.
        features : callable, optional
            Takes a dict of columns of some rows and returns a batch for `predict`: where the feeds
            are not columns themselves.
        batch_size : int
            How many rows are predicted for at a time.

        Returns
        -------
        dask.dataframe.DataFrame
            With the index of ``frame``: a column for each of the `fetches`, by its name in what the
            model returns, or ``prediction`` if that is all; one with further axes has a column for
            each of its numbers, ``name_0`` and so on.

        Raises
        ------
        ConfigurationError
            If it is no Dask DataFrame or lacks a feed, if what the model returns has no fixed
            number of columns, or if this follows a checkpoint, which the folder does not have.
        """
        size = integer("predict_dask: batch_size", batch_size, 1)
        if not hasattr(frame, "map_partitions") or not hasattr(frame, "columns"):
            raise ConfigurationError(
                f"predict_dask takes a Dask DataFrame, found {shown(frame)}: predict takes arrays"
            )
        if self._state.checkpoint is not None:
            raise ConfigurationError(
                f"{self!r} predicts with a checkpoint, and processes of Dask load what was "
                "exported: export it again, and load that"
            )
        names = [feed.name for feed in self.feeds]
        if features is None:
            if missing := [name for name in names if name not in list(frame.columns)]:
                raise ConfigurationError(
                    f"the frame lacks {missing}; it has {list(map(str, frame.columns))}"
                )
            frame = frame[names]
        made = _FramePredictions(str(self._path), self._manifest, features, size)
        # Not by its content: Dask would take a result of another export for this one's.
        return frame.map_partitions(made, meta=made.without_rows(), token=uuid.uuid4().hex)

    def _where(self, directory: str | os.PathLike[str] | None) -> AnyPath:
        place = self._place if directory is None else as_path(path_text("directory", directory))
        if place is None:
            raise ConfigurationError(
                "there is nothing to follow: give psnb.export(follow=manager), or the directory of "
                "checkpoints"
            )
        return place

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
            frame_text(batch)
            or f"a batch is a mapping with {names}, or as many arrays in this order; found "
            f"{type(batch).__name__}"
        )


@dataclass(frozen=True)
class _FramePredictions:
    """Predicts for a partition, in whichever process it is."""

    path: str
    manifest: ModelManifest
    features: Callable[[dict[str, Any]], Any] | None
    batch_size: int

    def without_rows(self) -> Any:
        """Return a frame without rows, with the columns of predictions."""
        empty = []
        for fetch in self.manifest.fetches:
            if not fetch.shape or fetch.shape[0] is not None or None in fetch.shape[1:]:
                raise ConfigurationError(
                    f"{fetch.name!r} of shape {fetch.shape} has not one row of numbers for each "
                    "example"
                )
            dtype = "float32" if fetch.dtype == "bfloat16" else fetch.dtype
            empty.append(np.empty((0, *map(int, fetch.shape[1:])), dtype))  # type: ignore[arg-type]
        return self._frame(empty, None)

    def __call__(self, frame: Any) -> Any:
        """Return the predictions for a frame of pandas."""
        if not len(frame):
            return self.without_rows().reindex(frame.index)
        model = _loaded(self.path, self.manifest)
        rows, parts = columns_of(frame), []
        for start in range(0, len(frame), self.batch_size):
            part = slice(start, start + self.batch_size)
            batch: Any = {name: column[part] for name, column in rows.items()}
            parts.append(
                model.predict_flat(batch if self.features is None else self.features(batch))
            )
        return self._frame([np.concatenate(each) for each in zip(*parts, strict=True)], frame.index)

    def _frame(self, arrays: Sequence[np.ndarray], index: Any) -> Any:
        names = [fetch.name for fetch in self.manifest.fetches]
        form = nested(self.manifest.outputs, range(len(names)))
        if isinstance(form, dict) and all(isinstance(each, int) for each in form.values()):
            names = sorted(form, key=form.__getitem__)
        elif len(names) == 1:
            names = ["prediction"]
        columns: dict[str, np.ndarray] = {}
        for name, array in zip(names, arrays, strict=True):
            plain = array.astype(np.float32) if array.dtype.kind == "V" else array
            rows = plain.reshape(len(plain), int(np.prod(plain.shape[1:]))).T
            whole = plain.ndim == 1
            columns |= {name if whole else f"{name}_{n}": each for n, each in enumerate(rows)}
        # Where there are frames, pandas is.
        return import_module("pandas").DataFrame(columns, index=index)


_MOST_LOADED = 4

_loading = Lock()  # one thread at a time loads a model that others want, too
_models: OrderedDict[str, LoadedModel] = OrderedDict()


def _loaded(path: str, manifest: ModelManifest) -> LoadedModel:
    """Return the model of a folder, loaded once in this process, if it is the one that is meant."""
    with _loading:
        model = _models.pop(path, None)
        if model is None or model._manifest != manifest:
            model = load_model(path)
        if model._manifest != manifest:
            raise ExportError(f"the model in {path!r} is not the one that predictions began with")
        _models[path] = model
        while len(_models) > _MOST_LOADED:
            _models.popitem(last=False)
        return model


def load_model(path: str | os.PathLike[str]) -> LoadedModel:
    """Load a model that `psnb.export` wrote, after a check of all its files.

    It needs the framework that the model was made with (for Keras, JAX), and nothing else that the
    training needed. A model is a program: load models from sources that you trust. Nothing in it is
    pickled, its programs are checked to be computations of the framework, and damaged files are
    refused.

    Parameters
    ----------
    path : path
        The folder.

    Returns
    -------
    LoadedModel
        `LoadedModel.predict` takes batches.

    Raises
    ------
    ExportError
        If there is no model, or it is damaged.
    ImportError
        If its framework is not installed.
    """
    where, file = Path(path_text("psnb.load_model: path", path)).absolute(), MANIFEST
    if not os.path.lexists(where / file):
        found = "is a file" if os.path.isfile(where) else f"has no {file}" * os.path.exists(where)
        raise ExportError(
            f"{str(where)!r} {found or 'is not there'}: a model is a folder that psnb.export "
            "wrote; checkpoints are read by psnb.checkpoint.load"
        )
    try:
        manifest = read_model_manifest(where)
        for file, expected in manifest.files.items():
            check_file(where, file, expected)
        tables = {}
        for number, entry in enumerate(manifest.tables):
            file = f"of table {entry.name!r:.80}"
            tables[entry.name] = _table(where, f"{number:04d}", entry, manifest)
        file = DENSE
        if DENSE not in manifest.files:
            raise OSError("it is missing")
        dense = load_file(where / DENSE)
        file = "of its programs"
        programs = {name: (where / name).read_bytes() for name in manifest.programs}
        room: Any = import_module(f"psnb._src.models.export.{manifest.framework}_program")
        computation = room.load(manifest, programs, dense, tables)
        nested(manifest.outputs, manifest.fetches)
        file = "of its sources"
        manifest.sources.check(dense)
    except (OSError, ValueError, TypeError, RecursionError, SafetensorError) as error:
        raise ExportError(
            f"{str(where)!r} is not an exported model, or is damaged: {file}: {str(error)[:500]}"
            "; export it again, or copy it again from where it is whole"
        ) from error
    number = 0 if manifest.follows is None else manifest.follows.after
    version = ModelVersion(str(where), number, None, manifest.metadata, time.time())
    return LoadedModel(where, manifest, dense, ModelState(computation, tables, version))


def _table(path: Path, number: str, entry: TableEntry, manifest: ModelManifest) -> StoredTable:
    def array(what: str, dtype: str, *shape: int) -> np.ndarray:
        name = f"{number}-{what}.safetensors"
        if name not in manifest.files:
            raise OSError(f"{name} is missing")
        return mapped(path / name, dtype, shape)

    count, ids, places = entry.count, None, None
    if entry.rows is None:
        ids, places = array("ids", "uint64", count), array("places", place_dtype(count), count)
        check_index(ids, places)
    rows = StoredRows(
        np.dtype(entry.dtype),
        stored=array("rows", entry.stored, count, entry.dim),
        scales=array("scales", "float32", count) if entry.stored == "int8" else None,
        ids=ids,
        places=places,
    )
    return StoredTable(**entry.table().known(), content=rows)
