"""What a Parquet file's footer says of row groups and their columns, read without pyarrow.

pyarrow opens and reads corrupt files safely, but to ask it about a row group or a column of one may
end the process: an error in C++ that nothing catches.

The footer is in Thrift's compact protocol. Unneeded fields are skipped. Where a field is there
twice, the last one counts, as for Thrift's own reader. Anything that this reader may understand
otherwise is invalid here.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from psnb._src.data.formats.thrift import (
    BINARY,
    BYTE,
    DOUBLE,
    FALSE,
    I16,
    I32,
    I64,
    LIST,
    SET,
    STRUCT,
    TRUE,
    signed,
    unsigned,
)
from psnb.errors import DatasetError

_DEEPEST = 32

# The types of Thrift's structures and lists.
_OTHER, _FILE, _GROUPS, _GROUP, _CHUNKS, _CHUNK, _COLUMN = range(7)

SIZE, ROWS, FIRST_COLUMN, END_COLUMN = range(4)
"""What is found of a row group: its bytes and rows, and the range of its columns."""

CODEC, VALUES, DATA_OFFSET, DICTIONARY_OFFSET = range(4)
"""What is found of a column."""


@njit(cache=True, nogil=True)
def find_columns(data):  # type: ignore[no-untyped-def]
    """Return what a footer (uint8) says: whether it is valid, its row groups and their columns.

    Both are arrays of int64, with 0 for what the footer does not say.
    """
    groups, columns = np.zeros((8, 4), np.int64), np.zeros((64, 4), np.int64)
    group, column, at, depth = -1, -1, 0, 0
    roles = np.zeros(_DEEPEST, np.int64)
    left = np.zeros(_DEEPEST, np.int64)  # of a list; -1 for a structure
    last = np.zeros(_DEEPEST, np.int64)  # a structure's last field; of a list what its elements are
    roles[0], left[0] = _FILE, -1
    while depth >= 0:
        role, number = roles[depth], np.int64(0)
        if left[depth] == 0:
            depth -= 1
            continue
        if left[depth] > 0:
            left[depth] -= 1
            kind = last[depth]
        else:
            if at >= data.size:
                return False, groups, columns
            head = np.int64(data[at])
            at += 1
            if head == 0:
                depth -= 1
                continue
            if head >> 4:
                number = last[depth] + (head >> 4)
            else:
                number, at = signed(data, at)
            if at < 0 or number < 0 or number >= 1 << 15:
                return False, groups, columns
            last[depth], kind = number, head & 15
            if kind in (TRUE, FALSE):
                continue
        if kind in (TRUE, FALSE, BYTE):
            at += 1
        elif kind in (I16, I32, I64):
            value, at = signed(data, at)
            if role == _GROUP and kind == I64:
                if number == 2:
                    groups[group, SIZE] = value
                elif number == 3:
                    groups[group, ROWS] = value
            elif role == _COLUMN:
                if number == 4 and kind == I32:
                    columns[column, CODEC] = value
                elif number == 5 and kind == I64:
                    columns[column, VALUES] = value
                elif number == 9 and kind == I64:
                    columns[column, DATA_OFFSET] = value
                elif number == 11 and kind == I64:
                    columns[column, DICTIONARY_OFFSET] = value
        elif kind == DOUBLE:
            at += 8
        elif kind == BINARY:
            size, at = unsigned(data, at)
            if at < 0 or size < 0 or size > data.size - at:
                return False, groups, columns
            at += size
        elif kind in (STRUCT, LIST, SET):
            depth += 1
            if depth == _DEEPEST:
                return False, groups, columns
            roles[depth], left[depth], last[depth] = _OTHER, -1, 0
            if kind != STRUCT:
                if at >= data.size:
                    return False, groups, columns
                head = np.int64(data[at])
                at += 1
                size = head >> 4
                if size == 15:
                    size, at = unsigned(data, at)
                if at < 0 or size < 0 or size > data.size - at:
                    return False, groups, columns
                left[depth], last[depth] = size, head & 15
                if kind == LIST and role == _FILE and number == 4:
                    roles[depth] = _GROUPS
                    group = column = -1
                elif kind == LIST and role == _GROUP and number == 1:
                    roles[depth] = _CHUNKS
                    column = groups[group, FIRST_COLUMN] - 1
                    groups[group, END_COLUMN] = column + 1
                if roles[depth] != _OTHER and size > 0 and head & 15 != STRUCT:
                    return False, groups, columns
            elif role == _GROUPS:
                roles[depth] = _GROUP
                group += 1
                if group == len(groups):
                    groups = np.concatenate((groups, np.zeros_like(groups)))
                groups[group] = 0
                groups[group, FIRST_COLUMN] = groups[group, END_COLUMN] = column + 1
            elif role == _CHUNKS:
                roles[depth] = _CHUNK
                column += 1
                if column == len(columns):
                    columns = np.concatenate((columns, np.zeros_like(columns)))
                columns[column] = 0
                groups[group, END_COLUMN] = column + 1
            elif role == _CHUNK and number == 3:
                roles[depth] = _COLUMN
        else:
            return False, groups, columns
        if at < 0 or at > data.size:
            return False, groups, columns
    return True, groups[: group + 1], columns[: column + 1]


_TAIL = 8
"""Bytes after the footer: its length and a magic word."""


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """A column of a row group, by what the footer says of it.

    Parameters
    ----------
    codec : int
        How its pages are compressed, as Parquet numbers that.
    values : int
        How many it has, missing ones too.
    data_offset, dictionary_offset : int
        Where its pages begin; 0 if that is not given.
    """

    codec: int
    values: int
    data_offset: int
    dictionary_offset: int


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group, by what the footer says of it.

    Parameters
    ----------
    size : int
        Its bytes.
    rows : int
        How many it has.
    columns : ndarray
        What `find_columns` has found of its columns.
    """

    size: int
    rows: int
    columns: NDArray[np.int64]

    def chunks(self) -> list[ColumnChunk]:
        return [ColumnChunk(*each) for each in self.columns.tolist()]


def read_footer(file: Any, path: str) -> list[RowGroup]:
    """Read the footer of a file that pyarrow has opened; return the row groups.

    Raises
    ------
    DatasetError
        If it is corrupt.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - _TAIL))
    length = int.from_bytes(file.read(4), "little")
    file.seek(max(0, size - _TAIL - length))
    valid, groups, columns = find_columns(np.frombuffer(file.read(length), np.uint8))
    if not valid:
        raise DatasetError(f"{path}: the footer is corrupt")
    return [RowGroup(size, rows, columns[first:end]) for size, rows, first, end in groups.tolist()]
