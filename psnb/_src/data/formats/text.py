"""Cutting files into lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from psnb._src.data.formats.files import (
    CHUNK_BYTES,
    CHUNK_RECORDS,
    INFER,
    LONGEST,
    MAX_RECORD_BYTES,
    ByteWindow,
    Chunk,
    FilePosition,
    check_begin,
    check_compression,
    check_reading,
    compression_of,
    size_of,
    too_long,
    window_on,
    within,
)
from psnb._src.data.formats.protobuf import WORD, bytes_above, word_at, zeros_below
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError, DatasetError

# Finding where lines end, compiled by numba.

NEWLINE, RETURN = 10, 13

_NEWLINES = np.uint64(0x0A0A0A0A0A0A0A0A)
_ONES = np.uint64(0x0101010101010101)
_ALL = np.uint64(0x8080808080808080)


@njit(cache=True, nogil=True, inline="always")
def _no_newline(data, at):  # type: ignore[no-untyped-def]
    """Return whether four words have none."""
    a = word_at(data, at) ^ _NEWLINES
    b = word_at(data, at + WORD) ^ _NEWLINES
    c = word_at(data, at + 2 * WORD) ^ _NEWLINES
    d = word_at(data, at + 3 * WORD) ^ _NEWLINES
    # A bit of these is one if a byte is zero. (Mycroft's test; only that some is zero is sure.)
    a, b, c, d = ~a & (a - _ONES), ~b & (b - _ONES), ~c & (c - _ONES), ~d & (d - _ONES)
    return (a | b | c | d) & _ALL == 0


@njit(cache=True, nogil=True)
def cut_lines(data, limit, starts, ends):  # type: ignore[no-untyped-def]
    r"""Find lines that begin before ``limit``, as many as fit into ``starts`` and ``ends``.

    Those get where each begins and ends, without ``\n`` or ``\r\n``. What comes after the last
    newline is not a line.

    Returns
    -------
    tuple of int
        How many there are, and where what follows them begins.
    """
    count, begin, at = 0, 0, 0
    while at < data.size:
        while at + 4 * WORD <= data.size and _no_newline(data, at):
            at += 4 * WORD
        if at == data.size:
            break
        if at + WORD <= data.size:
            # Of bytes that differ from a newline in no bit, the highest bit is left.
            marks = bytes_above(word_at(data, at) ^ _NEWLINES, 0) ^ _ALL
            width = WORD
        else:
            marks = np.uint64(128 if data[np.uint64(at)] == NEWLINE else 0)
            width = 1
        while marks:
            end = at + np.int64(zeros_below(marks) >> np.uint64(3))
            if count == starts.size or begin >= limit:
                return count, begin
            starts[count] = begin
            has_return = end > begin and data[np.uint64(end - 1)] == RETURN
            ends[count] = end - 1 if has_return else end
            begin = int(end) + 1
            count += 1
            marks &= marks - np.uint64(1)
        at += width
    return count, begin


@dataclass(frozen=True, eq=False, slots=True)
class Lines:
    r"""Some whole lines; ``data`` is valid until the next ones are asked for.

    Parameters
    ----------
    data : array of uint8
        The lines, with what ends them.
    starts, ends : arrays of int64, shape (lines,)
        Where each begins and ends in ``data``, without ``\n`` or ``\r\n``.
    first : int
        The number of the first line.
    offset : int
        Where in the file ``data`` begins.
    place : FilePosition
        The file.
    """

    data: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    first: int
    offset: int
    place: FilePosition

    def __len__(self) -> int:
        return len(self.starts)

    def offset_after(self, count: int) -> int:
        """Return where in the file the line after the first ``count`` begins."""
        return self.offset + int(self.starts[count] if count < len(self) else self.data.size)

    def text(self, begin: int, end: int) -> str:
        """Return a part of ``data`` for people, shortened."""
        shown = (
            self.data[begin : min(end, begin + 40)].tobytes().decode("ascii", "backslashreplace")
        )
        return shown + ("…" if end - begin > 40 else "")

    def field(self, line: int, position: int, separators: bytes) -> str:
        """Return for people what begins at a position, up to a separator or the line's end."""
        rest = self.data[position : self.ends[line]]
        found = np.flatnonzero(np.isin(rest, list(separators)))
        return self.text(position, position + int(found[0] if found.size else rest.size))

    def error(self, line: int, position: int, problem: str) -> DatasetError:
        """Return the error that something is wrong with a line, at a position in ``data``."""
        return self.place.error("line", self.first + line, self.offset + position, problem)


def lines_of(window: ByteWindow, place: FilePosition, end: int | None = None) -> Iterator[Lines]:
    r"""Yield the lines that begin before ``end``, some at a time, in bounded memory.

    The last line need not end with ``\n``.

    Raises
    ------
    DatasetError
        If the file cannot be read, or at a line that is longer than the window's limit; those
        before it are yielded.
    """
    first = place.first
    while end is None or window.offset < end:
        window.fill()
        limit = sys.maxsize if end is None else end - window.offset
        data = window.data[:CHUNK_BYTES]
        starts, ends = np.empty((2, CHUNK_RECORDS), np.int64)
        count, size = cut_lines(data, limit, starts, ends)
        while not count:
            # A single line that is longer than that, or the last one.
            data = window.data
            count, size = cut_lines(data, limit, starts[:1], ends[:1])
            # The last byte may belong to what ends it.
            if not count and data.size > window.limit + 1:
                raise too_long(place, "line", first, window.offset, window.limit)
            if not count and not window.more():
                break
        if not count:
            size = data.size
            if size == 0:
                return
            count, starts[0] = 1, 0
            ends[0] = size - int(data[-1] == RETURN)
        good = count
        if size > window.limit:
            good = within(ends[:count] - starts[:count], window.limit)
            size = size if good == count else int(starts[good])
        if good:
            yield Lines(data[:size], starts[:good], ends[:good], first, window.offset, place)
        first += good
        window.skip(size)
        if good < count:
            raise too_long(place, "line", first, window.offset, window.limit)


def read_lines(
    path: str, compression: str | None, longest: int, offset: int, first: int, end: int | None
) -> Iterator[Lines]:
    """Open a file and yield the lines that begin in ``[offset, end)``, each up to ``longest``."""
    with window_on(path, compression, offset, longest) as window:
        yield from lines_of(window, FilePosition(path, offset, first), end)


def line_splits(path: str, compression: str | None, size: int) -> list[tuple[int, int | None]]:
    """Return ranges of about ``size`` bytes that begin where lines do.

    Of a compressed file there is only one. Reads a little of the file at each cut.

    Raises
    ------
    DatasetError
        If the file cannot be read, or is compressed and its name does not say so.
    """
    if compression_of(path, compression) is not None:
        return [(0, None)]
    total = size_of(path)
    if size < total:
        check_begin(path, compression)
    cuts = [0]
    while cuts[-1] + size < total:
        # From the byte before, so that a line that begins right there begins the range.
        with window_on(path, None, cuts[-1] + size - 1) as window:
            while window.more() and not (window.data == NEWLINE).any():
                window.skip(window.data.size)
            newlines = np.flatnonzero(window.data == NEWLINE)
            if not newlines.size or window.offset + int(newlines[0]) + 1 >= total:
                break
            cuts.append(window.offset + int(newlines[0]) + 1)
    return list(zip(cuts, [*cuts[1:], None], strict=True))


@dataclass(frozen=True)
class TextLines:
    r"""Lines of text files; their columns are one array of str (or bytes) objects.

    Lines end with ``\n`` or ``\r\n``, which are not part of them; the last one need not.

    Parameters
    ----------
    encoding : str or None
        The files' encoding, one in which a newline is the byte ``\n``; None for lines as bytes.
    compression : str or None
        "gzip", "zlib", "bz2" and others of fsspec; "infer": as the file's suffix says.
    max_record_bytes : int
        How long a line may be, at most 2**30 bytes. For a longer one, memory is not taken.

    Raises
    ------
    ConfigurationError
        If the encoding or the compression is not known or not possible.
    """

    encoding: str | None = "utf-8"
    compression: str | None = INFER
    max_record_bytes: int = MAX_RECORD_BYTES

    def __post_init__(self) -> None:
        check_reading(self)
        if self.encoding is not None:
            try:
                one_byte = "\n".encode(self.encoding) == b"\n"
            except LookupError as error:
                raise ConfigurationError(f"there is no encoding {shown(self.encoding)}") from error
            if not one_byte:
                raise ConfigurationError(
                    f"lines in the encoding {shown(self.encoding)} cannot be separated "
                    f"by their bytes; "
                    "write the files in UTF-8"
                )

    def read(
        self, path: str, offset: int = 0, first: int = 0, end: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the lines that begin in ``[offset, end)``.

        Raises
        ------
        DatasetError
            If the file cannot be read, or at a line that is not in the encoding; those
            before it are yielded.
        """
        for lines in read_lines(path, self.compression, self.max_record_bytes, offset, first, end):
            good, problem = len(lines), None
            try:
                texts = self._texts(lines)
            except UnicodeDecodeError as error:
                good = int(np.searchsorted(lines.starts, error.start, "right")) - 1
                wrong = f"not {self.encoding}: {error.reason} ({lines.data[error.start]:#04x})"
                problem = lines.error(good, error.start, wrong), error
                texts = self._texts(lines, good)
            if good:
                if len(texts) != good:
                    what = f"{self.encoding} has newlines that are not bytes of their own here"
                    raise lines.error(0, 0, what)
                column = np.empty(good, object)
                column[:] = texts
                yield Chunk(column, good, lines.first, lines.offset_after(good))
            if problem is not None:
                raise problem[0] from problem[1]

    def splits(self, path: str, size: int) -> list[tuple[int, int | None]]:
        """Return the ranges of parts of about ``size`` bytes."""
        return line_splits(path, self.compression, size)

    def _texts(self, lines: Lines, count: int | None = None) -> list[Any]:
        """Return the first ``count`` lines (all), decoded."""
        count = len(lines) if count is None else count
        if count == 0:
            return []
        # All in one go; up to the last newline, as what is after it would be one more line.
        stop = int(lines.starts[count] - 1 if count < len(lines) else lines.data.size)
        returns = bool((lines.data[:stop] == RETURN).any())
        if count == len(lines) and lines.data[stop - 1] == NEWLINE:
            stop -= 1
        view = lines.data[:stop].data
        if self.encoding is None:
            raw = view.tobytes().split(b"\n")
            return [line.removesuffix(b"\r") for line in raw] if returns else raw
        texts = str(view, self.encoding).split("\n")
        return [text.removesuffix("\r") for text in texts] if returns else texts


@dataclass(frozen=True)
class FixedLengthRecords:
    """Records of the same length; their columns are one array of bytes objects.

    Parameters
    ----------
    record_bytes : int
        The length of a record.
    header_bytes, footer_bytes : int
        What to skip at the start and at the end of each file.
    compression : str or None
        "gzip", "zlib", "bz2" and others of fsspec; "infer": as the file's suffix says.

    Raises
    ------
    ConfigurationError
        If a length or the compression is not possible.
    """

    record_bytes: int
    header_bytes: int = 0
    footer_bytes: int = 0
    compression: str | None = INFER

    def __post_init__(self) -> None:
        check_compression(self.compression)
        if not 1 <= self.record_bytes <= LONGEST:
            raise ConfigurationError(f"record_bytes is {self.record_bytes}: not in 1..{LONGEST}")
        if self.header_bytes < 0 or not 0 <= self.footer_bytes <= LONGEST:
            raise ConfigurationError(
                f"header_bytes is {self.header_bytes}, footer_bytes {self.footer_bytes}: "
                "not what a file can have"
            )

    def read(
        self, path: str, offset: int = 0, first: int = 0, end: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the records that begin in ``[offset, end)``.

        Raises
        ------
        DatasetError
            If the file cannot be read, or does not end with a whole record and footer.
        """
        size = self.record_bytes
        place = FilePosition(path, offset, first)
        most = min(CHUNK_RECORDS, max(1, CHUNK_BYTES // size))
        with window_on(path, self.compression, offset) as window:
            if offset == 0 and not window.data.size:
                return  # an empty file has no header either
            if offset < self.header_bytes:
                while window.offset < self.header_bytes:
                    missing = self.header_bytes - window.offset
                    if not window.data.size and not window.more():
                        raise place.error("record", 0, window.offset, "the header is cut short")
                    window.skip(min(missing, window.data.size))
            while end is None or window.offset < end:
                window.fill(most * size + self.footer_bytes)
                count = min((window.data.size - self.footer_bytes) // size, most)
                if end is not None:
                    count = min(count, -(-(end - window.offset) // size))
                if count <= 0:
                    break
                records = window.data[: count * size].view(f"V{size}").astype(object)
                window.skip(count * size)
                yield Chunk(records, count, first, window.offset)
                first += count
            else:
                return
            if window.data.size != self.footer_bytes:
                raise place.error(
                    "record",
                    first,
                    window.offset,
                    f"the file ends after {window.data.size} bytes, which are neither a record of "
                    f"{size} bytes nor the footer of {self.footer_bytes}",
                )

    def splits(self, path: str, size: int) -> list[tuple[int, int | None]]:
        """Return the ranges of parts of about ``size`` bytes."""
        if compression_of(path, self.compression) is not None:
            return [(0, None)]
        step = max(1, size // self.record_bytes) * self.record_bytes
        stop = size_of(path) - self.footer_bytes
        cuts = [0, *range(self.header_bytes + step, stop, step)]
        if len(cuts) > 1:
            check_begin(path, self.compression)
        return list(zip(cuts, [*cuts[1:], None], strict=True))


# Parsing Criteo's click logs, compiled by numba.

DENSE, SPARSE = 13, 26
COLUMNS = 1 + DENSE + SPARSE

OK, FEW, LABEL, INTEGER, CATEGORY, TRAILING = 0, 1, 2, 3, 4, 5
"""What is wrong with a line: it ends before a column; what is in one is not of its kind; something
follows the last."""

_TAB, _MINUS = 9, 45
_MOST_DIGITS = 18  # of an integer: they fit 64 bits


@njit(cache=True, nogil=True, inline="always")
def _digit(byte):  # type: ignore[no-untyped-def]
    """Return the value of a hexadecimal digit; 16 if it is not one."""
    if 48 <= byte <= 57:
        return byte - 48
    if 97 <= byte <= 102:
        return byte - 87
    if 65 <= byte <= 70:
        return byte - 55
    return 16


@njit(cache=True, nogil=True)
def parse_lines(data, starts, ends, missing, label, dense, sparse):  # type: ignore[no-untyped-def]
    """Parse lines, up to the first that is not in order, into (lines,), (lines, 13), (lines, 26).

    ``missing`` (uint64) is what an empty category becomes; an empty integer becomes NaN.

    Returns how many lines are in order; of the next the column, the position and what is wrong.
    """
    for i in range(starts.size):
        at, stop = np.int64(starts[i]), np.int64(ends[i])
        for column in range(COLUMNS):
            if column > 0:
                if at == stop:
                    return i, column, at, FEW
                at += 1
            begin = at
            if column <= DENSE:
                negative = column > 0 and at < stop and data[at] == _MINUS
                if negative:
                    at += 1
                value = np.int64(0)
                first = at
                while at < stop and data[at] != _TAB:
                    digit = np.int64(_digit(np.int64(data[at])))
                    if digit > 9 or at - first >= _MOST_DIGITS:
                        return i, column, begin, INTEGER if column else LABEL
                    value = value * 10 + digit
                    at += 1
                empty = at == first
                if empty and (negative or column == 0):
                    return i, column, begin, INTEGER if column else LABEL
                number = np.float32(-value if negative else value)
                if column == 0:
                    label[i] = number
                else:
                    dense[i, column - 1] = np.float32(np.nan) if empty else number
            else:
                category = np.uint64(0)
                while at < stop and data[at] != _TAB:
                    digit = np.int64(_digit(np.int64(data[at])))
                    if digit > 15 or at - begin >= 8:
                        return i, column, begin, CATEGORY
                    category = (category << np.uint64(4)) | np.uint64(digit)
                    at += 1
                sparse[i, column - 1 - DENSE] = missing if at == begin else category
        if at != stop:
            return i, column, at, TRAILING
    return starts.size, 0, 0, OK


# Criteo's click logs, of the Kaggle challenge and the Terabyte data set.

MISSING_CATEGORY = 2**32
"""The category of an empty field; no field holds it, as they have 32 bits."""


@dataclass(frozen=True)
class Criteo:
    """Files of Criteo's click logs: ``train.txt`` of the Kaggle challenge, ``day_0`` and on.

    A line has a label, 13 integers and 26 categories of up to eight hexadecimal digits, with tabs
    between them; integers and categories may be empty. The columns are a dict:

    - ``label``: float32, shape (examples,)
    - ``dense``: float32, shape (examples, 13); NaN where empty
    - ``sparse``: uint64, shape (examples, 26); `MISSING_CATEGORY` where empty. The same category
      means something else in each column: for one table of all, make ids with
      ``sparse + (numpy.arange(26, dtype="uint64") << 33)``.

    Parameters
    ----------
    compression : str or None
        "gzip", "zlib", "bz2" and others of fsspec; "infer": as the file's suffix says.
    max_record_bytes : int
        How long a line may be, at most 2**30 bytes. For a longer one, memory is not taken.

    Raises
    ------
    ConfigurationError
        If the compression is not known.
    """

    compression: str | None = INFER
    max_record_bytes: int = MAX_RECORD_BYTES

    def __post_init__(self) -> None:
        check_reading(self)

    def read(
        self, path: str, offset: int = 0, first: int = 0, end: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the lines that begin in ``[offset, end)``.

        Raises
        ------
        DatasetError
            If the file cannot be read, or at a line that is not as above; those before
            it are yielded.
        """
        for lines in read_lines(path, self.compression, self.max_record_bytes, offset, first, end):
            label = np.empty(len(lines), np.float32)
            dense = np.empty((len(lines), DENSE), np.float32)
            sparse = np.empty((len(lines), SPARSE), np.uint64)
            good, column, position, wrong = parse_lines(
                *(lines.data, lines.starts, lines.ends, np.uint64(MISSING_CATEGORY)),
                *(label, dense, sparse),
            )
            if good:
                columns = {"label": label[:good], "dense": dense[:good], "sparse": sparse[:good]}
                yield Chunk(columns, good, lines.first, lines.offset_after(good))
            if wrong != OK:
                raise _problem(lines, good, column, position, wrong)

    def splits(self, path: str, size: int) -> list[tuple[int, int | None]]:
        """Return the ranges of parts of about ``size`` bytes."""
        return line_splits(path, self.compression, size)


def _problem(lines: Lines, line: int, column: int, position: int, wrong: int) -> DatasetError:
    field = lines.field(line, position, b"\t")
    problem = {
        FEW: f"there are {column} columns, not {COLUMNS}",
        LABEL: f"the label is {field}: not a number without sign",
        INTEGER: f"column {column + 1} is {field}: no integer of up to 18 digits",
        CATEGORY: f"column {column + 1} is {field}: not up to 8 hexadecimal digits",
        TRAILING: f"there are more than {COLUMNS} columns",
    }[wrong]
    return lines.error(line, position, problem)
