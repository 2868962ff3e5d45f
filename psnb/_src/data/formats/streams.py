"""What HTTP servers, and xz and zlib, give, read as files."""

from __future__ import annotations

import io
import lzma
import zlib
from typing import Any

import fsspec

_SECONDS = 60.0
"""How long a server may take to answer, and to send the next bytes."""

_SKIPPED = 1 << 20


class HttpFile(io.RawIOBase):
    """A file on an HTTP server, read in ranges; in one go from its start if the server has none.

    Parameters
    ----------
    path : str
        Its address.
    """

    def __init__(self, path: str):
        super().__init__()
        self._path = path
        self._at = 0
        self._file = self._open()
        # If the server does not send the size, fsspec reads the file in one go.
        self._in_ranges = self._file.size is not None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        """Return whether the server sends the size, as it must for ranges."""
        return self._in_ranges

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go somewhere else, as long as nothing was read; return the position."""
        self._at = int(self._file.seek(offset, whence))
        return self._at

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        try:
            data = self._file.read(len(target))
        except ValueError:
            if not self._in_ranges:
                raise
            # The server sends the whole file instead of a range.
            self._in_ranges = False
            self._file.close()
            self._file = self._open(block_size=0)
            ahead = self._at
            while ahead > 0:
                if not (data := self._file.read(min(ahead, _SKIPPED))):
                    raise EOFError("the server sent less than it had announced") from None
                ahead -= len(data)
            data = self._file.read(len(target))
        self._at += len(data)
        target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()

    def _open(self, **options: Any) -> Any:
        from aiohttp import ClientTimeout

        # No limit on the whole: one answer may be read for as long as training takes.
        limit = ClientTimeout(total=None, sock_connect=_SECONDS, sock_read=_SECONDS)
        system = fsspec.filesystem("http", client_kwargs={"timeout": limit})
        return system.open(self._path, "rb", **options)


_READ = 1 << 18

_MEMORY = 1 << 27
"""What an xz stream may take to be decompressed: twice what ``xz -9`` asks for."""


class Decompressed(io.RawIOBase):
    """The content of a file of one or several streams, one after the other, in bounded memory.

    Python's own class sets no limit, and takes what follows the zeros between two streams for none.

    Parameters
    ----------
    file : binary file
        The compressed one. It stays open.
    how : str
        "xz" or "lzma"; or "zlib" (RFC 1950).
    """

    def __init__(self, file: Any, how: str):
        super().__init__()
        self._file, self._zlib = file, how == "zlib"
        self._stream: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        while True:
            stream = self._stream
            if stream is None or stream.eof:
                compressed = self._next_stream()
                if not compressed:
                    return 0
                xz = lzma.LZMADecompressor
                self._stream = stream = zlib.decompressobj() if self._zlib else xz(memlimit=_MEMORY)
            elif self._zlib and stream.unconsumed_tail:
                compressed = stream.unconsumed_tail
            elif not self._zlib and not stream.needs_input:
                compressed = b""
            elif not (compressed := self._file.read(_READ)):
                raise EOFError("the stream ends before its end marker")
            data = stream.decompress(compressed, len(target))
            if data:
                target[: len(data)] = data
                return len(data)

    def _next_stream(self) -> bytes:
        """Return the first bytes of the next stream; none at the end."""
        if self._stream is None:
            return self._file.read(_READ)
        # Between streams of xz there may be zeros, four at a time.
        between = b"" if self._zlib else b"\0"
        found = self._stream.unused_data.lstrip(between)
        while not found and (more := self._file.read(_READ)):
            found = more.lstrip(between)
        return found
