"""LayeredRows: the rows of a table in a checkpoint and its deltas, in two layers. Thread-safe.

The first layer is what was written wholly, the second one what all deltas since then have. So the
next delta leaves the first one, and its index of ids, as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psnb._src.checkpoint.check_files import FileKey
from psnb._src.checkpoint.saved_table import SavedTable
from psnb._src.checkpoint.shard_files import State


class LayeredRows:
    """The rows of a table.

    Parameters
    ----------
    name : str
        The table's.
    shards : sequence of sequence of mapping
        The arrays of each file of each shard, which were checked.
    whole : tuple of tuple
        By what the first file of each shard is known.
    before : LayeredRows, optional
        Of an earlier checkpoint; its first layer is shared if it is of the same files.
    """

    def __init__(
        self,
        name: str,
        shards: Sequence[Sequence[State]],
        whole: tuple[FileKey, ...],
        before: LayeredRows | None = None,
    ) -> None:
        self._whole = whole
        if before is not None and before._whole == whole:
            first = before._layers[-1]
        else:
            first = _table(name, [shard[0] for shard in shards])
        later = [part for shard in shards for part in shard[1:]]
        # The newest first.
        self._layers: tuple[SavedTable, ...] = (_table(name, later), first) if later else (first,)

    def __len__(self) -> int:
        newer, first = self._layers[:-1], self._layers[-1]
        return len(first) + sum(int((~first.has(each.ids)).sum()) for each in newer)

    def found(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of ids (uint64 ``(n,)``), and which have none: theirs are arbitrary."""
        first = self._layers[-1]
        rows, missing = np.empty((ids.size, first.dim), first.dtype), np.ones(ids.size, np.bool_)
        for layer in self._layers:
            at = np.flatnonzero(missing)
            known, found = layer.found(ids[at])
            rows[at[known]], missing[at[known]] = found, False
        return rows, missing


def _table(name: str, parts: Sequence[State]) -> SavedTable:
    return SavedTable(name, [part["ids"] for part in parts], [part["values"] for part in parts])
