"""The files of a checkpoint. Pure, without Dask.

A checkpoint is a folder::

    ckpt-000003/
      manifest.json              what is in it: one entry a parameter, and the caller's metadata
      kept                       only if it is never removed as one of the oldest; empty
      0000-00000.safetensors     one file a shard: values, optimizer state, ids of embedding rows
      …

It is written into a partial folder beside it, synced, and renamed last, so a folder with that name
is complete. (`psnb._src.checkpoint.checkpoint_folder` describes the locks between writers and
readers.) Nothing in it is pickled. A shard is a unit of writing only: a parameter is read from all
of its shards, for any number of servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from psnb._src.checkpoint.checkpoint_folder import KEPT, MANIFEST, partial, place
from psnb._src.checkpoint.manifest import Manifest, ManifestEntry, checked_metadata
from psnb._src.whole_files import sync, synced
from psnb.errors import CheckpointError

State = dict[str, np.ndarray]


def write_checkpoint(
    directory: Path,
    parameters: Iterable[tuple[str, Mapping[str, Any], Mapping[str, Any] | None, list[State]]],
    metadata: Mapping[str, Any],
    *,
    consistent: bool = False,
    kept: bool = False,
    run: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Write the next checkpoint: all of it or nothing.

    Parameters
    ----------
    directory : pathlib.Path
        The folder of checkpoints.
    parameters : iterable of tuple
        Name, description, optimizer and the shards' states of each parameter; taken one by one.
    metadata : mapping
        Anything that JSON can hold.
    consistent : bool
        Whether no closure runs meanwhile; the manifest says so.
    kept : bool
        Whether `prune` leaves it alone, whoever calls that.
    run : mapping
        What psnb needs to go on with it.

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
            entries = {}
            for position, (name, description, optimizer, states) in enumerate(parameters):
                files = {}
                for shard, state in enumerate(states):
                    file = f"{position:04d}-{shard:05d}.safetensors"
                    # safetensors writes memory as it is, so make it C-contiguous.
                    arrays = {k: np.asarray(v, order="C") for k, v in state.items()}
                    save_file(arrays, folder / file)
                    files[file] = synced(folder / file)
                entries[name] = ManifestEntry(name, description, optimizer, files)
            if kept:
                (folder / KEPT).touch()
            manifest.file.write(Manifest(entries, content, consistent, run).text())
            manifest.file.flush()
            sync(folder / MANIFEST)
            sync(folder)
            path = place(folder, manifest)
        sync(directory)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"a checkpoint cannot be written to {str(directory)!r}: {error}"
        ) from error
    return path


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
