"""Checks of a checkpoint's files, before anything of it is loaded. Pure.

A file is read piece by piece for its checksum. Of its arrays, only those whose numbers matter are
read into memory, for example ids. So a check needs memory for the ids of one shard only.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

import numpy as np
from safetensors import SafetensorError

from psnb._src.checkpoint.checkpoint_folder import StoredCheckpoint
from psnb._src.checkpoint.manifest import ManifestEntry
from psnb._src.checkpoint.shard_files import State, damaged
from psnb._src.mapped_arrays import mapped_arrays
from psnb._src.shards import SavedShard, forms
from psnb._src.whole_files import checksum


class Loads(Protocol):
    """A parameter, which checks the state of its shards."""

    def check_state(self, saved: SavedShard) -> None:
        """Raise ConfigurationError unless a saved shard can be loaded."""


def check_files(stored: StoredCheckpoint, entry: ManifestEntry, parameter: Loads) -> list[State]:
    """Check that a parameter can be loaded from its files.

    Parameters
    ----------
    stored : StoredCheckpoint
        The checkpoint.
    entry : ManifestEntry
        The parameter's entry in the manifest.
    parameter : Loads
        The parameter to load.

    Returns
    -------
    list of dict
        The arrays of each shard, mapped into memory and read-only.

    Raises
    ------
    CheckpointError
        If a file is missing or damaged, or does not fit the parameter.
    """
    found = []
    for shard, (file, expected) in enumerate(entry.files.items()):
        try:
            path = stored.file(file)
            sum_ = checksum(path)
            if sum_ != expected:
                raise OSError(f"its checksum is {sum_}, expected {expected:.16}")
            arrays = mapped_arrays(path)
            # What compiled loops read is copied: a file may put its arrays at any byte.
            read = partial(_copied, arrays)
            parameter.check_state(SavedShard(shard, len(entry.files), forms(file, arrays), read))
        except (OSError, SafetensorError, ValueError) as error:
            raise damaged(stored, file, entry.name, error) from error
        found.append(arrays)
    return found


def _copied(arrays: State, name: str) -> np.ndarray:
    return arrays[name].copy()
