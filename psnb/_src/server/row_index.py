"""RowIndex: from an id to its row in a table, in two ways. Pure.

`FixedRowIndex` computes it, `GrowingRowIndex` remembers it in a hash map. Neither is thread-safe;
the server's one thread is their only user.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from psnb._src.first_rows import Admission, Always, read_only
from psnb._src.own_pages import zeroed
from psnb._src.server import kernels
from psnb._src.server.growing import GrowingArray
from psnb._src.shards import check_ids, check_within

ALL = slice(None)

_FIRST_SLOTS = 1024

_NEVER = 2**31 - 1
"""More sightings than the hash map can count."""


class RowIndex(Protocol):
    """Maps ids (uint64, one axis) to rows (int64, dense from 0).

    Rows that it returns are safe for compiled loops. Ids of another form raise GradientError, ids
    that cannot have a row here raise IdOutOfRangeError; then nothing is changed.
    """

    count: int

    def locate(self, ids: np.ndarray, *, counting: bool = True) -> np.ndarray:
        """Return the row of each id; ids not seen before may get new rows at the end.

        -1 for ids that are not admitted; ``counting`` tells whether this is one more sighting.
        """

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Return the row of each id, -1 for ids without a row."""

    def ids(self, rows: slice | np.ndarray = ALL) -> np.ndarray:
        """Return the ids of some rows, uint64; a copy."""

    def nbytes(self) -> int:
        """Return the bytes that the mapping takes."""


class FixedRowIndex(RowIndex):
    """A shard of a table with a known number of rows, dealt out in turn over the shards.

    Parameters
    ----------
    rows : int
        Rows of the whole table.
    index, shards : int
        The number of this shard, and how many there are. It has the ids with ``id % shards ==
        index``, so ids numbered by popularity load the servers evenly.
    """

    def __init__(self, rows: int, index: int, shards: int) -> None:
        self._index, self._shards = index, shards
        self.count = len(range(index, rows, shards))

    def locate(self, ids: np.ndarray, *, counting: bool = True) -> np.ndarray:
        return self.find(ids)

    def find(self, ids: np.ndarray) -> np.ndarray:
        check_ids("ids", ids)
        if self._shards > 1:
            ids = ids // np.uint64(self._shards)
        check_within("rows of ids", ids, 0, self.count - 1)
        return ids.view(np.int64)

    def ids(self, rows: slice | np.ndarray = ALL) -> np.ndarray:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(self.count))
        return rows.astype(np.uint64) * np.uint64(self._shards) + np.uint64(self._index)

    def nbytes(self) -> int:
        return 0


class GrowingRowIndex(RowIndex):
    """A shard of a table that takes any 64-bit id, in the order of their first appearance.

    Its hash map is half to two thirds full, so with the list of ids it takes 26 to 32 bytes an id.

    Parameters
    ----------
    admission : Admission
        Which ids get a row.
    seed : int
        The table's.
    """

    def __init__(self, admission: Admission | None = None, seed: int = 0) -> None:
        self._admission, self._seed = admission or Always(), seed
        self.count = 0
        self._keys = np.empty(0, np.uint64)
        self._rows = np.empty(0, np.int32)
        self._ids = GrowingArray(1, np.dtype(np.uint64))  # by row: the inverse of the hash map
        self._free = 0
        self._reset(_FIRST_SLOTS)

    @property
    def waiting(self) -> int:
        """How many ids have been sighted, but not often enough for a row."""
        return self._limit() - self._free - self.count

    def locate(self, ids: np.ndarray, *, counting: bool = True) -> np.ndarray:
        if isinstance(self._admission, Always):
            check_ids("ids", ids)
            return self._sight(ids, 1)
        rows = self.find(ids)
        if not counting and self._admission.sightings > 1:
            return rows
        missing = rows < 0
        if missing.any():
            new = np.unique(ids[missing])  # a lookup or push sights an id once
            new = new[self._admission.may_enter(new, self._seed)]
            self._sight(new, self._admission.sightings)
            rows[missing] = self.find(ids[missing])
        return rows

    def find(self, ids: np.ndarray) -> np.ndarray:
        check_ids("ids", ids)
        rows = np.empty(ids.size, np.int64)
        kernels.find(self._keys, self._rows, read_only(ids), rows)
        return rows

    def insert(self, ids: np.ndarray) -> np.ndarray:
        """Return the row of each id; ids without one get one, admitted or not. Checked before."""
        return self._sight(ids, 1)

    def wait(self, ids: np.ndarray, sightings: np.ndarray) -> None:
        """Load what `waiting_ids` returned, checked before; none of the ids has a row here."""
        self._sight(ids, _NEVER)
        kernels.put(self._keys, self._rows, read_only(ids), -1 - sightings.astype(np.int32))

    def ids(self, rows: slice | np.ndarray = ALL) -> np.ndarray:
        return self._ids.rows[rows, 0].copy()

    def waiting_ids(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids that wait for a row, and how often each was sighted (uint32)."""
        waiting = self._rows < kernels.EMPTY
        return self._keys[waiting], (-1 - self._rows[waiting]).astype(np.uint32)

    def keep(self, kept: np.ndarray, *, forget_waiting: bool) -> None:
        """Drop the rows that are not ``kept`` (bool); the others move up."""
        ids, waiting = self.ids()[kept], self.waiting_ids()
        self.count = 0
        self._ids = GrowingArray(1, np.dtype(np.uint64))
        self._reset(_FIRST_SLOTS)
        self.insert(ids)
        if not forget_waiting:
            self.wait(*waiting)

    def nbytes(self) -> int:
        return self._keys.nbytes + self._rows.nbytes + self._ids.rows.nbytes

    def _sight(self, ids: np.ndarray, sightings: int) -> np.ndarray:
        rows = np.empty(ids.size, np.int64)
        ids, done, before = read_only(ids), 0, self.count
        while True:
            done, self.count, self._free = kernels.sight(
                self._keys, self._rows, ids, done, sightings, self.count, self._free, rows
            )
            if done == ids.size:
                break
            self._grow()
        if self.count > before:
            self._ids.grow(self.count)
            added = rows >= before
            self._ids.rows[rows[added], 0] = ids[added]
        return rows

    def _limit(self) -> int:
        return self._keys.size * 2 // 3  # probes stay short

    def _reset(self, slots: int) -> None:
        self._keys = zeroed(slots, np.dtype(np.uint64))
        self._rows = zeroed(slots, np.dtype(np.int32))
        self._rows.fill(kernels.EMPTY)
        self._free = self._limit()

    def _grow(self) -> None:
        keys, rows, used = self._keys, self._rows, self._limit() - self._free
        self._reset(keys.size * 4 // 3)
        kernels.move(keys, rows, self._keys, self._rows)
        self._free -= used
