"""SavedTable: the rows of an embedding in a checkpoint, in mapped files. Thread-safe.

The full checkpoint is one layer, all deltas since then are another. So the next delta leaves the
first layer, and its index of ids, as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from psnb._src.checkpoint.shards import State
from psnb._src.server.tables.checks import REMOVED
from psnb._src.transport.half_width import computed, widened
from psnb._src.utils.arrays import bits_of, integers_of
from psnb.errors import IdOutOfRangeError

_NO_IDS = np.empty(0, np.uint64)


class _Layer:
    """The rows of some files; of an id's rows, the last counts, unless it was removed later.

    Attributes
    ----------
    values : list of numpy.ndarray
        The rows of each file.
    ids, removed : numpy.ndarray
        The ids that have a row, and those whose rows in layers before do not count; ascending.
    """

    def __init__(self, parts: Sequence[State]) -> None:
        self.values = [part["values"] for part in parts]
        # What happens to ids, in its order: a file's removals come before its rows.
        joined, places, count = [], [], 0
        for part in parts:
            gone, ids = part.get(REMOVED, _NO_IDS), part["ids"]
            joined += [gone, ids]
            places += [np.full(gone.size, -1), np.arange(count, count + ids.size)]
            count += ids.size
        every, last = np.unique(np.concatenate(joined)[::-1], return_index=True)
        found = np.concatenate(places)[::-1][last]
        self.ids, self._places = every[found >= 0], found[found >= 0]
        self.removed = every[found < 0]
        self.ids.flags.writeable = False
        self._stops = np.cumsum([len(each) for each in self.values])

    def located(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which ids have a row, and where these are among all."""
        return _located(self.ids, ids)

    def taken(self, at: np.ndarray | slice) -> np.ndarray:
        """Return rows by where their ids are among all."""
        places = self._places[at]
        found = np.empty((places.size, self.values[0].shape[1]), computed(self.values[0].dtype))
        shards = np.searchsorted(self._stops, places, side="right")
        for number, values in enumerate(self.values):
            own = np.flatnonzero(shards == number)
            found[own] = widened(values[places[own] - (self._stops[number] - len(values))])
        return found

    def is_ordered(self) -> bool:
        """Return whether the only file has the rows in the order of their ids."""
        return len(self.values) == 1 and not (np.diff(self._places) < 0).any()


def _located(among: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which ids are among others, which ascend, and where."""
    at = np.searchsorted(among, ids)
    known = at < among.size
    known[known] = among[at[known]] == ids[known]
    return known, at[known]


class SavedTable:
    """The ids and rows of an embedding in a checkpoint, the same from any number of servers.

    Parameters
    ----------
    name : str
        Its name.
    shards : sequence of sequence of mapping
        The arrays of each file of each shard, the oldest first, which were checked: the ids that
        have a row there, each once, and these rows; of an id's rows, the last counts. Those in an
        array ``removed`` have lost their rows before.
    base : SavedTable, optional
        Of an earlier checkpoint; its full layer is shared if it is of the same files.

    Attributes
    ----------
    dim : int
        Numbers a row.
    dtype : numpy.dtype
        Of the rows; float32, if they are saved in half width.
    """

    def __init__(
        self, name: str, shards: Sequence[Sequence[State]], base: SavedTable | None = None
    ) -> None:
        self._name = name
        firsts = [shard[0] for shard in shards]
        known = [] if base is None else base._layers[-1].values
        if base is not None and [*map(id, known)] == [id(each["values"]) for each in firsts]:
            first = base._layers[-1]
        else:
            first = _Layer(firsts)
        self.dim, self.dtype = first.values[0].shape[1], computed(first.values[0].dtype)
        later = [part for shard in shards for part in shard[1:]]
        # The newest first.
        self._layers: tuple[_Layer, ...] = (_Layer(later), first) if later else (first,)

    def __repr__(self) -> str:
        return f"<psnb.checkpoint.SavedTable {self._name!r}: {len(self):,} rows of {self.dim}>"

    def __len__(self) -> int:
        # Not from `ids`: a reader that follows a folder asks for it after each delta.
        newer, first = self._layers[:-1], self._layers[-1]
        count = first.ids.size
        for each in newer:
            count += each.ids.size - int(first.located(each.ids)[0].sum())
            count -= int(first.located(each.removed)[0].sum())
        return count

    @cached_property
    def ids(self) -> np.ndarray:
        """All ids that have a row, ascending, uint64 ``(n,)``.

        A table with fixed rows has the ids 0 to n - 1. An id that was looked up as -1 is ``2**64 -
        1`` here.
        """
        *newer, first = self._layers
        found = first.ids
        for each in newer:
            found = np.union1d(found[~_located(each.removed, found)[0]], each.ids)
        found.flags.writeable = False
        return found

    @property
    def rows(self) -> np.ndarray:
        """All rows in the order of `ids`, ``(n, dim)``, so of fixed rows by their number.

        They are read into memory, unless one server had all of fixed rows; `lookup` reads only what
        it returns.
        """
        first = self._layers[-1]
        if len(self._layers) > 1:
            rows, _ = self.found(self.ids)
        else:
            whole = widened(first.values[0]) if first.is_ordered() else None
            rows = first.taken(slice(None)) if whole is None else whole
        rows.flags.writeable = False
        return rows

    def lookup(self, ids: ArrayLike) -> np.ndarray:
        """Return the rows of ids of any shape, ``ids.shape + (dim,)``.

        Raises
        ------
        InvalidArrayError
            If the ids are not integers.
        IdOutOfRangeError
            If an id has no row here.
        """
        asked = integers_of(ids, f"ids of table {self._name!r}")
        rows, unknown = self.found(bits_of(asked).reshape(-1))
        if unknown.any():
            missing = asked.reshape(-1)[unknown]
            raise IdOutOfRangeError(
                f"table {self._name!r} of this checkpoint has no row of id {missing[0]}, nor of "
                f"{missing.size - 1:,} others that were asked for; its ids= are those that have one"
            )
        return rows.reshape(*asked.shape, self.dim)

    def found(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of ids (uint64 ``(n,)``), and which have none: theirs are arbitrary."""
        rows, missing = np.empty((ids.size, self.dim), self.dtype), np.ones(ids.size, np.bool_)
        left = np.arange(ids.size)  # those that no layer so far knows anything of
        for layer in self._layers:
            known, places = layer.located(ids[left])
            rows[left[known]], missing[left[known]] = layer.taken(places), False
            left = left[~known]
            left = left[~_located(layer.removed, ids[left])[0]]
        return rows, missing
