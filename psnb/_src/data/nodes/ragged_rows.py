"""Rows of differing length that can be overwritten. Pure."""

from __future__ import annotations

import numpy as np

from psnb._src.data.copy_rows import rows_of
from psnb._src.data.ragged import Ragged


class RaggedRows:
    """Rows in one buffer: new ones go to its end; when that is full, those in use are moved.

    Parameters
    ----------
    like : Ragged
        Of the dtype and trailing axes of the rows to be.
    """

    def __init__(self, like: Ragged) -> None:
        self._values = np.empty((0, *like.values.shape[1:]), like.dtype)
        self._starts = self._lengths = np.empty(0, np.int64)
        self._end = 0  # of what is written in the buffer

    def __len__(self) -> int:
        return len(self._starts)

    def fits(self, rows: Ragged) -> bool:
        """Return whether rows are of the dtype and trailing axes of these."""
        return rows.dtype == self._values.dtype and rows.shape[2:] == self._values.shape[1:]

    def grow(self, count: int) -> None:
        """Be of so many rows, the new ones empty."""
        more = np.zeros(count - len(self), np.int64)
        self._starts = np.concatenate([self._starts, more])
        self._lengths = np.concatenate([self._lengths, more])

    def put(self, places: np.ndarray, rows: Ragged) -> None:
        """Overwrite the rows at some places with others that fit."""
        values, offsets = rows.values, rows.offsets
        self._lengths[places] = 0
        if self._end + len(values) > len(self._values):
            self._move(len(values))
        stop = self._end + len(values)
        self._values[self._end : stop] = values
        self._starts[places] = self._end + offsets[:-1]
        self._lengths[places] = rows.lengths
        self._end = stop

    def take(self, places: np.ndarray) -> Ragged:
        """Copy some rows together."""
        lengths = self._lengths[places]
        offsets = np.zeros(len(places) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return Ragged(rows_of(self._values, self._starts[places], lengths), offsets)

    def _move(self, more: int) -> None:
        """Move what is in use to a buffer that has as much room again."""
        kept = rows_of(self._values, self._starts, self._lengths)
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._end = len(kept)
        self._values = np.empty((2 * (self._end + more), *kept.shape[1:]), kept.dtype)
        self._values[: self._end] = kept
