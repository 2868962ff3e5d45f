"""load_model: reads an exported model, and believes nothing of it."""

from __future__ import annotations

import os
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from psnb._src.checks import path_text
from psnb._src.export.array_file import mapped
from psnb._src.export.id_index import check_index, place_dtype
from psnb._src.export.loaded_model import LoadedModel
from psnb._src.export.model_manifest import (
    DENSE,
    ModelManifest,
    TableEntry,
    check_file,
    read_model_manifest,
)
from psnb._src.export.model_state import ModelState, ModelVersion
from psnb._src.export.nested import nested
from psnb._src.export.stored_table import StoredRows, StoredTable
from psnb.errors import ExportError


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
    where, file = Path(path_text("psnb.load_model: path", path)).absolute(), "manifest.json"
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
        file = "of its sources"
        manifest.sources.check(dense)
    except (OSError, ValueError, TypeError, RecursionError, SafetensorError) as error:
        raise ExportError(
            f"{str(where)!r} is no exported model, or a damaged one: {file}: {str(error)[:500]}; "
            "export it again, or copy it again from where it is whole"
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
        entry.dtype,
        stored=array("rows", entry.stored, count, entry.dim),
        scales=array("scales", "float32", count) if entry.stored == "int8" else None,
        ids=ids,
        places=places,
    )
    return StoredTable(**entry.known(), content=rows)
