"""SavedTable: the rows of an embedding in a checkpoint, in mapped files. Thread-safe."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from psnb._src.exact_integers import array_of
from psnb.errors import ConfigurationError, IdOutOfRangeError


class SavedTable:
    """The ids and rows of an embedding in a checkpoint, the same from any number of servers.

    Parameters
    ----------
    name : str
        Its name.
    ids : sequence of numpy.ndarray
        Of each file, the ids that have a row there, each once.
    values : sequence of numpy.ndarray
        Of each file, the rows of these ids; of an id's rows, the last counts.

    Attributes
    ----------
    ids : numpy.ndarray
        All ids that have a row, ascending, uint64 ``(n,)``. Of a table with fixed rows these are 0
        to n - 1. What was looked up as -1 is ``2**64 - 1`` here.
    dim : int
        Numbers a row.
    dtype : numpy.dtype
        Of the rows.
    """

    def __init__(self, name: str, ids: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> None:
        self._name, self._values = name, tuple(values)
        self.dim, self.dtype = values[0].shape[1], values[0].dtype
        joined = np.concatenate(ids)
        self.ids, last = np.unique(joined[::-1], return_index=True)
        self._places = joined.size - 1 - last
        self.ids.flags.writeable = False
        self._stops = np.cumsum([len(each) for each in values])

    def __repr__(self) -> str:
        return f"<psnb.checkpoint.SavedTable {self._name!r}: {len(self):,} rows of {self.dim}>"

    def __len__(self) -> int:
        return self.ids.size

    @property
    def rows(self) -> np.ndarray:
        """All rows in the order of `ids`, ``(n, dim)``, so of fixed rows by their number.

        They are read into memory, unless one server had all of fixed rows; `lookup` reads only what
        it returns.
        """
        whole = self._values[0]
        if len(self._values) > 1 or (np.diff(self._places) < 0).any():
            whole = self._taken(self._places)
            whole.flags.writeable = False
        return whole

    def lookup(self, ids: ArrayLike) -> np.ndarray:
        """Return the rows of ids of any shape, ``ids.shape + (dim,)``.

        Raises
        ------
        ConfigurationError
            If the ids are not integers.
        IdOutOfRangeError
            If an id has no row here.
        """
        asked = array_of(ids)
        if asked.size and asked.dtype.kind not in "iu":
            raise ConfigurationError(
                f"ids of table {self._name!r} are of {asked.dtype}: no integers"
            )
        wide = np.int64 if asked.dtype.kind == "i" else np.uint64
        known, rows = self.found(asked.reshape(-1).astype(wide).view(np.uint64))
        if not known.all():
            missing = asked.reshape(-1)[~known]
            raise IdOutOfRangeError(
                f"table {self._name!r} of this checkpoint has no row of id {missing[0]}, nor of "
                f"{missing.size - 1:,} others that were asked for; its ids= are those that have one"
            )
        return rows.reshape(*asked.shape, self.dim)

    def found(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which of some ids (uint64 ``(n,)``) have a row here, and the rows of these."""
        known, at = self._located(ids)
        return known, self._taken(self._places[at])

    def has(self, ids: np.ndarray) -> np.ndarray:
        """Return which of some ids (uint64 ``(n,)``) have a row here."""
        return self._located(ids)[0]

    def _located(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which ids have a row, and where these are among all."""
        at = np.searchsorted(self.ids, ids)
        known = at < self.ids.size
        known[known] = self.ids[at[known]] == ids[known]
        return known, at[known]

    def _taken(self, places: np.ndarray) -> np.ndarray:
        found = np.empty((places.size, self.dim), self.dtype)
        shards = np.searchsorted(self._stops, places, side="right")
        for number, values in enumerate(self._values):
            at = np.flatnonzero(shards == number)
            found[at] = values[places[at] - (self._stops[number] - len(values))]
        return found
