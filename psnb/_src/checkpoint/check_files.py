"""Checks of a checkpoint's files, before anything of it is loaded. Pure.

A file is read piece by piece for its checksum. Of its arrays, only those whose numbers matter are
read, for example ids. So a check needs memory for the ids of one shard only.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Protocol

import numpy as np
from safetensors import SafetensorError, safe_open

from psnb._src.checkpoint.manifest import ManifestEntry
from psnb._src.checkpoint.shard_files import damaged
from psnb._src.shards import Form, SavedShard
from psnb._src.whole_files import checksum
from psnb.errors import ConfigurationError

_DTYPES = {
    f"{kind.upper()}{8 * size}": np.dtype(f"{kind}{size}")
    for kind, sizes in (("i", (1, 2, 4, 8)), ("u", (1, 2, 4, 8)), ("f", (2, 4, 8)))
    for size in sizes
}
"""The dtypes that parameters have, by their names in the files."""


class Loads(Protocol):
    """A parameter, which checks the state of its shards."""

    def check_state(self, saved: SavedShard) -> None:
        """Raise ConfigurationError unless a saved shard can be loaded."""


def check_files(path: Path, entry: ManifestEntry, parameter: Loads) -> None:
    """Check that a parameter can be loaded from its files.

    Parameters
    ----------
    path : pathlib.Path
        The checkpoint.
    entry : ManifestEntry
        The parameter's entry in the manifest.
    parameter : Loads
        The parameter to load.

    Raises
    ------
    CheckpointError
        If a file is missing or damaged, or does not fit the parameter.
    """
    for shard, (file, expected) in enumerate(entry.files.items()):
        try:
            if not stat.S_ISREG((path / file).lstat().st_mode):
                raise OSError("it is no plain file, but a link or a device")
            found = checksum(path / file)
            if found != expected:
                raise OSError(f"its checksum is {found}, expected {expected:.16}")
            with safe_open(path / file, framework="numpy") as opened:
                forms = {name: _form(opened, name) for name in opened.keys()}  # noqa: SIM118
                saved = SavedShard(shard, len(entry.files), forms, opened.get_tensor)
                parameter.check_state(saved)
        except (OSError, SafetensorError, ConfigurationError) as error:
            raise damaged(path, file, entry.name, error) from error


def _form(opened: safe_open, name: str) -> Form:
    part = opened.get_slice(name)
    dtype = _DTYPES.get(part.get_dtype())
    if dtype is None:
        raise OSError(f"array {name!r:.80} has dtype {part.get_dtype()}")
    return dtype, tuple(part.get_shape())
