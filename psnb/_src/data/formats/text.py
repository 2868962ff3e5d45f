"""Files of lines: cutting them, and lines as texts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from psnb._src.data.formats.files import INFER
from psnb._src.data.formats.records import (
    CHUNK_BYTES,
    CHUNK_RECORDS,
    MAX_RECORD_BYTES,
    ByteWindow,
    Chunk,
    FilePosition,
    Records,
    window_on,
    within,
)
from psnb._src.data.formats.words import WORD, bytes_above, word_at, zeros_below
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError, DatasetError

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
    # Some bit is one if a byte is zero. (Mycroft's test; it does not say which byte.)
    a, b, c, d = ~a & (a - _ONES), ~b & (b - _ONES), ~c & (c - _ONES), ~d & (d - _ONES)
    return (a | b | c | d) & _ALL == 0


@njit(cache=True, nogil=True)
def cut_lines(data, limit, starts, ends):  # type: ignore[no-untyped-def]
    r"""Find lines that begin before ``limit``, as many as fit into ``starts`` and ``ends``.

    These get where each begins and ends, without ``\n`` or ``\r\n``. What comes after the last
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
            # The highest bit remains set in bytes that equal a newline.
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
        If the file cannot be read, or at a line that is longer than the window's limit; the ones
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
                raise place.too_long("line", first, window.offset, window.limit)
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
            raise place.too_long("line", first, window.offset, window.limit)


Parsed = tuple[Any, int, DatasetError | None]
Parse = Callable[[Lines], Parsed]


class LineFormat(Records):
    """Base of formats of which each line is a record."""

    def chunks(self, window: ByteWindow, place: FilePosition, end: int | None) -> Iterator[Chunk]:
        parse = self.parser()
        for lines in lines_of(window, place, end):
            columns, good, problem = parse(lines)
            if good:
                yield Chunk(columns, good, lines.first, lines.offset_after(good))
            if problem is not None:
                raise problem

    def parser(self) -> Parse:
        """Return what parses the lines of one file, one call after another."""
        return self.parse

    def parse(self, lines: Lines) -> Parsed:
        """Return the columns of lines before the first bad one, their number, what is wrong."""
        raise NotImplementedError

    def cuts(self, path: str, size: int, total: int) -> list[int]:
        """Return where lines begin; reads a little of the file at each cut."""
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
        return cuts[1:]


@dataclass(frozen=True)
class TextLines(LineFormat):
    r"""Lines of text files; their columns are one array of str (or bytes) objects.

    Lines end with ``\n`` or ``\r\n``, which are not part of them; the last one need not. In an
    encoding that there is, a newline is the byte ``\n``.
    """

    encoding: str | None = "utf-8"
    compression: str | None = INFER
    max_record_bytes: int = MAX_RECORD_BYTES

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoding is not None:
            try:
                one_byte = "\n".encode(self.encoding) == b"\n"
            except LookupError as error:
                raise ConfigurationError(f"there is no encoding {shown(self.encoding)}") from error
            if not one_byte:
                raise ConfigurationError(
                    f"lines in the encoding {shown(self.encoding)} cannot be separated by their "
                    "bytes; write the files in UTF-8"
                )

    def parse(self, lines: Lines) -> Parsed:
        good, problem = len(lines), None
        try:
            texts = self._texts(lines, good)
        except UnicodeDecodeError as error:
            good = int(np.searchsorted(lines.starts, error.start, "right")) - 1
            wrong = f"not {self.encoding}: {error.reason} ({lines.data[error.start]:#04x})"
            problem = lines.error(good, error.start, wrong)
            problem.__cause__ = error
            texts = self._texts(lines, good)
        if len(texts) != good:
            what = f"{self.encoding} has newlines that are not bytes of their own here"
            return None, 0, lines.error(0, 0, what)
        column = np.empty(good, object)
        column[:] = texts
        return column, good, problem

    def _texts(self, lines: Lines, count: int) -> list[Any]:
        """Return the first ``count`` lines, decoded."""
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
