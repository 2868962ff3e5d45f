"""LoadedModel: an exported model that predicts on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from psnb._src.export.array_file import mapped
from psnb._src.export.exported import Computation, Fetch
from psnb._src.export.id_index import check_index, place_dtype
from psnb._src.export.model_feed import ModelFeed
from psnb._src.export.model_manifest import (
    DENSE,
    ModelManifest,
    TableEntry,
    check_file,
    read_model_manifest,
)
from psnb._src.export.nested import nested
from psnb._src.export.stored_table import StoredTable
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
    computation : Computation
        What computes.
    tables : mapping of str to StoredTable
        Its rows.
    """

    def __init__(
        self,
        path: Path,
        manifest: ModelManifest,
        computation: Computation,
        tables: Mapping[str, StoredTable],
    ) -> None:
        self._path, self._manifest = path, manifest
        self._computation, self._tables = computation, dict(tables)

    def __repr__(self) -> str:
        feeds = ", ".join(feed.name for feed in self.feeds)
        fetches = ", ".join(fetch.name for fetch in self.fetches)
        rows = sum(len(table.stored) for table in self._tables.values())
        return (
            f"<psnb.LoadedModel {str(self._path)!r}: {feeds} -> {fetches}; {rows} rows in "
            f"{len(self._tables)} tables>"
        )

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
        """By table, the largest error of a number in its rows, and the root of the mean square."""
        return {table.name: table.error for table in self._manifest.tables}

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
        return self._computation(taken, self._tables)

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


def load_model(path: str | os.PathLike[str]) -> LoadedModel:
    """Load a model that `psnb.export` wrote, after a check of all its files.

    It needs the framework that the model was made with (for Keras, JAX), and nothing else of what
    trained it. A model is a program: load those that come from where you trust. Nothing in it is
    pickled, its programs are checked to be computations of the framework, and what is damaged is
    refused.

    Parameters
    ----------
    path : path
        The folder.

    Returns
    -------
    LoadedModel
        Its `predict` takes batches.

    Raises
    ------
    ExportError
        If there is no model, or it is damaged.
    ImportError
        If its framework is not installed.
    """
    where, file = Path(path).absolute(), "manifest.json"
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
        room: Any = import_module(f"psnb._src.{manifest.framework}_programs")
        computation = room.load(manifest, programs, dense, tables)
        nested(manifest.outputs, manifest.fetches)
    except (OSError, ValueError, TypeError, RecursionError, SafetensorError) as error:
        raise ExportError(
            f"{str(where)!r} is no exported model, or a damaged one: {file}: {str(error)[:500]}; "
            "export it again, or copy it again from where it is whole"
        ) from error
    return LoadedModel(where, manifest, computation, tables)


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
    return StoredTable(
        **entry.known(),
        stored=array("rows", entry.stored, count, entry.dim),
        scales=array("scales", "float32", count) if entry.stored == "int8" else None,
        ids=ids,
        places=places,
    )
