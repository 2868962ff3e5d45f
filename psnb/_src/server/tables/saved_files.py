"""Parts of a checkpoint's files, each of one table, and what tables take of them. Pure.

A part is read piece by piece: it may be larger than a process's memory. It is not mapped into
memory, as a mapped file that is shortened ends the process that reads it.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Protocol

import numpy as np
from msgspec import Meta

from psnb._src.server.tables.checks import COUNTS, MINUTES, REMOVED, Form, forms
from psnb._src.server.tables.operations import Segment
from psnb._src.server.tables.sharding import Owner
from psnb._src.transport.message import Message
from psnb._src.utils.files import DamagedFileError, checksum, opened_plain
from psnb._src.utils.mapped_arrays import ArrayPlace, Dtype, mapped_array, read_into


class SavedArrays(Protocol):
    """The arrays of a part, or such in memory."""

    @property
    def forms(self) -> Mapping[str, Form]:
        """Their dtypes and shapes, by their names."""

    def read(
        self, name: str, start: int = 0, stop: int | None = None, *, flat: bool = False
    ) -> np.ndarray:
        """Return an array, or some of its rows; ``flat``: some of its numbers."""


_Size = Annotated[int, Meta(ge=0, lt=2**62)]
"""There will never be more rows or bytes."""

PartKey = tuple[str, int]
"""Which part it is: its file, and where it begins there."""


class FilePart(Message, frozen=True, forbid_unknown_fields=True):
    """A part of a file: the arrays of a table, or of some rows of it, one right after the other.

    Attributes
    ----------
    file : str
        The file's name, or its address.
    start : int
        Where its first byte is.
    checksum : str
        XXH3 of its bytes.
    arrays : mapping of str to tuple
        The dtype and shape of each array, in the order of the bytes.
    """

    file: str
    start: Annotated[int, Meta(ge=0, lt=2**62, multiple_of=8)]
    checksum: str
    arrays: Mapping[str, tuple[Dtype, tuple[_Size, ...]]]

    @property
    def key(self) -> PartKey:
        """What tells it from all others."""
        return self.file, self.start

    @property
    def stop(self) -> int:
        """Where its last byte is, and 1."""
        return self.start + sum(_nbytes(*form) for form in self.arrays.values())

    def places(self) -> dict[str, ArrayPlace]:
        """Return where in the file each array is."""
        found, at = {}, self.start
        for name, (dtype, shape) in self.arrays.items():
            found[name] = ArrayPlace(np.dtype(dtype), shape, at)
            at += _nbytes(dtype, shape)
        return found


def _nbytes(dtype: str, shape: Sequence[int]) -> int:
    return np.dtype(dtype).itemsize * math.prod(shape)


class SealedPart:
    """The arrays of a part, whose checksum is checked before the first is read. Thread-safe.

    Parameters
    ----------
    path : pathlib.Path
        The file, of which nothing is read yet.
    part : FilePart
        What it must be.
    on_read : callable
        Called with the bytes of each piece that is read for the checksum.

    Raises
    ------
    OSError
        If it is not there, or is too short.
    """

    def __init__(self, path: Path, part: FilePart, on_read: Callable[[int], object] = bool) -> None:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            raise DamagedFileError("it is not a regular file, but a link or a device")
        if found.st_size < part.stop:
            raise DamagedFileError(
                f"it has {found.st_size:,} bytes, and must have {part.stop:,} at least"
            )
        self.path = path
        self._places = part.places()
        self.forms = {name: (each.dtype, each.shape) for name, each in self._places.items()}
        self._part, self._on_read, self._checked = part, on_read, False

    def check(self) -> None:
        """Raise DamagedFileError unless the checksum is right; only the first call reads it."""
        if not self._checked:
            start, expected = self._part.start, self._part.checksum
            found = checksum(self.path, self._on_read, start, self._part.stop - start)
            if found != expected:
                raise DamagedFileError(f"its checksum is {found}, expected {expected:.16}")
        self._checked = True

    def mapped(self) -> dict[str, np.ndarray]:
        """Return all arrays, as `mapped_arrays` does; ValueError if one can have no such shape."""
        begin, nbytes = self._part.start, self._part.stop - self._part.start
        # As a whole: a system lets a process map some ten thousand pieces of files.
        whole = mapped_array(self.path, "whole", ArrayPlace(np.dtype(np.uint8), (nbytes,), begin))
        return {
            name: np.ndarray(shape, dtype, whole, start - begin)
            for name, (dtype, shape, start) in self._places.items()
        }

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


def read_segment(saved: SavedArrays, start: int, stop: int, at: int | None) -> Segment:
    """Return what a table is to `put` of some rows of a part.

    Parameters
    ----------
    saved : SavedArrays
        The part.
    start, stop : int
        Which rows; of a variable, which numbers.
    at : int or None
        Of a variable, where the first of them goes.
    """
    names = [name for name in saved.forms if by_row(name)]
    if at is not None:
        numbers = {name: saved.read(name, start, stop, flat=True) for name in names}
        return {**numbers, "start": np.array([at])}
    return {name: saved.read(name, start, stop) for name in names}


Later = tuple[int, int]
"""How many updates and minutes a shard has counted less than the one that has counted most."""

AT_ONCE: Later = (0, 0)


def used_later(rows: Segment, later: Later) -> Segment:
    """Return rows of a shard as those of one that counts from another update and minute on.

    So rows of several shards have the ages that they had there.
    """
    moved = zip(("last_update", "last_minute"), later, strict=True)
    return {**rows, **{name: rows[name] + by for name, by in moved if by and name in rows}}


def owned(rows: Segment, ids: str, owner: Owner) -> Segment:
    """Return the rows that a shard takes, by the ids in one of the arrays."""
    at = owner.takes(rows[ids])
    return {name: array.take(at, axis=0, mode="clip") for name, array in rows.items()}


def read_waiting(last: Sequence[SavedArrays], owner: Owner | None) -> Segment:
    """Return the ids that wait for a row, of the last part of each shard that was saved."""
    names = [name for each in last[:1] for name in each.forms if name.startswith("waiting.")]
    parts = [{name: each.read(name) for name in names} for each in last] if names else []
    if owner is not None:
        parts = [owned(each, "waiting.ids", owner) for each in parts]
    return {name: np.concatenate([each[name] for each in parts]) for name in names}


def by_row(name: str) -> bool:
    """Return whether an array of a state has an element, or row, for each row."""
    return name not in ("step", COUNTS, MINUTES, REMOVED) and not name.startswith("waiting.")
