"""What a Parquet file's footer says of row groups and their columns, read without pyarrow.

pyarrow opens and reads corrupt files safely, but to ask it about a row group or a column of one may
end the process: an error in C++ that nothing catches.

Where a field is there twice, the last one counts, as for Thrift's own reader.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psnb._src.data.formats.thrift import ELEMENT, I32, I64, LIST, STRUCT, field, find_fields
from psnb.errors import DatasetError

_GROUP = 4, ELEMENT
_CHUNK = *_GROUP, 1, ELEMENT
_WANTED = np.array(
    [
        *(field(LIST, 4), field(STRUCT, *_GROUP), field(LIST, *_GROUP, 1), field(STRUCT, *_CHUNK)),
        *(field(I64, *_GROUP, 2), field(I64, *_GROUP, 3)),
        *(field(I32, *_CHUNK, 3, 4), *(field(I64, *_CHUNK, 3, number) for number in (5, 9, 11))),
    ]
)
_GROUPS_BEGIN, _GROUP_BEGINS, _CHUNKS_BEGIN, _CHUNK_BEGINS = range(4)
_OF_GROUP, _OF_CHUNK = range(4, 6), range(6, 10)
"""The fields in the order in which `find_columns` has them."""


def find_columns(data: np.ndarray) -> tuple[bool, NDArray[np.int64], NDArray[np.int64]]:
    """Return what a footer (uint8) says: whether it is valid, its row groups and their columns.

    Of a row group there are its bytes and rows, and the range of its columns; of a column the
    attributes of a `ColumnChunk`. Both have 0 for what the footer does not say.
    """
    end, found = find_fields(data, 0, _WANTED)
    # Of a list of groups that is there twice, the last counts.
    which, values = found[np.flatnonzero(found[:, 0] == _GROUPS_BEGIN)[-1:].sum() :].T
    # The group and the column that each field is of.
    group = np.cumsum(which == _GROUP_BEGINS) - 1
    column = np.cumsum(which == _CHUNK_BEGINS) - 1
    groups = np.zeros((np.count_nonzero(which == _GROUP_BEGINS), 4), np.int64)
    columns = np.zeros((np.count_nonzero(which == _CHUNK_BEGINS), 4), np.int64)
    for table, row, fields in ((groups, group, _OF_GROUP), (columns, column, _OF_CHUNK)):
        for place, number in enumerate(fields):
            here = which == number
            table[row[here], place] = values[here]
    ends = np.searchsorted(group[which == _CHUNK_BEGINS], np.arange(len(groups)), "right")
    groups[:, 2:] = ends[:, None]
    lists = which == _CHUNKS_BEGIN
    groups[group[lists], 2] = column[lists] + 1
    return end >= 0, groups, columns


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
