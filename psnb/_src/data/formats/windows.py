"""A window that moves over the bytes of a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from psnb._src.data.formats.chunks import CHUNK_BYTES, LONGEST
from psnb._src.data.formats.files import check_plain, compression_of, opened, reading
from psnb._src.utils.memory import lasting
from psnb.errors import DatasetError

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


def check_begin(path: str, compression: str | None) -> None:
    """Raise what `window_on` raises for a file's beginning, before it is read in parts."""
    with window_on(path, compression, 0):
        pass
