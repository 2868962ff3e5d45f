"""Records of files: chunks of them, limits on their size, a window that moves over the bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from psnb._src.data.formats.files import (
    check_compression,
    check_plain,
    compression_of,
    opened,
    reading,
    size_of,
)
from psnb._src.utils.checks import integer
from psnb._src.utils.memory import lasting
from psnb.errors import DatasetError

CHUNK_BYTES = 1 << 20
"""About how much of a file becomes one chunk: as much as a processor's own cache holds."""

CHUNK_RECORDS = 4096
"""The most records of one chunk, however short they are."""


@dataclass(frozen=True, eq=False, slots=True)
class Chunk:
    """Some consecutive records of a file.

    The division into chunks depends on the file from its first record on, and on nothing else: when
    reading resumes where a chunk began, the same chunk comes again.

    Parameters
    ----------
    columns : array, `Ragged`, or tuple or dict of them
        The records, with leading dimension ``count``. They belong to the chunk: nothing overwrites
        them.
    count : int
        The number of records; at least 1.
    first : int
        The number of the first one, from 0: in the file or, if reading began in the middle of it
        without a number, from there.
    next_offset : int
        Where the record after the last begins. Given to ``read`` as ``offset``, reading continues
        there. In uncompressed bytes from the start of the file; for Parquet, in rows.
    loose : bool
        Whether arrays that have one shape here may have another in other chunks.
    """

    columns: Any
    count: int
    first: int
    next_offset: int
    loose: bool = False


def byte_strings(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return parts of a buffer as an array of bytes objects."""
    found = np.empty(len(starts), object)
    view = data.data
    # Some at a time: as Python's own numbers, their places take ten times the memory.
    for at in range(0, len(starts), CHUNK_RECORDS):
        some = slice(at, at + CHUNK_RECORDS)
        places = zip(starts[some].tolist(), ends[some].tolist(), strict=True)
        found[some] = [bytes(view[begin:end]) for begin, end in places]
    return found


@dataclass(frozen=True, slots=True)
class FilePosition:
    """A file, and where reading it began.

    Parameters
    ----------
    path : str
        The file.
    offset : int
        Where reading began.
    first : int
        The number of the record there, from 0. If it is 0 in the middle of a file, it is unknown,
        and errors say from where they count.
    """

    path: str
    offset: int = 0
    first: int = 0

    def error(self, noun: str, number: int, byte: int, problem: str) -> DatasetError:
        """Return the error that something is wrong with a record.

        Parameters
        ----------
        noun : str
            What the format calls a record: "line".
        number : int
            The record's number, from 0; messages count from 1.
        byte : int
            Where in the file it is.
        problem : str
            What is wrong, and what to do.
        """
        from_there = f" after byte {self.offset}" if self.offset > 0 and self.first == 0 else ""
        return DatasetError(f"{self.path}, {noun} {number + 1}{from_there}, byte {byte}: {problem}")

    def too_long(self, noun: str, number: int, byte: int, limit: int) -> DatasetError:
        """Return the error for a record over the limit; parameters as for `error`."""
        problem = (
            f"it is longer than max_record_bytes={limit}; give the reader more, unless the file is "
            "of another format, or compressed"
        )
        return self.error(noun, number, byte, problem)


MAX_RECORD_BYTES = 1 << 26
"""How many bytes a record may have, unless a reader is given another limit."""

MAX_COLUMNS = 1 << 14
"""How many columns a CSV file may have, unless its reader is given another limit."""

LONGEST = 1 << 30
"""The largest limit that can be set."""


def checked_limit(limit: int) -> int:
    """Return a limit as an int, or raise `ConfigurationError` if it cannot be one."""
    return integer("max_record_bytes", limit, 1, LONGEST)


def within(lengths: np.ndarray, limit: int) -> int:
    """Return how many records come before the first that is too long."""
    longer = lengths > limit
    return int(longer.argmax()) if longer.any() else len(lengths)


_SHRINK = 8


class ByteWindow:
    """The bytes of a file, some at a time; bounded memory, each byte is read once.

    Parameters
    ----------
    file : binary file
        Has ``readinto``; stands at ``offset``.
    path : str
        Its name, for errors.
    offset : int
        Where the file stands, in uncompressed bytes.
    limit : int
        How many bytes a record may have: not much more is kept in memory, if the caller checks it.

    Attributes
    ----------
    data : array of uint8
        A view of the bytes that are read and not yet skipped; valid until the next `more`.
    offset : int
        Where in the file ``data`` begins.
    limit : int
        As above.
    """

    def __init__(self, file: Any, path: str, offset: int = 0, limit: int = LONGEST):
        self.path = path
        self.offset = offset
        self.limit = limit
        self._file = file
        self._buffer = np.empty(2 * CHUNK_BYTES, np.uint8)
        self.data = self._buffer[:0]
        self._ended = False

    def skip(self, count: int) -> None:
        """Drop bytes from the front of ``data``."""
        self.data = self.data[count:]
        self.offset += count

    def more(self) -> bool:
        """Read on, as much again as is there up to the limit; return False at the end of the file.

        Raises
        ------
        DatasetError
            If the file cannot be read.
        """
        if self._ended:
            return False
        left = self.data.size
        room = left + max(CHUNK_BYTES, min(left, self.limit - left))
        buffer = self._buffer
        if not room <= buffer.size <= _SHRINK * room:
            buffer = lasting((room,), np.dtype(np.uint8))
        buffer[:left] = self.data
        self._buffer = buffer
        filled = left + self._read(buffer[left:room])
        self.data = buffer[:filled]
        self._ended = filled < room
        return filled > left

    def fill(self, size: int = CHUNK_BYTES) -> bool:
        """Read on until ``size`` bytes are there; return False if the file ends before."""
        while self.data.size < size:
            if not self.more():
                return False
        return True

    def discard(self, count: int) -> None:
        """Read over bytes that lie ahead, where a file cannot seek."""
        while count > 0:
            done = self._read(self._buffer[: min(count, self._buffer.size)])
            if done == 0:
                raise _shortened(self.path, self.offset + count, self.offset)
            count -= done
            self.offset += done

    def _read(self, buffer: np.ndarray) -> int:
        filled = 0
        view = buffer.data
        with reading(self.path):
            while filled < len(view):
                # Decompression needs a buffer of its own, of as many bytes.
                count = self._file.readinto(view[filled : filled + CHUNK_BYTES])
                if not count:
                    break
                filled += count
        return filled


def _shortened(path: str, offset: int, size: int) -> DatasetError:
    return DatasetError(
        f"{path} ends at byte {size}, before byte {offset} where reading was to go on: "
        "it is shorter than it was"
    )


@contextmanager
def window_on(
    path: str, compression: str | None, offset: int, limit: int = LONGEST
) -> Iterator[ByteWindow]:
    """Open a file and yield the window on it, from an uncompressed offset on.

    Raises
    ------
    DatasetError
        If there is no such file, it cannot be read, or ends before ``offset``.
    """
    with opened(path, compression) as file:
        window = ByteWindow(file, path, limit=limit)
        if offset > 0:
            if compression_of(path, compression) is None and file.seekable():
                with reading(path):
                    size = file.seek(0, 2)
                    if size < offset:
                        raise _shortened(path, offset, size)
                    file.seek(offset)
                window.offset = offset
            else:
                window.discard(offset)
        elif window.more():
            check_plain(path, compression, window.data[:16].tobytes())
        yield window


class Records:
    """Base of formats whose records are bytes of a file: frozen dataclasses."""

    compression: str | None
    max_record_bytes: int = LONGEST

    def __post_init__(self) -> None:
        check_compression(self.compression)
        object.__setattr__(self, "max_record_bytes", checked_limit(self.max_record_bytes))

    def read(
        self, path: str, offset: int = 0, first: int = 0, end: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the records that begin in ``[offset, end)``; ``first`` numbers the first one."""
        with self.window(path, offset) as window:
            yield from self.chunks(window, FilePosition(path, offset, first), end)

    def chunks(self, window: ByteWindow, place: FilePosition, end: int | None) -> Iterator[Chunk]:
        """Yield the records in a window that begin before ``end``."""
        raise NotImplementedError

    def window(self, path: str, offset: int) -> AbstractContextManager[ByteWindow]:
        """Open a file at an offset; see `window_on`."""
        return window_on(path, self.compression, offset, self.max_record_bytes)

    def splits(self, path: str, size: int) -> list[tuple[int, int | None]]:
        """Return ranges of about ``size`` bytes that begin where records do.

        A compressed file has only one.

        Raises
        ------
        DatasetError
            If the file cannot be read, or is compressed and its name does not say so.
        """
        if compression_of(path, self.compression) is not None or size >= (total := size_of(path)):
            return [(0, None)]
        with self.window(path, 0):
            pass  # which raises what reading its beginning would
        return list(pairwise([0, *self.cuts(path, size, total), None]))  # type: ignore[list-item]

    def cuts(self, path: str, size: int, total: int) -> list[int]:
        """Return where to cut a file of ``total`` bytes, about ``size`` of them apart."""
        return []  # where records are found from its start only
