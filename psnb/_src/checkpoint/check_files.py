"""Checks of a checkpoint's files, before anything of it is loaded. Pure.

A file's header comes first: what it says of arrays must fit the file's size and the parameter. Only
then is the file read, piece by piece, for its checksum; a forged one may claim any size. Of its
arrays, only those whose numbers matter are read into memory, for example ids. So a check needs
memory for the ids of one shard only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np
from safetensors import SafetensorError

from psnb._src.checkpoint.checkpoint_folder import StoredCheckpoint
from psnb._src.checkpoint.manifest import ManifestEntry
from psnb._src.checkpoint.shard_files import State, damaged
from psnb._src.mapped_arrays import mapped_arrays
from psnb._src.shards import LastValues, SavedShard, forms
from psnb._src.whole_files import checksum

FileKey = tuple[str, int, int, str, str]
"""A file that was checked: its parameter, shard, number of shards, name and checksum."""


class Loads(Protocol):
    """A parameter, which checks the state of its shards."""

    def check_state(self, saved: SavedShard) -> None:
        """Raise ConfigurationError unless a saved shard can be loaded."""


def file_key(entry: ManifestEntry, shard: int, file: str) -> FileKey:
    """Return by what a file of a shard is known."""
    return entry.name, shard, len(entry.shards), file, entry.shards[shard][file]


def check_files(
    stored: StoredCheckpoint,
    entry: ManifestEntry,
    parameter: Loads,
    known: Mapping[FileKey, State] = MappingProxyType({}),
) -> list[list[State]]:
    """Check that a parameter can be loaded from its files.

    Parameters
    ----------
    stored : StoredCheckpoint
        The checkpoint.
    entry : ManifestEntry
        The parameter's entry in the manifest.
    parameter : Loads
        The parameter to load.
    known : mapping of tuple to mapping
        The arrays of files that were checked before, of a parameter with this description. They are
        not read again, and what is new in a shard of which the first file is known is checked by
        itself.

    Returns
    -------
    list of list of dict
        The arrays of each file of each shard, mapped into memory and read-only.

    Raises
    ------
    CheckpointError
        If a file is missing or damaged, or does not fit the parameter.
    """
    found = []
    for number, files in enumerate(entry.shards):
        parts: list[State] = []
        part = len(files) > 1
        for file, expected in files.items():
            if (arrays := known.get(file_key(entry, number, file))) is not None:
                parts.append(arrays)
                continue
            try:
                whole = _SealedFile(stored.file(file), expected)
                arrays, form = whole.arrays, forms(file, whole.arrays)
                saved = SavedShard(number, len(entry.shards), form, whole.read, part=part)
                parameter.check_state(saved)
                whole.check()
                parts.append(arrays)
                first = file_key(entry, number, next(iter(files)))
                if part and len(parts) == len(files) and first not in known:
                    last = LastValues(parts)
                    shard = SavedShard(number, len(entry.shards), last.forms(), last.read)
                    parameter.check_state(shard)
            except (OSError, SafetensorError, ValueError) as error:
                raise damaged(stored, file, entry.name, error) from error
        found.append(parts)
    return found


class _SealedFile:
    """The arrays of a file, whose checksum is checked before the first is read.

    Parameters
    ----------
    path : pathlib.Path
        The file, of which only the header is read.
    expected : str
        Its checksum.
    """

    def __init__(self, path: Path, expected: str) -> None:
        self.arrays = mapped_arrays(path)
        self._path, self._expected, self._checked = path, expected, False

    def check(self) -> None:
        """Raise OSError unless the checksum is right; only the first call reads the file."""
        if not self._checked and (found := checksum(self._path)) != self._expected:
            raise OSError(f"its checksum is {found}, expected {self._expected:.16}")
        self._checked = True

    def read(self, name: str) -> np.ndarray:
        """Return an array, as a copy for compiled loops: in a file it may begin at any byte."""
        self.check()
        return self.arrays[name].copy()
