"""Checks of the unpacked size of a Parquet file's pages before pyarrow unpacks them.

A few bytes may claim pages of gigabytes and, with a dictionary or runs of the same values, unpack
to them. pyarrow allocates what they claim. So everything that it reads of a column is checked here
first.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from psnb._src.data.formats.parquet_footer import ColumnChunk
from psnb._src.data.formats.tables import pyarrow
from psnb._src.data.formats.thrift import I32, field, find_fields
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
_HEADER = np.array(
    [
        *(field(I32, number) for number in (1, 2, 3)),
        *(field(I32, *path) for path in ((5, 1), (5, 2), (7, 1), (7, 2), (8, 1), (8, 4))),
    ]
)
_COUNTS = {_DATA: 3, _DICTIONARY: 5, _DATA_2: 7}
"""Which field of a page's header says how many values there are; the next one is the encoding."""

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


class _Page(NamedTuple):
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
        self._columns: dict[int, list[tuple[ColumnChunk, Any]]] = {}
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
            self._columns.setdefault(begin, []).append((chunk, schema))

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

    def read(self, size: int = -1) -> Any:
        """Return ``size`` bytes, or as many as there are.

        Raises
        ------
        TooWide, DatasetError
            As `expect` says.
        """
        at = self.tell()
        # Less than what is claimed: memory is taken for it before it is read.
        left = max(0, self._size - at)
        data = pyarrow().allocate_buffer(left if size < 0 else min(size, left))
        # Into pyarrow's memory, which it uses again: new bytes would be new pages each time.
        data = data.slice(0, self._file.readinto(data))
        if self._columns:
            if at not in self._columns:
                raise DatasetError(f"{self._where}: no column begins at byte {at}")
            for chunk, schema in self._columns[at]:
                self._check(chunk, schema, data)
        return data

    def _check(self, chunk: ColumnChunk, schema: Any, data: Any) -> None:
        name, allowed = schema.path, max(self._limit, _GROWTH * len(data))
        fixed = _WIDTHS.get(schema.physical_type, max(0, schema.length))  # 0 if widths differ
        taken, entry, widest = 0, 0, fixed
        for page in self._pages(chunk, name, data):
            self._allow(name, page.unpacked, allowed)
            if page.kind == _DICTIONARY:
                entry = fixed or _longest(page, chunk.codec)
                continue
            width = fixed
            if not width and page.encoding in _DICTIONARY_CODES:
                width = entry
            elif page.encoding == _DELTA_STRINGS:
                # Each may repeat the one before it.
                width = page.unpacked
            if schema.max_repetition_level > 0:
                # How many a row has of them is known when they are unpacked.
                taken += max(page.unpacked, page.values * width)
            else:
                widest = max(widest, width)
                taken += 0 if fixed else page.unpacked
            self._allow(name, max(taken, widest), allowed)
        self._allow(name, widest, allowed)  # also without pages
        if widest * self._rows > allowed:
            raise TooWide(allowed // widest)

    def _allow(self, name: str, size: int, allowed: int) -> None:
        if size > allowed:
            raise DatasetError(
                f"{self._where}: column {name!r} unpacks to {size} bytes or more, where its "
                f"size and max_record_bytes={self._limit} allow {allowed}; give the reader more, "
                "if the file is right"
            )

    def _pages(self, chunk: ColumnChunk, name: str, data: Any) -> Iterator[_Page]:
        """Yield the pages that pyarrow will unpack."""
        view = np.frombuffer(data, np.uint8)
        at = values = 0
        while values < chunk.values and at < len(data):
            at, found = find_fields(view, at, _HEADER)
            header = dict(found.tolist())  # where a field is there twice, the last counts
            kind, unpacked, packed = (header.get(place, -1) for place in range(3))
            first = _COUNTS.get(kind)
            count, encoding = (0 if first is None else header.get(first + i, -1) for i in range(2))
            if min(at, kind, unpacked, packed, count, encoding) < 0:
                problem = "the header of a page is corrupt"
                raise DatasetError(f"{self._where}: column {name!r}: {problem}")
            if first is not None:
                yield _Page(kind, unpacked, count, encoding, view[at : at + packed])
            values += 0 if kind == _DICTIONARY else count
            at += packed


def _longest(page: _Page, codec: int) -> int:
    """Return the bytes of the longest value of a dictionary; of one not understood, its own."""
    body: Any = page.body
    if codec in _CODECS:
        arrow = pyarrow()
        try:
            body = arrow.Codec(_CODECS[codec]).decompress(body, page.unpacked)
        except (OSError, arrow.ArrowException):
            return page.unpacked
    elif codec != _UNCOMPRESSED:
        return page.unpacked
    return int(longest_value(np.frombuffer(body, np.uint8)))
