"""DescribedState: what a manifest says that a parameter is, to read it without a strategy. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from psnb._src.checkpoint.check_files import FileKey, check_files
from psnb._src.checkpoint.checkpoint_folder import StoredCheckpoint
from psnb._src.checkpoint.manifest import ManifestEntry
from psnb._src.checkpoint.shard_files import State
from psnb._src.checks import is_integer
from psnb._src.mapped_arrays import DTYPES
from psnb._src.sealed_json import keys, require
from psnb._src.shards import (
    ROW_USE,
    Expected,
    ExpectedRows,
    SavedShard,
    check_saved_rows,
    check_saved_slice,
)
from psnb.errors import CheckpointError

_DTYPES = {dtype.name: dtype for dtype in DTYPES.values()}

_MOST = 2**62
"""More rows than there will ever be."""


class DescribedState:
    """A parameter as a manifest describes it; its shards must be of this kind.

    Parameters
    ----------
    entry : ManifestEntry
        Its entry.

    Attributes
    ----------
    table : bool
        Whether it is an embedding.
    rows : int or None
        Of an embedding: how many rows it has, or None for any id.

    Raises
    ------
    ValueError
        If it describes no parameter.
    """

    def __init__(self, entry: ManifestEntry) -> None:
        found, self._name = entry.description, entry.name
        self.table, self.rows = found.get("kind") == "embedding", None
        own = {"dim", "rows"} if self.table else {"shape"}
        keys("its description", found, {"kind", "dtype", "slots"} | own)
        require(self.table or found["kind"] == "variable", f"it is a {found['kind']!r:.80}")
        dtype, self._slots = found["dtype"], found["slots"]
        require(isinstance(dtype, str) and dtype in _DTYPES, f"its dtype is {dtype!r:.80}")
        self._dtype = _DTYPES[dtype]
        require(
            isinstance(self._slots, list) and all(isinstance(each, str) for each in self._slots),
            f"its slots are {self._slots!r:.80}",
        )
        if self.table:
            self._dim, self.rows = _size("dim", found["dim"]), found["rows"]
            require(self.rows is None or _size("rows", self.rows) > 0, "it has no rows")
        else:
            require(isinstance(found["shape"], list), f"its shape is {found['shape']!r:.80}")
            self._shape = tuple(_size("shape", each) for each in found["shape"])

    def check_state(self, saved: SavedShard) -> None:
        """Raise ConfigurationError unless this is a shard of it."""
        expected = self._name, self._dtype, tuple(self._slots)
        if not self.table:
            check_saved_slice(Expected(*expected), self._shape, saved)
            return
        fixed = None if self.rows is None else (self.rows, saved.number, saved.shards)
        # Whether their use is remembered and whether ids wait is not described, and changes no row.
        uses, waits = ROW_USE[0] in saved.forms, "waiting.ids" in saved.forms
        check_saved_rows(ExpectedRows(*expected, self._dim, fixed, uses=uses, waits=waits), saved)


def described_shards(
    stored: StoredCheckpoint,
    entry: ManifestEntry,
    known: Mapping[FileKey, State] = MappingProxyType({}),
) -> list[list[State]]:
    """Return the arrays of a parameter, by shard and file, which are checked; see `check_files`.

    Raises
    ------
    CheckpointError
        If a file is missing or damaged, or the entry describes no parameter.
    """
    try:
        described = DescribedState(entry)
    except ValueError as error:
        raise CheckpointError(
            f"checkpoint {str(stored.path)!r}: {entry.name!r:.200} is no parameter that this psnb "
            f"reads: {error}"
        ) from error
    return check_files(stored, entry, described, known)


def _size(what: str, found: Any) -> int:
    require(is_integer(found) and 0 <= found < _MOST, f"its {what} is {found!r:.80}")
    return int(found)
