"""ModelState: all that a prediction uses, of one export or of one checkpoint. Pure.

`following` looks for newer checkpoints. Its thread ``psnb-following`` keeps the model only while
it refreshes it: so it ends with the model, too, when that is collected, and when Python ends.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from psnb._src.checkpoint.following import NewerCheckpoint, WantedParameter, newer_checkpoint
from psnb._src.checkpoint.save_schedule import SaveSchedule
from psnb._src.data.ragged import Ragged
from psnb._src.models.export.manifest import ModelManifest
from psnb._src.models.export.tables import StoredTable
from psnb._src.utils.interrupts import uninterrupted
from psnb._src.utils.paths import AnyPath
from psnb._src.utils.text import truncate


@dataclass(frozen=True)
class ModelVersion:
    """The export or the checkpoint that a loaded model predicts with.

    Attributes
    ----------
    path : str
        The checkpoint; or the model's folder, before there was a newer one.
    number : int
        The checkpoint's; for the model, the newest checkpoint's before its export.
    closures : int or None
        How many closures had ended, if the checkpoint says so.
    metadata : mapping
        The metadata of the checkpoint, or of the model.
    since : float
        Since when it predicts with it, in seconds since the epoch.
    """

    path: str
    number: int
    closures: int | None
    metadata: Mapping[str, Any]
    since: float


class Computation:
    """A computation that was loaded. Thread-safe.

    Parameters
    ----------
    used : iterable of str
        The dense parameters that it uses.
    dense : mapping of str to numpy.ndarray
        The dense parameters.
    put : callable
        Makes of an array what it computes with.
    """

    def __init__(
        self,
        used: Iterable[str],
        dense: Mapping[str, np.ndarray],
        put: Callable[[np.ndarray], Any],
    ) -> None:
        self._put, self._dense = put, {name: put(dense[name]) for name in used}

    def __call__(
        self, feeds: Mapping[str, np.ndarray | Ragged], tables: Mapping[str, StoredTable]
    ) -> Sequence[np.ndarray]:
        """Return the arrays of all fetches."""
        raise NotImplementedError

    def with_dense(self, dense: Mapping[str, np.ndarray]) -> Computation:
        """Return the same with other dense parameters, of the same shapes and dtypes."""
        other = copy.copy(self)
        other._dense = {name: self._put(dense[name]) for name in self._dense}
        return other


@dataclass(frozen=True)
class ModelState:
    """The computation and the tables that predictions use; never changed.

    Attributes
    ----------
    computation : Computation
        What computes.
    tables : mapping of str to StoredTable
        Its rows.
    version : ModelVersion
        Where both are from.
    checkpoint : NewerCheckpoint or None
        The checkpoint, which must be there as long as they are used.
    """

    computation: Computation
    tables: Mapping[str, StoredTable]
    version: ModelVersion
    checkpoint: NewerCheckpoint | None = None


def newer_state(
    manifest: ModelManifest, dense: Mapping[str, np.ndarray], now: ModelState, directory: AnyPath
) -> ModelState | None:
    """Return the state of the newest checkpoint in a directory; None if it is none newer than now.

    Parameters
    ----------
    manifest : ModelManifest
        The model's.
    dense : mapping of str to numpy.ndarray
        The dense parameters that were exported.
    now : ModelState
        What is used now.
    directory : Path or RemotePath
        Where the checkpoints are.

    Raises
    ------
    CheckpointError
        If it is damaged, cannot be read, or is none of this model.
    """
    after, before = now.version.number, now.checkpoint
    found = newer_checkpoint(directory, after, _wanted(manifest), before)
    if found is None:
        return None
    path, content = str(found.reader.path), found.reader.manifest
    version = ModelVersion(
        path, found.number, content.run.get("closures"), content.metadata, time.time()
    )
    computation = now.computation.with_dense(manifest.sources.taken(found.values, dense))
    tables = {
        each.name: StoredTable(**each.table().known(), content=found.values[each.name])
        for each in manifest.tables
    }
    return ModelState(computation, tables, version, found)


def _wanted(manifest: ModelManifest) -> dict[str, WantedParameter]:
    """Return what a checkpoint must have; the seed of a table is of its name."""
    variables = {
        name: WantedParameter({"kind": "variable", "shape": [size], "dtype": dtype}, {})
        for name, (size, dtype) in manifest.sources.variables.items()
    }
    tables = {}
    for each in manifest.tables:
        own = {"dim": each.dim, "rows": each.rows, "dtype": each.dtype}
        recipe = {"initializer": each.initializer, "padding_idx": each.padding_idx}
        if each.rows is None:
            recipe["admission"] = each.admission
        tables[each.name] = WantedParameter({"kind": "embedding", **own}, recipe)
    return variables | tables


logger = logging.getLogger("psnb")

_AT_THE_END = 5.0
"""Seconds to wait for the thread when Python ends: it may be reading from a network."""


def following(model: Any, every: float) -> Callable[[], None]:
    """Refresh a model again and again; return what ends that, and waits for its reading.

    After a failure it is tried again after 1 s, then after growing pauses of at most 5 minutes.

    Parameters
    ----------
    model : LoadedModel
        The model.
    every : float
        Seconds between two times.
    """
    ended = threading.Event()
    given = weakref.ref(model), ended, every
    thread = threading.Thread(target=_refresh, args=given, name="psnb-following", daemon=True)
    with uninterrupted:
        thread.start()

    def end(most: float | None = None) -> None:
        ended.set()
        if threading.current_thread() is not thread:
            thread.join(most)

    weakref.finalize(model, end, _AT_THE_END)
    return end


def _refresh(found: weakref.ref[Any], ended: threading.Event, every: float) -> None:
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
