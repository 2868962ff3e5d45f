"""SavedCheckpoint: what is in a checkpoint, read without a cluster. Thread-safe.

Threads may open the same parameter twice, which is the same twice.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from psnb._src.checkpoint.described_state import described_shards
from psnb._src.checkpoint.folder_of import use
from psnb._src.checkpoint.manifest import FORMAT
from psnb._src.checkpoint.restored import listed
from psnb._src.checkpoint.saved_table import SavedTable
from psnb._src.checks import path_text
from psnb._src.excerpt import NAME, excerpt
from psnb._src.remote_path import Place, as_place
from psnb._src.text_table import text_table
from psnb.errors import CheckpointError

_MOST = 10
"""Damaged parameters that are told one by one."""


class SavedCheckpoint(Mapping[str, Any]):
    """The parameters of a checkpoint by name; made by `psnb.checkpoint.load`.

    A variable is a read-only array: mapped into memory if one server had it, so only what is
    touched is read; otherwise joined in memory when it is asked for. An embedding is a
    `SavedTable`. The files of a parameter are checked when it is asked for first, `verify` checks
    all of them.

    Thread-safe. No manager removes the checkpoint while this object exists. Do not change or
    shorten its files while its arrays are used.

    Parameters
    ----------
    path : Path or RemotePath
        Its folder.

    Raises
    ------
    CheckpointError
        If it is no checkpoint, or a damaged one.
    """

    def __init__(self, path: Place) -> None:
        self._path, self._stored = path, use(path)
        weakref.finalize(self, self._stored.release)
        self._manifest = self._stored.manifest()
        self._opened: dict[str, np.ndarray | SavedTable] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._manifest.entries:
            raise KeyError(
                f"checkpoint {str(self._path)!r} has no {name!r:.200}; it has {listed(list(self))}"
            )
        if name not in self._opened:
            self._opened[name] = self._read(name)
        return self._opened[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._manifest.entries)

    def __len__(self) -> int:
        return len(self._manifest.entries)

    def __contains__(self, name: object) -> bool:
        return name in self._manifest.entries  # without a look into its files

    def __repr__(self) -> str:
        rows = [
            (
                excerpt(name, NAME),
                *(excerpt(str(entry.description.get(key)), NAME) for key in ("kind", "dtype")),
                excerpt(_size(entry.description), NAME),
                str(len(entry.files)),
            )
            for name, entry in self._manifest.entries.items()
        ]
        head = f"<psnb.checkpoint.SavedCheckpoint {str(self._path)!r}>"
        return f"{head}\n{text_table(('name', 'kind', 'dtype', 'size', 'files'), rows)}"

    @property
    def path(self) -> Place:
        """Its folder: a `pathlib.Path`, or an address of another kind, as `str` tells it."""
        return self._path

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What `CheckpointManager.save` was given."""
        return self._manifest.metadata

    @property
    def run(self) -> Mapping[str, Any]:
        """What psnb saved of the run; see `Restored`."""
        return self._manifest.run

    @property
    def format(self) -> int:
        """The version of its format on disk."""
        return FORMAT

    @property
    def optimizers(self) -> Mapping[str, Mapping[str, Any] | None]:
        """By name, the optimizer of each parameter and its hyperparameters; None without one."""
        return {name: entry.optimizer for name, entry in self._manifest.entries.items()}

    @property
    def descriptions(self) -> Mapping[str, Mapping[str, Any]]:
        """By name, the kind of each parameter, its dtype, shape or dim and rows, and slots."""
        return {name: entry.description for name, entry in self._manifest.entries.items()}

    @property
    def files(self) -> tuple[Place, ...]:
        """The files of all parameters."""
        return tuple(map(self._stored.place, self._names()))

    @property
    def nbytes(self) -> int:
        """The bytes of all of them.

        Raises
        ------
        CheckpointError
            If one is missing.
        """
        return self._sum(self._names())

    @property
    def own_nbytes(self) -> int:
        """The bytes that were written for it; the others it shares with checkpoints before it.

        Raises
        ------
        CheckpointError
            If a file is missing.
        """
        return self._sum(filter(self._manifest.own, self._names()))

    def _sum(self, names: Iterable[str]) -> int:
        try:
            return sum(map(self._stored.size, names))
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {str(self._path)!r} lacks a file: {error}"
            ) from error

    def verify(self) -> None:
        """Check all files, with their checksums.

        Raises
        ------
        CheckpointError
            If some are missing or damaged; it tells of all parameters that are.
        """
        damage = []
        for name in self:
            try:
                self._shards(name)
            except CheckpointError as error:
                damage.append(str(error))
        if damage:
            more = [f"{len(damage) - _MOST:,} more are damaged"] if len(damage) > _MOST else []
            raise CheckpointError("\n".join([*damage[:_MOST], *more]))

    def _names(self) -> Iterator[str]:
        """Yield the names of the files of all parameters."""
        for entry in self._manifest.entries.values():
            yield from entry.files

    def _read(self, name: str) -> np.ndarray | SavedTable:
        parts = [part for shard in self._shards(name) for part in shard]
        values = [part["values"] for part in parts]
        if "ids" in parts[0]:
            return SavedTable(name, [part["ids"] for part in parts], values)
        whole = values[0] if len(values) == 1 else np.concatenate(values)
        whole.flags.writeable = False
        return whole

    def _shards(self, name: str) -> list[list[dict[str, np.ndarray]]]:
        """Return the arrays of a parameter, by shard and file, which were checked just now."""
        return described_shards(self._stored, self._manifest.entries[name])


def _size(description: Mapping[str, Any]) -> str:
    if "shape" in description:
        return str(description["shape"])
    rows = description.get("rows")
    return f"{'any id' if rows is None else f'{rows} rows'} of {description.get('dim')}"


def load(path: str | os.PathLike[str]) -> SavedCheckpoint:
    """Open a checkpoint without a cluster, to look at what was learned.

    ``psnb.checkpoint.load("checkpoints/ckpt-000003")["w"]`` is an array, and of an embedding
    ``["users"].lookup([3, 5])`` are rows. Nothing in a checkpoint is pickled.

    Parameters
    ----------
    path : path
        The checkpoint's folder, for example ``manager.latest_checkpoint``; or an address that
        fsspec understands: then the files of a parameter are copied to this machine's folder for
        temporary files when it is asked for first.

    Returns
    -------
    SavedCheckpoint
        A mapping from names to arrays.

    Raises
    ------
    CheckpointError
        If it is no checkpoint, or a damaged one.
    """
    return SavedCheckpoint(as_place(path_text("psnb.checkpoint.load: path", path)))
