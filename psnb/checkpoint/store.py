"""How a checkpoint lies on disk: pure, without Dask.

A checkpoint is a folder::

    ckpt-000003/
      manifest.json              what is in it: one entry a parameter, and the caller's metadata
      0000-00000.safetensors     one file a shard: values, optimizer state, ids of embedding rows
      …

It is written into a partial folder beside it, synced, and renamed last, so a folder of that name is
whole (`psnb.checkpoint.directory` has how writers and readers meet). Nothing in it is pickled. A
shard is a unit of writing only: a parameter is put together from all of its shards when it is read,
whatever servers there are then.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from psnb.checkpoint.directory import MANIFEST, partial, place
from psnb.errors import CheckpointError

FORMAT = 2

State = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Entry:
    """One parameter in a checkpoint.

    Attributes
    ----------
    name : str
        The parameter's name.
    description : mapping
        What must be the same to load it: kind, dtype, shape or dim and rows, optimizer slots.
    optimizer : mapping or None
        Name and hyperparameters at the time of saving, for information.
    files : sequence of str
        Its shards.
    """

    name: str
    description: Mapping[str, Any]
    optimizer: Mapping[str, Any] | None
    files: Sequence[str]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint holds."""

    entries: Mapping[str, Entry]
    metadata: Mapping[str, Any]


def write(
    directory: Path,
    parameters: Iterable[tuple[str, Mapping[str, Any], Mapping[str, Any] | None, list[State]]],
    metadata: Mapping[str, Any],
) -> Path:
    """Write the next checkpoint: all of it or nothing.

    Parameters
    ----------
    directory : pathlib.Path
        Where checkpoints are.
    parameters : iterable of tuple
        Name, description, optimizer and the shards' states of each parameter; taken one by one.
    metadata : mapping
        Whatever JSON can hold.

    Returns
    -------
    pathlib.Path
        The new checkpoint.

    Raises
    ------
    CheckpointError
        If it cannot be written; earlier ones are untouched.
    """
    try:
        json.dumps(dict(metadata))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"the metadata of a checkpoint must be JSON: {error}") from error
    try:
        with partial(directory) as (folder, manifest):
            entries = []
            for position, (name, description, optimizer, states) in enumerate(parameters):
                files = []
                for shard, state in enumerate(states):
                    file = f"{position:04d}-{shard:05d}.safetensors"
                    # safetensors writes the memory as it lies: order C, and no 0-d surprise.
                    arrays = {k: np.asarray(v, order="C") for k, v in state.items()}
                    save_file(arrays, folder / file)
                    _sync(folder / file)
                    files.append(file)
                entries.append(Entry(name, description, optimizer, files))
            content = {
                "format": FORMAT,
                "metadata": dict(metadata),
                "parameters": [asdict(entry) for entry in entries],
            }
            manifest.file.write(json.dumps(content, indent=1))
            manifest.file.flush()
            _sync(folder / MANIFEST)
            _sync(folder)
            path = place(folder, manifest)
        _sync(directory)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"a checkpoint cannot be written to {str(directory)!r}: {error}"
        ) from error
    return path


def read_manifest(path: Path) -> Manifest:
    """Read what a checkpoint holds.

    Raises
    ------
    CheckpointError
        If it is no checkpoint, or one that this version cannot read.
    """
    try:
        data = json.loads((path / MANIFEST).read_text())
        if data["format"] != FORMAT:
            raise CheckpointError(
                f"checkpoint {str(path)!r} has format {data['format']}, this psnb reads {FORMAT}"
            )
        entries = [Entry(**entry) for entry in data["parameters"]]
        return Manifest({entry.name: entry for entry in entries}, data["metadata"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{str(path)!r} is no checkpoint: {error!r}") from error


def check_files(path: Path, entry: Entry, keys: frozenset[str]) -> None:
    """Make sure that the shards of a parameter are whole, without reading their data.

    Raises
    ------
    CheckpointError
        If a file is missing, damaged or lacks one of the arrays ``keys``.
    """
    for file in entry.files:
        try:
            with safe_open(path / file, framework="numpy") as opened:
                found = frozenset(opened.keys())
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"checkpoint {str(path)!r}: shard {file} of {entry.name!r} is damaged: {error}"
            ) from error
        if found != keys:
            raise CheckpointError(
                f"checkpoint {str(path)!r}: shard {file} of {entry.name!r}: expected arrays "
                f"{sorted(keys)}, found {sorted(found)}"
            )


def read_states(path: Path, entry: Entry) -> Iterator[State]:
    """Read the shards of a parameter.

    Raises
    ------
    CheckpointError
        If one cannot be read.
    """
    for file in entry.files:
        try:
            yield load_file(path / file)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"checkpoint {str(path)!r}: shard {file} of {entry.name!r} is damaged: {error}"
            ) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
