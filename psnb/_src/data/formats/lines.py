"""Cutting files into lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from psnb._src.data.formats.byte_window import ByteWindow, check_begin, window_on
from psnb._src.data.formats.chunk import CHUNK_BYTES, CHUNK_RECORDS
from psnb._src.data.formats.file_position import FilePosition
from psnb._src.data.formats.limit import too_long, within
from psnb._src.data.formats.line_kernels import NEWLINE, RETURN, cut_lines
from psnb._src.data.formats.open_files import compression_of, size_of
from psnb.errors import DatasetError


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
