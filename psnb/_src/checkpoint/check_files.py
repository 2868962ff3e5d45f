"""Checks of a checkpoint's files, before anything of it is loaded. Pure.

A file is read piece by piece for its checksum. Of its arrays, only those whose numbers matter are
read into memory, for example ids. So a check needs memory for the ids of one shard only.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
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
                path = stored.file(file)
                sum_ = checksum(path)
                if sum_ != expected:
                    raise OSError(f"its checksum is {sum_}, expected {expected:.16}")
                arrays = mapped_arrays(path)
                # What compiled loops read is copied: a file may put its arrays at any byte.
                read = partial(_copied, arrays)
                form = forms(file, arrays)
                parameter.check_state(SavedShard(number, len(entry.shards), form, read, part=part))
                parts.append(arrays)
                first = file_key(entry, number, next(iter(files)))
                if part and len(parts) == len(files) and first not in known:
                    last = LastValues(parts)
                    whole = SavedShard(number, len(entry.shards), last.forms(), last.read)
                    parameter.check_state(whole)
            except (OSError, SafetensorError, ValueError) as error:
                raise damaged(stored, file, entry.name, error) from error
        found.append(parts)
    return found


def _copied(arrays: State, name: str) -> np.ndarray:
    return arrays[name].copy()
