"""Writing a model: into a folder next to its place, which is renamed last. Pure."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from psnb._src.checkpoint.following import newest_number
from psnb._src.models.export.exported import Exported, TableSource
from psnb._src.models.export.manifest import (
    DENSE,
    MANIFEST,
    FileEntry,
    Follows,
    ModelManifest,
    TableEntry,
)
from psnb._src.models.export.tables import (
    STORED,
    ArrayFile,
    RowError,
    quantized,
    restored,
    write_index,
)
from psnb._src.transport.half_width import computed
from psnb._src.utils.checks import is_number, path_text
from psnb._src.utils.files import sync, synced
from psnb._src.utils.paths import as_path
from psnb._src.utils.sealed_json import plain_json
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError, ExportError

if TYPE_CHECKING:
    from psnb._src.checkpoint.manager import FolderManager

_IDS = "ids.partial"


def export(
    path: str | os.PathLike[str],
    model: Any,
    *,
    example: Any = None,
    dtype: str | Mapping[str, str] | None = None,
    min_score: float | Mapping[str, float] | None = None,
    metadata: Mapping[str, Any] | None = None,
    follow: FolderManager | str | os.PathLike[str] | None = None,
) -> Path:
    """Write a model that predicts without Dask and without the training code; see `load_model`.

    It may be called while closures run. Then each row is as it was at one moment, and so is each
    dense variable; the moments differ slightly, as they do for a worker that pulls asynchronously.
    Call it after `ClusterCoordinator.join` or `drain` to write a consistent model. Rows
    come from the servers in chunks, so memory does not depend on the size of the tables.

    Parameters
    ----------
    path : path
        The folder to write, which must not be there yet.
    model : psnb.jax.ForwardPass, psnb.torch.DistributedModel or psnb.keras.DistributedKeras
        The model to call for predictions.
    example : object
        The arguments of a call: for JAX a batch, for PyTorch the arguments of ``forward`` (a tuple;
        or a dict by name); for Keras nothing. Its first axis is the examples; batches of other
        sizes can be predicted as well. Its values do not matter, except that ids must be ids.
    dtype : {"float32", "float16", "bfloat16", "int8"} or mapping, optional
        In which dtype rows are stored, for all tables or by table; by default their own. int8 rows
        have a scale each. The error is measured, and is in the manifest.
    min_score : float or mapping, optional
        Leave out rows with a lower score (see `CtrAccessor`), of all tables that have an accessor
        or by table. Their ids count as unknown.
    metadata : mapping, optional
        Kept with the model; anything that JSON can hold.
    follow : psnb.CheckpointManager or path, optional
        Which manager saves the run, or into which directory or address: the model notes it, and
        which checkpoint is the newest there now, for `LoadedModel.follow`.

    Returns
    -------
    pathlib.Path
        The folder. If this fails, there is none.

    Raises
    ------
    ConfigurationError
        If the model cannot be exported, or an argument is of the wrong kind.
    ExportError
        If there is something at the path, or the folder cannot be written.
    CheckpointError
        If the directory to follow cannot be read.
    ServerLostError
        If a server is gone.
    """
    where = Path(path_text("psnb.export: path, the first argument,", path)).absolute()
    if not callable(getattr(model, "to_export", None)):
        raise ConfigurationError(
            "psnb.export takes what psnb.jax.forward, psnb.torch.distribute and "
            f"psnb.keras.distribute return, found {type(model).__name__}"
        )
    try:
        kept = plain_json(dict(metadata or {}))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"metadata must be what JSON can hold: {error}") from error
    _check_free(where)
    # Before any row is read: a checkpoint from now on is newer than the model, or as new.
    follows = None if follow is None else _follows(follow)
    exported = model.to_export(example)
    tables = exported.tables
    stored = {name: table.dtype.name for name, table in tables.items()}
    stored |= _by_table("dtype", dtype, tables)
    for each in stored.values():
        if each not in STORED:
            raise ConfigurationError(
                f"dtype must be one of {', '.join(STORED)}; found {shown(each)}"
            )
    scores = _by_table("min_score", min_score, tables)
    for name, score in list(scores.items()):
        if not is_number(score):
            raise ConfigurationError(f"min_score must be a number, found {shown(score)}")
        if not tables[name].scored:
            named = isinstance(min_score, Mapping)
            if named or not any(table.scored for table in tables.values()):
                raise ConfigurationError(
                    f"min_score: table {name!r} keeps no score, as it has no accessor"
                )
            del scores[name]
    # Not named like incomplete checkpoints: a manager removes these in its folder.
    partial = where.with_name(f".exporting-{uuid.uuid4().hex}")
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        _write(partial, exported, stored, scores, kept, follows)
        _check_free(where)
        partial.rename(where)
        sync(where.parent)
    except (OSError, SafetensorError) as error:
        raise ExportError(f"a model cannot be written to {str(where)!r}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return where


def _check_free(path: Path) -> None:
    if os.path.lexists(path):
        raise ExportError(
            f"there is something at {str(path)!r} already: a model that may be in use is not "
            "replaced. Write it to another folder, and let its users choose which to load"
        )


def _follows(given: FolderManager | str | os.PathLike[str]) -> Follows:
    directory = getattr(given, "directory", None)  # a manager's, whose class brings Dask along
    if directory is None and not isinstance(given, str | os.PathLike):
        raise ConfigurationError(
            "follow must be a CheckpointManager, or the directory or address of checkpoints; found "
            f"{shown(given)}"
        )
    place = directory or as_path(path_text("psnb.export: follow", given))
    return Follows(str(place), newest_number(place))


def _by_table(what: str, given: Any, tables: Mapping[str, Any]) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        return dict.fromkeys(tables, given)
    if unknown := sorted(set(given) - set(tables)):
        raise ConfigurationError(
            f"{what} names {unknown}; the model has the tables {sorted(tables)}"
        )
    return dict(given)


def _write(
    folder: Path,
    exported: Exported,
    stored: Mapping[str, str],
    scores: Mapping[str, float],
    metadata: Mapping[str, Any],
    follows: Follows | None,
) -> None:
    save_file({n: np.asarray(a, order="C") for n, a in exported.dense.items()}, folder / DENSE)
    for name, program in exported.programs.items():
        (folder / name).write_bytes(program)
    tables = tuple(
        _write_table(folder, f"{number:04d}", table, stored[name], scores.get(name))
        for number, (name, table) in enumerate(exported.tables.items())
    )
    files = {
        file.name: FileEntry(file.stat().st_size, synced(file)) for file in sorted(folder.iterdir())
    }
    manifest = ModelManifest(
        exported.framework,
        tuple(exported.feeds),
        tuple(exported.fetches),
        exported.outputs,
        tables,
        tuple(exported.programs),
        exported.detail,
        files,
        metadata,
        {name: str(each) for name, each in exported.written_with.items()},  # torch has its own str
        exported.sources.of(exported.dense),
        follows,
    )
    (folder / MANIFEST).write_text(manifest.text())
    sync(folder / MANIFEST)
    sync(folder)


def _write_table(
    folder: Path, number: str, table: TableSource, stored: str, least: float | None
) -> TableEntry:
    error, left_out, unsorted = RowError(), 0, folder / _IDS

    def place(what: str) -> Path:
        return folder / f"{number}-{what}.safetensors"

    with (
        ArrayFile(place("rows"), stored, (table.dim,)) as rows,
        ArrayFile(place("scales"), "float32") as scales,
        open(unsorted, "wb") as ids,
    ):
        for chunk in table.chunks():
            ids_, values = chunk.ids, chunk.rows
            if least is not None and chunk.scores is not None:
                kept = chunk.scores >= least
                left_out += int(kept.size - kept.sum())
                ids_, values = ids_[kept], values[kept]
            try:
                found, scale = quantized(values, stored)
            except ConfigurationError as problem:
                raise ConfigurationError(f"table {table.name!r}: {problem}") from problem
            error.add(values, restored(found, scale, computed(table.dtype)))
            rows.append(found)
            if scale is not None:
                scales.append(scale)
            if table.rows is None:
                ids.write(ids_.astype("<u8").tobytes())
        rows.finish()
        scales.finish()
    if stored != "int8":
        place("scales").unlink()
    if table.rows is None:
        write_index(unsorted, rows.rows, place("ids"), place("places"))
    unsorted.unlink()
    first = {"initializer": table.initializer.describe(), "admission": table.admission.describe()}
    return TableEntry(
        **table.known() | first | {"dtype": table.dtype.name},
        count=rows.rows,
        stored=stored,
        left_out=left_out,
        error=error.summary(),
    )
