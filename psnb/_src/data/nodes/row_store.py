"""The rows that the buffer of a shuffle holds.

Columns of one number an element are one matrix for each dtype. So elements that are drawn at random
are few places in memory, not one for each column, and few calls put or take many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from psnb._src.data.block import (
    Block,
    Column,
    Origin,
    different_dtypes,
    leaf_dtype,
    objects,
    stack_any,
)
from psnb._src.data.nesting import flatten_like, is_text
from psnb._src.data.ragged import Ragged, offsets_of, rows_of


class NumberRows:
    """Columns of one number an element: those of an element are next to each other.

    Parameters
    ----------
    count : int
        How many columns.
    dtype : dtype
        The dtype of all.
    """

    def __init__(self, count: int, dtype: np.dtype) -> None:
        self._rows = np.empty((0, count), dtype)

    def grow(self, count: int) -> None:
        """Grow to ``count`` rows."""
        grow(self._rows, count)

    def put(self, places: np.ndarray, columns: Sequence[Any]) -> None:
        """Overwrite the rows at some places with others, a column of each."""
        rows = np.empty((len(places), len(columns)), self._rows.dtype)
        for index, column in enumerate(columns):
            rows[:, index] = column
        self._rows[places] = rows

    def take(self, places: np.ndarray) -> list[Column]:
        """Copy some rows together, each column in memory of its own."""
        return [column.copy() for column in self._rows.take(places, 0).T]


class ArrayRows:
    """A column of anything else but a `Ragged`; see `NumberRows`."""

    def __init__(self, rows: np.ndarray, leaves: Any = None) -> None:
        self._rows, self._leaves = rows, leaves  # these what objects are, once known

    def grow(self, count: int) -> None:
        grow(self._rows, count)

    def put(self, places: np.ndarray, columns: Sequence[Any]) -> None:
        (column,) = columns
        if column.dtype.kind == "O":
            leaves = _what(column)
            # Not `in`: NumPy takes None for float64.
            if self._leaves is not None and self._leaves != leaves:
                raise different_dtypes("shuffle", (self._leaves, leaves))
            self._leaves = leaves
        self._rows[places] = column

    def take(self, places: np.ndarray) -> list[Column]:
        column = self._rows.take(places, 0)
        if column.dtype != object or column.ndim > 1 or is_text(column[0]):
            return [column]
        return [stack_any(list(column))]


class RaggedRows:
    """A `Ragged` in one buffer; see `NumberRows`.

    New rows go to the buffer's end; when that is full, rows in use are moved.

    Parameters
    ----------
    like : Ragged
        Of the dtype and trailing axes of the rows to be.
    """

    def __init__(self, like: Ragged) -> None:
        self._values = np.empty((0, *like.values.shape[1:]), like.dtype)
        self._starts = self._lengths = np.empty(0, np.int64)
        self._end = 0  # of the written part of the buffer

    def grow(self, count: int) -> None:
        """Grow to ``count`` rows, the new ones empty."""
        more = np.zeros(count - len(self._starts), np.int64)
        starts, lengths = (np.concatenate([old, more]) for old in (self._starts, self._lengths))
        self._starts, self._lengths = starts, lengths  # if there was memory for both

    def put(self, places: np.ndarray, columns: Sequence[Any]) -> None:
        """Overwrite the rows at some places with those of a `Ragged`."""
        (rows,) = columns
        values, offsets = rows.values, rows.offsets
        self._lengths[places] = 0
        if self._end + len(values) > len(self._values):
            self._move(len(values))
        stop = self._end + len(values)
        self._values[self._end : stop] = values
        self._starts[places] = self._end + offsets[:-1]
        self._lengths[places] = rows.lengths
        self._end = stop

    def take(self, places: np.ndarray) -> list[Column]:
        """Copy some rows together."""
        lengths = self._lengths[places]
        rows = rows_of(self._values, self._starts[places], lengths)
        return [Ragged(rows, offsets_of(lengths))]

    def _move(self, more: int) -> None:
        """Move what is in use to a buffer that has as much room again."""
        kept = rows_of(self._values, self._starts, self._lengths)
        starts = np.cumsum(self._lengths) - self._lengths
        values = np.empty((2 * (len(kept) + more), *kept.shape[1:]), kept.dtype)
        values[: len(kept)] = kept
        # Not before there was memory for all.
        self._values, self._starts, self._end = values, starts, len(kept)


class RowStore:
    """Elements in numbered rows; those that are free are used again.

    Parameters
    ----------
    expected : int
        Up to how many rows room may be made before it is needed.

    Attributes
    ----------
    made : int
        How many rows there are, free or not.
    """

    def __init__(self, expected: int) -> None:
        self.made = 0
        self._free = np.empty(0, np.int64)
        self._expected = expected
        self._like: Block | None = None
        self._kinds: list[tuple[np.dtype, tuple[int | None, ...]]] = []  # of the columns
        self._held: list[tuple[NumberRows | ArrayRows | RaggedRows, list[int]]] = []
        self._capacity = 0

    def put(self, block: Block) -> np.ndarray:
        """Put the elements of a block into free rows; returns which."""
        missing = block.count - len(self._free)
        if missing > 0:
            made = np.arange(self.made, self.made + missing)
            self._free, self.made = np.concatenate([self._free, made]), self.made + missing
        rows = self._free[: block.count]
        self._write(rows, block)
        self._free = self._free[block.count :]  # they are free as before if that fails
        return rows

    def free(self, rows: np.ndarray) -> None:
        """Have rows used again; they stay as they are until then."""
        self._free = np.concatenate([self._free, rows])

    def take(self, rows: np.ndarray) -> Block:
        """Copy the elements in some rows together."""
        assert self._like is not None  # nothing is taken before something was put
        found: list[Any] = [None] * len(self._kinds)
        for held, group in self._held:
            for index, column in zip(group, held.take(rows), strict=True):
                found[index] = column
        origin = self._like.origin and Origin(*found[-2:])
        columns = found[:-2] if origin else found
        return Block(self._like.nesting, tuple(columns), len(rows), origin, self._like.loose)

    def _write(self, rows: np.ndarray, block: Block) -> None:
        if self._like is not None and (self._like.origin is None) != (block.origin is None):
            files = objects(["not from a file"]).repeat(block.count)
            unknown = Origin(files, np.arange(block.count))
            block = block._replace(origin=self._like.origin and unknown)
        if self._like is None:
            # A copy, so that the block's memory is not kept.
            self._like = block.take(np.empty(0, np.int64))
            self._hold(_columns(self._like))
        elif block.nesting != self._like.nesting:
            # The leaves may be in another order; if the form differs, this raises.
            leaves = flatten_like(self._like.nesting, block.whole())
            block = block._replace(nesting=self._like.nesting, columns=tuple(leaves))
        if block.loose and not self._like.loose:
            self._like = self._like._replace(loose=True)
        self._reserve(self.made)
        columns = _columns(block)
        if _kinds(columns) != self._kinds:
            columns = [self._fitted(index, column) for index, column in enumerate(columns)]
        for held, group in self._held:
            held.put(rows, [columns[index] for index in group])

    def _hold(self, columns: list[Column]) -> None:
        """Begin to hold such columns, those of numbers of one dtype together."""
        groups: dict[Any, list[int]] = {}
        for index, (dtype, shape) in enumerate(_kinds(columns)):
            together = not shape and dtype.kind in "biufc"
            groups.setdefault(dtype if together else index, []).append(index)
        for key, group in groups.items():
            column = columns[group[0]]
            if isinstance(column, Ragged):
                self._held.append((RaggedRows(column), group))
            elif isinstance(key, np.dtype):
                self._held.append((NumberRows(len(group), column.dtype), group))
            else:
                text = column.dtype.kind in "SU"
                columns[group[0]] = column = np.empty(0, object) if text else column.copy()
                self._held.append((ArrayRows(column), group))
        self._kinds = _kinds(columns)

    def _fitted(self, index: int, column: Column) -> Column:
        """Return a column as those are that are held; these become objects if its shape differs."""
        dtype, shape = kind = self._kinds[index]
        if kind == (column.dtype, column.shape[1:]):
            return column
        if dtype.kind != "O" and leaf_dtype(column) != dtype:
            raise different_dtypes("shuffle", (dtype, leaf_dtype(column)))
        if dtype.kind != "O" or shape:
            self._as_objects(index)
        return objects(list(column))

    def _as_objects(self, index: int) -> None:
        """Hold each leaf of a column on its own."""
        place = next(at for at, (_, group) in enumerate(self._held) if index in group)
        held, group = self._held[place]
        every = np.arange(self._capacity)
        columns: dict[int, Any] = dict(zip(group, held.take(every), strict=True))
        column = columns.pop(index)
        leaves = ArrayRows(objects([leaf.copy() for leaf in column]), _what(column))
        if columns:
            rest = NumberRows(len(columns), self._kinds[index][0])
            rest.grow(self._capacity)
            rest.put(every, list(columns.values()))
            self._held.append((rest, list(columns)))
        self._held[place] = leaves, [index]  # if there was memory for all
        self._kinds[index] = np.dtype(object), ()

    def _reserve(self, rows: int) -> None:
        if rows > self._capacity:
            capacity = max(rows, min(self._expected, self._capacity * 5 // 4))
            for held, _ in self._held:
                held.grow(capacity)
            self._capacity = capacity  # if there was memory for all


def _columns(block: Block) -> list[Column]:
    return [*block.columns, *(block.origin or ())]


def _what(column: Column) -> Any:
    """Return what the leaves of a column are; scalars have no byte order but this machine's."""
    found = leaf_dtype(column)
    return found.newbyteorder("=") if isinstance(found, np.dtype) else found


def _kinds(columns: list[Column]) -> list[tuple[np.dtype, tuple[int | None, ...]]]:
    return [(column.dtype, column.shape[1:]) for column in columns]


def grow(array: np.ndarray, rows: int) -> None:
    """Grow an array that nothing else uses; a large one is moved without a copy."""
    array.resize((rows, *array.shape[1:]), refcheck=False)
