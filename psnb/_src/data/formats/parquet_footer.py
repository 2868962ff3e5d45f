"""What a Parquet file's footer says of row groups and columns, read without pyarrow.

pyarrow opens and reads corrupt files safely, but to ask it about a row group or a column of one
may end the process: an error in C++ that nothing catches.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psnb._src.data.formats import footer_kernels as kernels
from psnb.errors import DatasetError

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
        Where its pages begin; 0 if that is not said.
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
        What `footer_kernels` has found of its columns.
    """

    size: int
    rows: int
    columns: NDArray[np.int64]

    def chunks(self) -> list[ColumnChunk]:
        """Return its columns."""
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
    valid, groups, columns = kernels.find_columns(np.frombuffer(file.read(length), np.uint8))
    if not valid:
        raise DatasetError(f"{path}: the footer is corrupt")
    return [RowGroup(size, rows, columns[first:end]) for size, rows, first, end in groups.tolist()]
