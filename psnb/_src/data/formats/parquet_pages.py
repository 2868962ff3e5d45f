"""Checks of the unpacked size of a Parquet file's pages before pyarrow unpacks them.

A few bytes may claim pages of gigabytes and, with a dictionary or runs of the same values, unpack
to them. pyarrow allocates what they claim. So everything that it reads of a column is checked here
first.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from psnb._src.data.formats.parquet_footer import ColumnChunk
from psnb._src.data.formats.tables import pyarrow
from psnb._src.data.formats.thrift import read_struct
from psnb._src.data.formats.words import half_word
from psnb.errors import DatasetError


@njit(cache=True, nogil=True)
def longest_value(data):  # type: ignore[no-untyped-def]
    """Return the length of the longest of byte strings, each after its length in four bytes."""
    longest = at = 0
    while at + 4 <= data.size:
        size = int(half_word(data, at))
        longest = max(longest, min(size, data.size))
        at += 4 + size
    return longest


_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3
_HEADERS = {_DATA: 5, _DICTIONARY: 7, _DATA_2: 8}
_DICTIONARY_CODES, _DELTA_STRINGS = (2, 8), 7
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_UNCOMPRESSED, _CODECS = 0, {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}

_GROWTH = 256
"""How many times its size as stored a column may grow anyway: its bytes are held all the same."""


class TooWide(Exception):  # noqa: N818 - it is not an error, but a hint
    """Rows may take so much that fewer of them must be read at a time: as many as it says."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a row group, by what the footer says of it.

    Parameters
    ----------
    name : str
        The path of its name.
    values : int
        How many it has, missing ones too.
    width : int
        The bytes of one value; 0 if they differ.
    repeated : bool
        Whether a row has any number of them.
    codec : int
        How its pages are compressed, as Parquet numbers that.
    """

    name: str
    values: int
    width: int
    repeated: bool
    codec: int


@dataclass(frozen=True, slots=True)
class _Page:
    kind: int
    unpacked: int
    values: int
    encoding: int
    body: np.ndarray


class CheckedFile(io.RawIOBase):
    """A Parquet file for pyarrow, which reads each column of a row group in one piece.

    Parameters
    ----------
    file : binary file
        It stays open.
    limit : int
        How many bytes a row may take.
    """

    def __init__(self, file: Any, limit: int):
        super().__init__()
        self._file = file
        self._limit = limit
        self._size = file.seek(0, io.SEEK_END)
        self._columns: dict[int, list[Column]] = {}
        self._rows = 0
        self._where = ""

    def expect(self, chunks: list[ColumnChunk], schemas: list[Any], rows: int, where: str) -> None:
        """Tell which columns will be read, how many rows at a time, and their name for errors.

        Reading raises `TooWide` if those are too many, and `DatasetError` if one is.

        Raises
        ------
        DatasetError
            If the file's schema has more or fewer of them.
        """
        if len(chunks) != len(schemas):
            raise DatasetError(f"{where}: it has {len(chunks)} columns, the file {len(schemas)}")
        self._rows, self._where = rows, where
        self._columns = {}
        for chunk, schema in zip(chunks, schemas, strict=True):
            begin = chunk.data_offset
            if 0 < chunk.dictionary_offset < begin:
                begin = chunk.dictionary_offset
            width = _WIDTHS.get(schema.physical_type, max(0, schema.length))
            repeated = schema.max_repetition_level > 0
            column = Column(schema.path, chunk.values, width, repeated, chunk.codec)
            self._columns.setdefault(begin, []).append(column)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go somewhere else; return the position."""
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        """Return the position."""
        return int(self._file.tell())

    def read(self, size: int = -1) -> bytes:
        """Return ``size`` bytes, or as many as there are.

        Raises
        ------
        TooWide, DatasetError
            As `expect` says.
        """
        at = self.tell()
        # Less than what is claimed: memory is taken for it before it is read.
        left = max(0, self._size - at)
        data: bytes = self._file.read(left if size < 0 else min(size, left))
        if self._columns:
            if at not in self._columns:
                raise DatasetError(f"{self._where}: no column begins at byte {at}")
            for column in self._columns[at]:
                self._check(column, data)
        return data

    def _check(self, column: Column, data: bytes) -> None:
        allowed = max(self._limit, _GROWTH * len(data))
        taken, entry, widest = 0, 0, column.width
        for page in self._pages(column, data):
            self._allow(column, page.unpacked, allowed)
            if page.kind == _DICTIONARY:
                entry = column.width or _longest(page, column)
                continue
            width = column.width
            if not width and page.encoding in _DICTIONARY_CODES:
                width = entry
            elif page.encoding == _DELTA_STRINGS:
                # Each may repeat the one before it.
                width = page.unpacked
            if column.repeated:
                # How many a row has of them is known when they are unpacked.
                taken += max(page.unpacked, page.values * width)
            else:
                widest = max(widest, width)
                taken += 0 if column.width else page.unpacked
            self._allow(column, max(taken, widest), allowed)
        self._allow(column, widest, allowed)  # also without pages
        if widest * self._rows > allowed:
            raise TooWide(allowed // widest)

    def _allow(self, column: Column, size: int, allowed: int) -> None:
        if size > allowed:
            raise DatasetError(
                f"{self._where}: column {column.name!r} unpacks to {size} bytes or more, where its "
                f"size and max_record_bytes={self._limit} allow {allowed}; give the reader more, "
                "if the file is right"
            )

    def _pages(self, column: Column, data: bytes) -> Iterator[_Page]:
        """Yield the pages that pyarrow will unpack."""
        view = np.frombuffer(data, np.uint8)
        at = values = 0
        while values < column.values and at < len(data):
            try:
                header, at = read_struct(view, at)
                kind, unpacked, packed = header[1], header[2], header[3]
                inner = header[_HEADERS[kind]] if kind in _HEADERS else {1: 0, 2: 0}
                count, encoding = inner[1], inner[4 if kind == _DATA_2 else 2]
                if min(unpacked, packed, count) < 0:
                    raise ValueError("a size is below 0")
            except (KeyError, TypeError, ValueError) as error:
                problem = f"the header of a page is corrupt: {error}"
                raise DatasetError(f"{self._where}: column {column.name!r}: {problem}") from error
            if kind in _HEADERS:
                yield _Page(kind, unpacked, count, encoding, view[at : at + packed])
            values += 0 if kind == _DICTIONARY else count
            at += packed


def _longest(page: _Page, column: Column) -> int:
    """Return the bytes of the longest value of a dictionary; of one not understood, its own."""
    body: Any = page.body
    if column.codec in _CODECS:
        arrow = pyarrow()
        try:
            body = arrow.Codec(_CODECS[column.codec]).decompress(body, page.unpacked)
        except (OSError, arrow.ArrowException):
            return page.unpacked
    elif column.codec != _UNCOMPRESSED:
        return page.unpacked
    return int(longest_value(np.frombuffer(body, np.uint8)))
