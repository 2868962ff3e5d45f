"""Reading a zlib stream as a file, as gzip's module does for gzip streams."""

from __future__ import annotations

import io
import zlib
from typing import Any

_READ = 1 << 18


class ZlibFile(io.RawIOBase):
    """What a file of one or several zlib streams (RFC 1950), one after the other, holds.

    Parameters
    ----------
    file : binary file
        The compressed one. It stays open.
    """

    def __init__(self, file: Any):
        super().__init__()
        self._file = file
        self._stream = zlib.decompressobj()
        self._begun = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a part of a buffer; return how much of it, 0 at the end."""
        target = memoryview(buffer).cast("B")
        while True:
            left = self._stream.unconsumed_tail or self._stream.unused_data
            compressed = left or self._file.read(_READ)
            if self._stream.eof and compressed:
                self._stream, self._begun = zlib.decompressobj(), False
            if not compressed:
                if self._begun and not self._stream.eof:
                    raise EOFError("the stream ends before its end marker")
                return 0
            self._begun = True
            data = self._stream.decompress(compressed, len(target))
            if data:
                target[: len(data)] = data
                return len(data)
