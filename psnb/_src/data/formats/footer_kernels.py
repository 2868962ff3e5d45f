"""Reading what a Parquet file's footer says of row groups and their columns, compiled by numba.

The footer is in Thrift's compact protocol. What is not wanted is passed over. Where a field is
there twice, the last one counts, as for Thrift's own reader. What that reader may understand
otherwise is not valid here.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY = 1, 2, 3, 4, 5, 6, 7, 8
_LIST, _SET, _STRUCT = 9, 10, 12
_DEEPEST = 32

# What a structure or a list is.
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
                number, at = _signed(data, at)
            if at < 0 or number < 0 or number >= 1 << 15:
                return False, groups, columns
            last[depth], kind = number, head & 15
            if kind in (_TRUE, _FALSE):
                continue
        if kind in (_TRUE, _FALSE, _BYTE):
            at += 1
        elif kind in (_I16, _I32, _I64):
            value, at = _signed(data, at)
            if role == _GROUP and kind == _I64:
                if number == 2:
                    groups[group, SIZE] = value
                elif number == 3:
                    groups[group, ROWS] = value
            elif role == _COLUMN:
                if number == 4 and kind == _I32:
                    columns[column, CODEC] = value
                elif number == 5 and kind == _I64:
                    columns[column, VALUES] = value
                elif number == 9 and kind == _I64:
                    columns[column, DATA_OFFSET] = value
                elif number == 11 and kind == _I64:
                    columns[column, DICTIONARY_OFFSET] = value
        elif kind == _DOUBLE:
            at += 8
        elif kind == _BINARY:
            size, at = _unsigned(data, at)
            if at < 0 or size < 0 or size > data.size - at:
                return False, groups, columns
            at += size
        elif kind in (_STRUCT, _LIST, _SET):
            depth += 1
            if depth == _DEEPEST:
                return False, groups, columns
            roles[depth], left[depth], last[depth] = _OTHER, -1, 0
            if kind != _STRUCT:
                if at >= data.size:
                    return False, groups, columns
                head = np.int64(data[at])
                at += 1
                size = head >> 4
                if size == 15:
                    size, at = _unsigned(data, at)
                if at < 0 or size < 0 or size > data.size - at:
                    return False, groups, columns
                left[depth], last[depth] = size, head & 15
                if kind == _LIST and role == _FILE and number == 4:
                    roles[depth] = _GROUPS
                    group = column = -1
                elif kind == _LIST and role == _GROUP and number == 1:
                    roles[depth] = _CHUNKS
                    column = groups[group, FIRST_COLUMN] - 1
                    groups[group, END_COLUMN] = column + 1
                if roles[depth] != _OTHER and size > 0 and head & 15 != _STRUCT:
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


@njit(cache=True, nogil=True)
def _unsigned(data, at):  # type: ignore[no-untyped-def]
    """Return a number and the position after it, which is -1 if there is none."""
    value = np.int64(0)
    for shift in range(0, 70, 7):
        if at >= data.size:
            return value, -1
        byte = np.int64(data[at])
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    return value, -1


@njit(cache=True, nogil=True)
def _signed(data, at):  # type: ignore[no-untyped-def]
    value, at = _unsigned(data, at)
    return ((value >> 1) & np.int64((1 << 63) - 1)) ^ -(value & 1), at
