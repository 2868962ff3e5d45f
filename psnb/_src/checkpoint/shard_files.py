"""The files of a checkpoint. Pure, without Dask.

A checkpoint is a folder::

    ckpt-000003/
      manifest.json              what is in it: one entry a parameter, and the caller's metadata
      kept                       only if it is never removed as one of the oldest; empty
      0000-00000.safetensors     one file a shard: values, optimizer state, ids of embedding rows
      …

Servers write their shards into a partial folder beside it, each by itself, and sync them; then the
manifest is written, and the folder is renamed last, so a folder with that name is complete.
(`psnb._src.checkpoint.checkpoint_folder` describes the locks between writers and readers.) Nothing
in it is pickled. A shard is a unit of writing only: a parameter is read from all
of its shards, for any number of servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from psnb._src.checkpoint.checkpoint_folder import KEPT, MANIFEST, partial, place
from psnb._src.checkpoint.manifest import Manifest, ManifestEntry, checked_metadata
from psnb._src.new_file import WrittenFile
from psnb._src.whole_files import sync
from psnb.errors import CheckpointError

State = dict[str, np.ndarray]


class Described(Protocol):
    """A parameter, as the manifest tells of it."""

    @property
    def optimizer(self) -> Any:
        """The description of its optimizer, or None."""

    @property
    def tables(self) -> Sequence[object]:
        """Its tables, one a shard."""

    def describe(self) -> Mapping[str, Any]:
        """Return the description that must be equal to load it."""


class Snapshots(Protocol):
    """Parameters as they were at one moment, on their servers."""

    @property
    def parameters(self) -> Mapping[str, Described]:
        """These, by name."""

    def write(
        self, folder: str, files: Sequence[str], told: Callable[[float], object]
    ) -> Mapping[str, WrittenFile]:
        """Let the servers write them, and return what is on disk."""

    def close(self) -> None:
        """Release them; idempotent."""


def _nobody(share: float) -> None:
    """Tell nobody."""


def write_checkpoint(
    directory: Path,
    taken: Snapshots,
    metadata: Mapping[str, Any],
    *,
    consistent: bool = False,
    kept: bool = False,
    told: Callable[[float], object] = _nobody,
) -> Path:
    """Write the next checkpoint: all of it or nothing.

    Parameters
    ----------
    directory : pathlib.Path
        The folder of checkpoints.
    taken : Snapshots
        The parameters, as they are to be saved.
    metadata : mapping
        Anything that JSON can hold.
    consistent : bool
        Whether no closure ran when they were taken; the manifest says so.
    kept : bool
        Whether `prune` leaves it alone, whoever calls that.
    told : callable
        Is told how much is written, 0 to 1.

    Returns
    -------
    pathlib.Path
        The new checkpoint.

    Raises
    ------
    CheckpointError
        If it cannot be written; earlier ones are untouched.
    """
    content = checked_metadata(metadata)
    try:
        with partial(directory) as (folder, manifest):
            files = {
                name: [
                    f"{position:04d}-{shard:05d}.safetensors" for shard, _ in enumerate(each.tables)
                ]
                for position, (name, each) in enumerate(taken.parameters.items())
            }
            written = taken.write(str(folder), [*chain.from_iterable(files.values())], told)
            for file, found in written.items():
                _check_there(folder, file, found)
            entries = {}
            for name, each in taken.parameters.items():
                optimizer = each.optimizer
                entries[name] = ManifestEntry(
                    name,
                    each.describe(),
                    optimizer.describe() if optimizer else None,
                    {file: written[file].checksum for file in files[name]},
                )
            if kept:
                (folder / KEPT).touch()
            manifest.file.write(Manifest(entries, content, consistent).text())
            manifest.file.flush()
            sync(folder / MANIFEST)
            sync(folder)
            path = place(folder, manifest)
        sync(directory)
    except OSError as error:
        raise CheckpointError(
            f"a checkpoint cannot be written to {str(directory)!r}: {error}"
        ) from error
    return path


def _check_there(folder: Path, file: str, written: WrittenFile) -> None:
    """Check that a file that a server has written is there for this process, too."""
    try:
        size = (folder / file).stat().st_size
    except FileNotFoundError:
        size = -1
    if size != written.nbytes:
        here = "is not there" if size < 0 else f"has {size:,} bytes of {written.nbytes:,}"
        raise CheckpointError(
            f"{written.by} has written {file} into {str(folder)!r}, but in the notebook it {here}: "
            "the server is on another host, which has a folder of that name, too. All servers and "
            "the notebook must reach the directory, on disks that they share or by an address "
            "like s3://bucket/folder"
        )


def read_states(path: Path, entry: ManifestEntry) -> Iterator[State]:
    """Read the shards of a parameter, which were checked before.

    Raises
    ------
    CheckpointError
        If one cannot be read.
    """
    for file in entry.files:
        try:
            yield load_file(path / file)
        except (OSError, SafetensorError) as error:
            raise damaged(path, file, entry.name, error) from error


def damaged(path: Path, file: str, name: str, reason: object) -> CheckpointError:
    """Return the error for a shard that cannot be loaded."""
    return CheckpointError(
        f"checkpoint {str(path)!r}: shard {file} of {name!r} is damaged: {reason}; restore another "
        "one, or copy it again from where it is whole"
    )
