"""Reading an xz or lzma stream as a file, in bounded memory, as Python's own class does not."""

from __future__ import annotations

import io
import lzma
from typing import Any

_READ = 1 << 18

_MEMORY = 1 << 27
"""What a stream may take to be decompressed: twice what ``xz -9`` asks for."""


class XzFile(io.RawIOBase):
    """What a file of one or several xz streams, one after the other, or an lzma stream holds.

    Parameters
    ----------
    file : binary file
        The compressed one. It stays open.
    """

    def __init__(self, file: Any):
        super().__init__()
        self._file = file
        self._stream = _begun()

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a part of a buffer; return how much of it, 0 at the end."""
        target = memoryview(buffer).cast("B")
        while True:
            if self._stream.eof:
                # Between streams there may be zeros, four at a time.
                rest = (self._stream.unused_data or self._file.read(_READ)).lstrip(b"\0")
                while not rest and (rest := self._file.read(_READ)):
                    rest = rest.lstrip(b"\0")
                if not rest:
                    return 0
                self._stream, compressed = _begun(), rest
            else:
                compressed = self._file.read(_READ) if self._stream.needs_input else b""
                if self._stream.needs_input and not compressed:
                    raise EOFError("the stream ends before its end marker")
            data = self._stream.decompress(compressed, len(target))
            if data:
                target[: len(data)] = data
                return len(data)


def _begun() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(memlimit=_MEMORY)
