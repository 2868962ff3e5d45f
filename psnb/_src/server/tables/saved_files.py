"""Files of a parameter's shard in a checkpoint, and what tables take of them. Pure.

A file is read piece by piece: it may be larger than a process's memory. It is not mapped into
memory, as a mapped file that is shortened ends the process that reads it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from psnb._src.server.tables.checks import COUNTS, Form, forms
from psnb._src.server.tables.operations import Segment
from psnb._src.server.tables.sharding import Owner, evenly
from psnb._src.utils.files import DamagedFileError, checksum, opened_plain
from psnb._src.utils.mapped_arrays import array_places, mapped_array, read_into


class SavedArrays(Protocol):
    """The arrays of a file, or such in memory."""

    @property
    def forms(self) -> Mapping[str, Form]:
        """Their dtypes and shapes, by their names."""

    def read(
        self, name: str, start: int = 0, stop: int | None = None, *, flat: bool = False
    ) -> np.ndarray:
        """Return an array, or some of its rows; ``flat``: some of its numbers."""


class SealedFile:
    """The arrays of a file, whose checksum is checked before the first is read. Thread-safe.

    Parameters
    ----------
    path : pathlib.Path
        The file, of which only the header is read.
    expected : str
        Its checksum.
    on_read : callable
        Called with the bytes of each piece that is read for the checksum.
    """

    def __init__(self, path: Path, expected: str, on_read: Callable[[int], object] = bool) -> None:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise DamagedFileError("it is not a regular file, but a link or a device")
        self.path = path
        self._places = array_places(path)
        self.forms = {name: (each.dtype, each.shape) for name, each in self._places.items()}
        self._expected, self._on_read, self._checked = expected, on_read, False

    def check(self) -> None:
        """Raise DamagedFileError unless the checksum is right; only the first call reads it."""
        if not self._checked:
            found = checksum(self.path, self._on_read)
            if found != self._expected:
                raise DamagedFileError(f"its checksum is {found}, expected {self._expected:.16}")
        self._checked = True

    def mapped(self) -> dict[str, np.ndarray]:
        """Return all arrays, as `mapped_arrays` does."""
        return {name: mapped_array(self.path, name, place) for name, place in self._places.items()}

    def read(
        self, name: str, start: int = 0, stop: int | None = None, *, flat: bool = False
    ) -> np.ndarray:
        """Return an array, or some of its rows; see `SavedArrays`."""
        self.check()
        dtype, shape, begin = self._places[name]
        if flat:
            shape = (int(np.prod(shape, dtype=np.int64)),)
        if shape:
            shape = (len(range(shape[0])[start:stop]), *shape[1:])
        found = np.empty(shape, dtype)
        if start:
            begin += start * dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        file = opened_plain(self.path, os.O_RDONLY)
        try:
            read_into(file, begin, found)
        finally:
            os.close(file)
        return found


class ArraysInMemory:
    """The arrays of a state, as `SavedArrays`."""

    def __init__(self, state: Segment) -> None:
        self._state, self.forms = state, forms("a state", state)

    def read(
        self, name: str, start: int = 0, stop: int | None = None, *, flat: bool = False
    ) -> np.ndarray:
        """Return an array, or some of its rows; see `SavedArrays`."""
        array = self._state[name]
        whole = array.reshape(-1) if flat else array
        return whole[start:stop] if whole.ndim else whole


def read_segment(
    saved: SavedArrays, start: int, stop: int, at: int | None, owner: Owner | None
) -> Segment:
    """Return what a table is to `put` of some rows of a file.

    Parameters
    ----------
    saved : SavedArrays
        The file.
    start, stop : int
        Which rows; of a variable, which numbers.
    at : int or None
        Of a variable, where the first of them goes.
    owner : Owner or None
        Who takes the rows; None if the table takes all.
    """
    names = [name for name in saved.forms if _by_row(name)]
    if at is not None:
        numbers = {name: saved.read(name, start, stop, flat=True) for name in names}
        return {**numbers, "start": np.array([at])}
    rows = {name: saved.read(name, start, stop) for name in names}
    return rows if owner is None else owned(rows, "ids", owner)


def owned(rows: Segment, ids: str, owner: Owner) -> Segment:
    """Return the rows that a shard takes, by the ids in one of the arrays."""
    at = evenly(owner.takes(rows[ids]))
    return {
        name: array[at].copy() if isinstance(at, slice) else array.take(at, axis=0, mode="clip")
        for name, array in rows.items()
    }


def read_waiting(last: Sequence[SavedArrays], owner: Owner | None) -> Segment:
    """Return the ids that wait for a row, of the last file of each shard that was saved."""
    names = [name for each in last[:1] for name in each.forms if name.startswith("waiting.")]
    parts = [{name: each.read(name) for name in names} for each in last] if names else []
    if owner is not None:
        parts = [owned(each, "waiting.ids", owner) for each in parts]
    return {name: np.concatenate([each[name] for each in parts]) for name in names}


def _by_row(name: str) -> bool:
    return name not in ("step", COUNTS) and not name.startswith("waiting.")
