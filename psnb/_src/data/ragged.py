"""Ragged: rows of different lengths in two arrays, the values of all rows and their offsets.

Pure and immutable: methods that change something return another one, which may share memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from numba import njit

from psnb._src.utils.arrays import array_of, concatenated, untracked
from psnb.errors import DatasetError


@njit(cache=True, nogil=True)
def copy_rows(data, starts, ends, out):  # type: ignore[no-untyped-def]
    """Copy parts of ``data`` (uint8) into ``out``, one after the other."""
    at = 0
    for i in range(starts.size):
        begin, size = starts[i], ends[i] - starts[i]
        for j in range(size):
            out[np.uint64(at + j)] = data[np.uint64(begin + j)]
        at += size


def as_rows(array: np.ndarray) -> Ragged:
    """Return an array as rows, which have all one length."""
    count, length = array.shape[:2]
    offsets = np.arange(count + 1, dtype=np.int64) * length
    return Ragged(array.reshape(count * length, *array.shape[2:]), offsets)


def rows_of(values: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Copy rows of values together.

    Parameters
    ----------
    values : numpy.ndarray
        With at least one axis; of any dtype.
    starts, lengths : numpy.ndarray
        Where each row begins in there and how many values it has, int64 ``(m,)``.
    """
    total = int(lengths.sum())
    if values.dtype.hasobject:
        before = np.cumsum(lengths) - lengths
        # Each value's place: its place in the result, moved by what its row is moved.
        found: np.ndarray = values[np.arange(total) + np.repeat(starts - before, lengths)]
        return found
    out = np.empty((total, *values.shape[1:]), values.dtype)
    size = out[:1].nbytes if total else 0
    # As read-only bytes in any case, so that numba compiles for one kind of arguments.
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    data.flags.writeable = False
    begins = starts * size
    copy_rows(data, begins, begins + lengths * size, out.reshape(-1).view(np.uint8))
    return out


class Ragged:
    """Rows of different lengths.

    Row ``i`` is ``values[offsets[i]:offsets[i + 1]]``. The arrays are read-only.

    Parameters
    ----------
    values : numpy.ndarray
        All rows, one after another, ``(total, ...)``.
    offsets : numpy.ndarray
        Where each row begins, and where the last one ends: int64 ``(n + 1,)``. The first is 0, they
        never decrease, and the last is ``total``.

    Raises
    ------
    DatasetError
        If values and offsets do not fit each other.
    """

    __slots__ = ("_offsets", "_values")

    def __init__(self, values: np.ndarray, offsets: np.ndarray) -> None:
        values, offsets = np.asarray(untracked(values)), np.asarray(untracked(offsets))
        if values.ndim == 0:
            raise DatasetError("Ragged: values need an axis of rows, found a scalar")
        if offsets.ndim != 1 or offsets.size == 0 or offsets.dtype.kind not in "iu":
            raise DatasetError(
                "Ragged: offsets must be integers along one axis, one more than there are rows, "
                f"found shape {offsets.shape} of {offsets.dtype}"
            )
        offsets = offsets.astype(np.int64, copy=False)
        if offsets[0] != 0 or offsets[-1] != len(values) or (offsets[1:] < offsets[:-1]).any():
            raise DatasetError(
                f"Ragged: offsets must begin with 0, never fall and end with the {len(values)} "
                f"values, found {offsets[0]} to {offsets[-1]}"
            )
        self._values, self._offsets = values, offsets

    @classmethod
    def _trusted(cls, values: np.ndarray, offsets: np.ndarray) -> Ragged:
        """Make one from arrays that are known to fit."""
        made = object.__new__(cls)
        made._values, made._offsets = values, offsets
        return made

    @classmethod
    def from_rows(cls, rows: Sequence[Any], dtype: Any = None) -> Ragged:
        """Copy rows into one; they must agree in all axes but the first.

        Parameters
        ----------
        rows : sequence of array_like
            Each with at least one axis.
        dtype : dtype, optional
            The dtype of the values. By default NumPy chooses it for the values in the rows, or
            float64 if there are none; but integers stay integers, even signed and unsigned ones
            together.
        """
        try:
            if dtype is None:
                arrays = [array_of(row) for row in rows]
            else:
                arrays = [np.asarray(untracked(row), dtype) for row in rows]
            if any(array.ndim == 0 for array in arrays):
                raise DatasetError("Ragged: each row needs an axis, found a scalar")
            if len({array.shape[1:] for array in arrays}) > 1:
                shapes = ", ".join(sorted({str(array.shape) for array in arrays})[:4])
                problem = f"rows may differ in their first axis alone, found {shapes}"
                raise DatasetError(f"Ragged: {problem}")
            values = concatenated(arrays) if arrays else np.empty(0, dtype or np.float64)
        except ValueError as error:
            raise DatasetError(f"Ragged: {error}") from error
        return cls._trusted(values, offsets_of([len(array) for array in arrays]))

    @classmethod
    def concatenate(cls, parts: Sequence[Ragged]) -> Ragged:
        """Return the rows of all parts, in order; there must be at least one part."""
        if len(parts) == 1:
            return parts[0]
        lengths = np.concatenate([part.lengths for part in parts])
        return cls._trusted(concatenated([part.values for part in parts]), offsets_of(lengths))

    @property
    def values(self) -> np.ndarray:
        """All rows, one after another, ``(total, ...)``."""
        return self._values

    @property
    def offsets(self) -> np.ndarray:
        """Where rows begin and end, int64 ``(n + 1,)``."""
        return self._offsets

    @property
    def lengths(self) -> np.ndarray:
        """How long each row is, int64 ``(n,)``."""
        lengths: np.ndarray = np.diff(self._offsets)
        return lengths

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the values."""
        return self._values.dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Like an array's: the number of rows, None for their length, then further axes."""
        return (len(self), None, *self._values.shape[1:])

    @property
    def nbytes(self) -> int:
        """Bytes of the values and offsets."""
        return self._values.nbytes + self._offsets.nbytes

    def __len__(self) -> int:
        return self._offsets.size - 1

    @overload
    def __getitem__(self, index: int | np.integer) -> np.ndarray: ...
    @overload
    def __getitem__(self, index: slice) -> Ragged: ...
    def __getitem__(self, index: int | np.integer | slice) -> np.ndarray | Ragged:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return self.take(np.arange(start, stop, step))
            stop = max(start, stop)
            begin, end = self._offsets[start], self._offsets[stop]
            offsets = self._offsets[start : stop + 1] - begin
            return Ragged._trusted(self._values[begin:end], offsets)
        place = int(index) + len(self) if index < 0 else int(index)
        if not 0 <= place < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        row: np.ndarray = self._values[self._offsets[place] : self._offsets[place + 1]]
        return row

    def __iter__(self) -> Iterator[np.ndarray]:
        bounds = self._offsets.tolist()
        return (self._values[a:b] for a, b in itertools.pairwise(bounds))

    def take(self, indices: np.ndarray) -> Ragged:
        """Copy some rows together.

        Parameters
        ----------
        indices : numpy.ndarray
            Which rows, integers ``(m,)``, in any order, with repetitions.
        """
        places = np.asarray(indices, np.int64)
        starts = self._offsets[:-1][places]
        lengths = self._offsets[1:][places] - starts
        return Ragged._trusted(rows_of(self._values, starts, lengths), offsets_of(lengths))

    def pad(self, length: int | None = None, value: Any = 0) -> np.ndarray:
        """Return an array ``(n, length, ...)`` whose rows are padded with a value.

        Raises
        ------
        DatasetError
            If a row is longer than ``length``. By default ``length`` is the longest row's.
        """
        lengths = self.lengths
        longest = int(lengths.max(initial=0))
        width = longest if length is None else length
        if longest > width:
            raise DatasetError(
                f"row {int(lengths.argmax())} has {longest} values and does not fit {width}"
            )
        out = np.full((len(self), width, *self._values.shape[1:]), value, self.dtype)
        out[np.arange(width) < lengths[:, None]] = self._values
        return out

    def to_list(self) -> list[Any]:
        """Return the rows as lists of Python numbers."""
        return [row.tolist() for row in self]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ragged):
            return NotImplemented
        return np.array_equal(self._offsets, other._offsets) and np.array_equal(
            self._values, other._values
        )

    __hash__ = None  # type: ignore[assignment]

    def __psnb_arrays__(self, of_array: Callable[[np.ndarray], np.ndarray]) -> Ragged:
        """Return one with a function applied to its arrays; see `psnb._src.utils.ownership`."""
        return Ragged._trusted(of_array(self._values), of_array(self._offsets))

    def __reduce__(self) -> tuple[Any, ...]:
        return Ragged, (self._values, self._offsets)

    def __repr__(self) -> str:
        shape = ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"Ragged(({shape}), {self.dtype}, {len(self._values)} values)"


def offsets_of(lengths: Any) -> np.ndarray:
    """Return where rows of these lengths begin and end, as `Ragged` has it."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
