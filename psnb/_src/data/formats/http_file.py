"""Files on HTTP servers."""

from __future__ import annotations

import io
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
        # If the server does not tell the size, fsspec reads the file in one go by itself.
        self._in_ranges = self._file.size is not None

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return whether the server tells the size, as it must for ranges."""
        return self._in_ranges

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go somewhere else, as long as nothing was read; return the position."""
        self._at = int(self._file.seek(offset, whence))
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a part of a buffer; return how much of it, 0 at the end."""
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
            self._skip(self._at)
            data = self._file.read(len(target))
        self._at += len(data)
        target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the connection."""
        if not self.closed:
            self._file.close()
        super().close()

    def _open(self, **options: Any) -> Any:
        from aiohttp import ClientTimeout

        # No limit on the whole: one answer may be read for as long as training takes.
        limit = ClientTimeout(total=None, sock_connect=_SECONDS, sock_read=_SECONDS)
        system = fsspec.filesystem("http", client_kwargs={"timeout": limit})
        return system.open(self._path, "rb", **options)

    def _skip(self, count: int) -> None:
        while count > 0:
            data = self._file.read(min(count, _SKIPPED))
            if not data:
                raise EOFError("the server sent less than it said")
            count -= len(data)
