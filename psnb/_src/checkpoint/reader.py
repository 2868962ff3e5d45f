"""SavedCheckpoint: the content of a checkpoint, read without a cluster. Thread-safe.

Threads may open the same parameter twice, which is the same twice.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from psnb._src.checkpoint.folders import checkpoints_in, is_gone, require_read
from psnb._src.checkpoint.manifest import FORMAT
from psnb._src.checkpoint.saved_table import SavedTable
from psnb._src.checkpoint.shards import CheckedKey, CheckpointReader, State
from psnb._src.utils.checks import path_text
from psnb._src.utils.paths import AnyPath, as_path
from psnb._src.utils.text import MOST_LISTED, NAME, listed, text_table, truncate
from psnb.errors import CheckpointError


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
    path : pathlib.Path or RemotePath
        Its folder.

    Raises
    ------
    CheckpointError
        If it is not a checkpoint, or is damaged.
    """

    def __init__(self, path: AnyPath) -> None:
        self._reader = CheckpointReader(path)
        self._manifest = self._reader.manifest
        self._opened: dict[str, np.ndarray | SavedTable] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._manifest.entries:
            raise KeyError(
                f"checkpoint {str(self.path)!r} has no {name!r:.200}; it has {listed(list(self))}"
            )
        if name not in self._opened:
            arrays = self._reader.arrays(self._manifest.entries[name])
            self._opened[name] = parameter_value(name, arrays)
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
                truncate(name, NAME),
                *(truncate(str(entry.description.get(key)), NAME) for key in ("kind", "dtype")),
                truncate(_size(entry.description), NAME),
                str(len(entry.files)),
            )
            for name, entry in self._manifest.entries.items()
        ]
        head = f"<psnb.checkpoint.SavedCheckpoint {str(self.path)!r}>"
        return f"{head}\n{text_table(('name', 'kind', 'dtype', 'size', 'files'), rows)}"

    @property
    def path(self) -> AnyPath:
        """Its folder: a `pathlib.Path`, or an address of another kind, as a text."""
        return self._reader.path

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
    def files(self) -> tuple[AnyPath, ...]:
        """The files of all parameters."""
        return tuple(map(self._reader.stored.place, self._manifest.files))

    @property
    def nbytes(self) -> int:
        """The bytes of all of them.

        Raises
        ------
        CheckpointError
            If one is missing.
        """
        return self._sum(self._manifest.files)

    @property
    def own_nbytes(self) -> int:
        """The bytes that were written for it; the others it shares with checkpoints before it.

        Raises
        ------
        CheckpointError
            If a file is missing.
        """
        return self._sum(filter(self._manifest.own, self._manifest.files))

    def _sum(self, names: Iterable[str]) -> int:
        try:
            return sum(map(self._reader.stored.size, names))
        except OSError as error:
            raise CheckpointError(f"checkpoint {str(self.path)!r} lacks a file: {error}") from error

    def verify(self) -> None:
        """Check all files, with their checksums.

        Raises
        ------
        CheckpointError
            If some are missing or damaged; it names all parameters that are. Or if one cannot be
            read now.
        """
        damage = []
        for name in self:
            try:
                self._reader.arrays(self._manifest.entries[name])
            except CheckpointError as error:
                require_read(self._reader.path, error)
                damage.append(str(error))
        if damage:
            more = (
                [f"{len(damage) - MOST_LISTED:,} more are damaged"]
                if len(damage) > MOST_LISTED
                else []
            )
            raise CheckpointError("\n".join([*damage[:MOST_LISTED], *more]))


def parameter_value(
    name: str, shards: Sequence[Mapping[CheckedKey, State]], base: Any = None
) -> np.ndarray | SavedTable:
    """Return a parameter as saved, from its arrays; ``base`` is its earlier state."""
    parts = [list(shard.values()) for shard in shards]
    if "ids" in parts[0][0]:
        return SavedTable(name, parts, base)
    values = [part["values"] for (part,) in parts]  # variables have no deltas
    whole = values[0] if len(values) == 1 else np.concatenate(values)
    whole.flags.writeable = False
    return whole


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
        If it is not a checkpoint, or is damaged.
    """
    return SavedCheckpoint(as_path(path_text("psnb.checkpoint.load: path", path)))


logger = logging.getLogger("psnb")


def latest_full(directory: AnyPath) -> SavedCheckpoint | None:
    """Return the newest checkpoint of a folder that is not damaged; None if it has none at all.

    All files of it are checked. A warning names each newer one that is damaged. A checkpoint that
    cannot be read now may be whole: to resume from an older one would lose the training since.

    Raises
    ------
    CheckpointError
        If all are damaged, or the folder, or one that may be the newest, cannot be read.
    """
    damage: list[str] = []
    for path in reversed(checkpoints_in(directory)):
        try:
            found = SavedCheckpoint(path)
            found.verify()
        except CheckpointError as error:
            if not is_gone(path):  # otherwise a manager removed it just now
                require_read(path, error)
                damage.append(str(error))
            continue
        for each in damage:
            logger.warning(
                "the newest checkpoint is damaged, %s is older: %s", path, truncate(each)
            )
        return found
    if damage:
        raise CheckpointError(
            "\n".join([f"all checkpoints in {str(directory)!r} are damaged:", *damage])
        )
    return None
