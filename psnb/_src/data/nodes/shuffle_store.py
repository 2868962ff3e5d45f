"""Rows that can be overwritten: where a shuffle keeps elements."""

from __future__ import annotations

import numpy as np

from psnb._src.data.block import (
    Block,
    Column,
    Origin,
    concatenate,
    different_dtypes,
    leaf_dtype,
    stack,
    take,
)
from psnb._src.data.nesting import is_text
from psnb._src.data.ragged import Ragged, rows_of


class RaggedRows:
    """Rows in one buffer: new ones go to its end; when that is full, rows in use are moved.

    Parameters
    ----------
    like : Ragged
        Of the dtype and trailing axes of the rows to be.
    """

    def __init__(self, like: Ragged) -> None:
        self._values = np.empty((0, *like.values.shape[1:]), like.dtype)
        self._starts = self._lengths = np.empty(0, np.int64)
        self._end = 0  # of the written part of the buffer

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the values."""
        return self._values.dtype

    def fits(self, rows: Ragged) -> bool:
        """Return whether rows have this buffer's dtype and trailing axes."""
        return rows.dtype == self.dtype and rows.shape[2:] == self._values.shape[1:]

    def grow(self, count: int) -> None:
        """Grow to ``count`` rows, the new ones empty."""
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


class RowStore:
    """Rows that can be overwritten; grows only as needed."""

    def __init__(self) -> None:
        self._like: Block | None = None
        self._columns: list[np.ndarray | RaggedRows] = []
        self._capacity = 0

    def put(self, rows: np.ndarray, block: Block) -> None:
        if not len(rows):
            return
        if self._like is not None and (self._like.origin is None) != (block.origin is None):
            block = block._replace(origin=self._like.origin and _unknown(block.count))
        columns = _columns(block)
        if self._like is None:
            self._like = block.part(0, 0)._replace(count=0)
            self._columns = [_empty(column) for column in columns]
        elif block.nesting != self._like.nesting:
            # The leaves may be in another order; if the form differs, this raises.
            block = concatenate([self._like, block])
            columns = _columns(block)
        if block.loose and not self._like.loose:
            self._like = self._like._replace(loose=True)
        self._reserve(int(rows.max()) + 1)
        for index, (column, new) in enumerate(zip(self._columns, columns, strict=True)):
            if isinstance(column, RaggedRows):
                if isinstance(new, Ragged) and column.fits(new):
                    column.put(rows, new)
                    continue
            elif (column.dtype, column.shape[1:]) == (new.dtype, new.shape[1:]):
                column[rows] = new
                continue
            if column.dtype != object and leaf_dtype(new) != column.dtype:
                raise different_dtypes("shuffle", (column.dtype, leaf_dtype(new)))
            # Each element's leaf on its own: their shapes differ.
            if isinstance(column, RaggedRows) or column.dtype != object or column.ndim > 1:
                column = self._columns[index] = _as_objects(column)
            for row, leaf in zip(rows.tolist(), new, strict=True):
                column[row] = leaf

    def get(self, rows: np.ndarray) -> Block:
        assert self._like is not None  # nothing is taken before something was put
        found = [
            column.take(rows) if isinstance(column, RaggedRows) else _filled(take(column, rows))
            for column in self._columns
        ]
        origin = self._like.origin and Origin(*found[-2:])  # type: ignore[arg-type]
        columns = found[:-2] if origin else found
        return Block(self._like.nesting, tuple(columns), len(rows), origin, self._like.loose)

    def _reserve(self, rows: int) -> None:
        if rows > self._capacity:
            self._capacity = max(rows, 2 * self._capacity, 256)
            for index, column in enumerate(self._columns):
                if isinstance(column, RaggedRows):
                    column.grow(self._capacity)
                else:
                    self._columns[index] = grown(column, self._capacity)


def _columns(block: Block) -> list[Column]:
    return [*block.columns, *(block.origin or ())]


def _unknown(count: int) -> Origin:
    return Origin(np.full(count, "not from a file", object), np.arange(count))


def _empty(column: Column) -> np.ndarray | RaggedRows:
    if isinstance(column, Ragged):
        return RaggedRows(column)
    if column.dtype.kind in "SU":
        return np.empty(0, object)
    return np.empty((0, *column.shape[1:]), column.dtype)


def grown(column: np.ndarray, rows: int) -> np.ndarray:
    grown = np.empty((rows, *column.shape[1:]), column.dtype)
    grown[: len(column)] = column
    return grown


def _as_objects(column: np.ndarray | RaggedRows) -> np.ndarray:
    objects = np.empty(len(column), object)
    rows = column.take(np.arange(len(column))) if isinstance(column, RaggedRows) else column
    for index, row in enumerate(rows):
        objects[index] = row.copy()
    return objects


def _filled(column: np.ndarray) -> Column:
    if column.dtype != object or column.ndim > 1 or is_text(column[0]):
        return column
    return stack(list(column))
