"""Parquet files, read by pyarrow."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from psnb._src.data.formats.files import (
    CHUNK_RECORDS,
    MAX_RECORD_BYTES,
    Chunk,
    checked_limit,
    holds_nothing,
    reading,
    stored,
)
from psnb._src.data.formats.protobuf import half_word
from psnb._src.data.formats.tables import first_missing, listed, pyarrow, to_columns
from psnb.errors import DatasetError

# Reading what a Parquet file's footer says of row groups and their columns, compiled by numba.
#
# The footer is in Thrift's compact protocol. What is not wanted is passed over. Where a field is
# there twice, the last one counts, as for Thrift's own reader. What that reader may understand
# otherwise is not valid here.

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


# What a Parquet file's footer says of row groups and columns, read without pyarrow.
#
# pyarrow opens and reads corrupt files safely, but to ask it about a row group or a column of one
# may end the process: an error in C++ that nothing catches.

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
    valid, groups, columns = find_columns(np.frombuffer(file.read(length), np.uint8))
    if not valid:
        raise DatasetError(f"{path}: the footer is corrupt")
    return [RowGroup(size, rows, columns[first:end]) for size, rows, first, end in groups.tolist()]


# Looking through values of Parquet files, compiled by numba.


@njit(cache=True, nogil=True)
def longest_value(data):  # type: ignore[no-untyped-def]
    """Return the length of the longest of byte strings, each after its length in four bytes."""
    longest = at = 0
    while at + 4 <= data.size:
        size = int(half_word(data, at))
        longest = max(longest, min(size, data.size))
        at += 4 + size
    return longest


# Reading structures of Thrift's compact protocol, as far as the headers of Parquet's pages go.
#
# Lists, sets and maps are in none of those and refused, so nothing is ever larger than what it is
# read from.

_DEEPEST_HEADER = 8


def read_struct(data: memoryview, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Read a structure.

    Parameters
    ----------
    data : memoryview
        Bytes.
    at : int
        Where it begins.

    Returns
    -------
    tuple of dict and int
        By the numbers of its fields: integers as such, structures as dicts, anything else None.
        Then the position after it.

    Raises
    ------
    ValueError
        If there is no valid structure.
    """
    if depth > _DEEPEST_HEADER:
        raise ValueError("structures are nested too deep")
    found: dict[int, Any] = {}
    number = 0
    try:
        while head := data[at]:
            at += 1
            if head >> 4:
                number += head >> 4
            else:
                number, at = _thrift_signed(data, at)
            kind = head & 15
            value: Any = None
            if kind in (_I16, _I32, _I64):
                value, at = _thrift_signed(data, at)
            elif kind == _STRUCT:
                value, at = read_struct(data, at, depth + 1)
            elif kind == _BINARY:
                size, at = _thrift_unsigned(data, at)
                at += size
            elif kind == _BYTE:
                at += 1
            elif kind == _DOUBLE:
                at += 8
            elif kind not in (_TRUE, _FALSE):
                raise ValueError(f"a field of type {kind}")
            found[number] = value
    except IndexError:
        raise ValueError("it is cut short") from None
    return found, at + 1


def _thrift_unsigned(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("a number of more than ten bytes")


def _thrift_signed(data: memoryview, at: int) -> tuple[int, int]:
    value, at = _thrift_unsigned(data, at)
    return (value >> 1) ^ -(value & 1), at


# Checks the unpacked size of a Parquet file's pages before pyarrow unpacks them.
#
# A few bytes may claim pages of gigabytes and, with a dictionary or runs of the same values, unpack
# to them. pyarrow allocates what they claim. So everything that it reads of a column is checked
# here first.

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
    body: memoryview


class CheckedFile(io.RawIOBase):
    """A Parquet file for pyarrow, which reads each column of a row group at once.

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
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
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
        view = memoryview(data)
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


@dataclass(frozen=True)
class Parquet:
    """Parquet files; their columns are a dict of arrays, lists `Ragged`.

    Offsets are numbers of rows. Reading resumes at the start of the row group.

    Parameters
    ----------
    columns : sequence of str, optional
        The columns wanted, in this order; all by default.
    max_record_bytes : int
        What the rows read at a time may take, at most 2**30 bytes: there are fewer of them where
        needed. If a page, or a column of texts or lists in a row group, unpacks to more than this
        and to more than 256 times its size in the file, that is refused.

    Raises
    ------
    ConfigurationError
        If the limit is not possible, or without pyarrow.
    """

    columns: Sequence[str] | None = None
    max_record_bytes: int = MAX_RECORD_BYTES

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_record_bytes", checked_limit(self.max_record_bytes))
        pyarrow("pyarrow.parquet")

    def read(
        self, path: str, offset: int = 0, first: int = 0, end: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the rows from number ``offset`` up to ``end``; ``first`` is known from that.

        Raises
        ------
        DatasetError
            If the file cannot be read, lacks a column, or at a row that misses an integer; those
            before it are yielded.
        """
        with _opened(path, self.max_record_bytes) as found:
            if found is None:
                return
            file, checked, groups = found
            schema = file.schema_arrow
            wanted = list(self.columns) if self.columns is not None else schema.names
            if absent := set(wanted) - set(schema.names):
                raise DatasetError(f"{path}: the columns are {listed(schema.names)}; no {absent}")
            if double := {name for name in wanted if schema.names.count(name) > 1}:
                raise DatasetError(
                    f"{path}: the columns are {listed(schema.names)}; several are called {double}: "
                    "choose others with columns=, or rename them"
                )
            rows = file.metadata.num_rows
            if offset > rows:
                raise DatasetError(f"{path} has {rows} rows, and reading was to go on at {offset}")
            stop = rows if end is None else min(end, rows)
            begin = 0
            for number, group in enumerate(groups):
                if begin + group.rows > offset and begin < stop:
                    batches = _batches(file, checked, path, number, group, wanted)
                    yield from _group(
                        batches, path, number, wanted, begin, max(offset, begin), stop
                    )
                begin += group.rows

    def splits(self, path: str, size: int) -> list[tuple[int, int | None]]:
        """Return the ranges of rows of row groups, together of about ``size`` bytes."""
        cuts, row, held = [0], 0, 0
        with _opened(path, self.max_record_bytes) as found:
            for group in found[2] if found is not None else ():
                if held >= size:
                    cuts.append(row)
                    held = 0
                held += group.size
                row += group.rows
        return list(zip(cuts, [*cuts[1:], None], strict=True))


@contextmanager
def _opened(path: str, limit: int) -> Iterator[tuple[Any, CheckedFile, list[RowGroup]] | None]:
    parquet = pyarrow("pyarrow.parquet")
    with stored(path) as raw:
        if holds_nothing(raw):  # such as a mark that a job has ended
            yield None
            return
        with reading(path):
            checked = CheckedFile(raw, limit)
            file = parquet.ParquetFile(checked, pre_buffer=False)
        with file:
            with reading(path):
                groups = read_footer(raw, path)
            yield file, checked, groups


def _batches(
    file: Any, checked: CheckedFile, path: str, number: int, group: RowGroup, wanted: list[str]
) -> Iterator[Any]:
    """Yield the rows of a row group, as many at a time as memory allows."""
    rows, where = CHUNK_RECORDS, f"{path}, row group {number}"
    schemas = list(file.schema)
    with reading(where):
        while True:
            checked.expect(group.chunks(), schemas, rows, where)
            try:
                # Its columns are read, and so checked, before the first batch.
                yield from file.iter_batches(rows, [number], wanted, use_threads=False)
                return
            except TooWide as hint:
                rows = hint.rows


def _group(
    batches: Iterator[Any],
    path: str,
    group: int,
    wanted: list[str],
    begin: int,
    start: int,
    stop: int,
) -> Iterator[Chunk]:
    """Yield the rows ``[start, stop)`` of a row group that begins with row ``begin``."""
    for batch in batches:
        skipped = min(max(0, start - begin), batch.num_rows)
        part = batch.slice(skipped, max(0, stop - begin - skipped))
        row = begin + skipped
        begin += batch.num_rows
        missing = first_missing(part)
        if missing is not None:
            part = part.slice(0, missing[1])
        if part.num_rows:
            try:
                columns = to_columns(part)
            except DatasetError as error:
                raise DatasetError(f"{path}, row group {group}: {error}") from error
            # By name: the file has them in an order of its own.
            columns = {name: columns[name] for name in wanted}
            yield Chunk(columns, part.num_rows, row, row + part.num_rows)
        if missing is not None:
            raise DatasetError(
                f"{path}, row {row + missing[1] + 1}: column {missing[0]!r} of "
                f"{batch.schema.field(missing[0]).type} misses a value: fill it, or write floats"
            )
