"""PartialCopy: what was asked for of a remote file, on this machine. Pure."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path

from psnb._src.utils.paths import RemotePath

_BLOCK = 16 << 20


class PartialCopy:
    """A copy on this machine of what was asked for of a remote file. Any thread may use it.

    Its bytes are where they are in the file, in blocks; the others are holes. So what is small
    comes with what is beside it, and little more is copied of what is large. It goes with this
    object.

    Parameters
    ----------
    source : RemotePath
        The file.
    on_read : callable
        Called with the bytes of each block that is copied.

    Attributes
    ----------
    remove : callable
        Removes it; idempotent.

    Raises
    ------
    OSError
        If there is no such file.
    """

    def __init__(self, source: RemotePath, on_read: Callable[[int], object] = bool) -> None:
        self._source, self._on_read, self._nbytes = source, on_read, source.size()
        opened, path = tempfile.mkstemp(source.name, "psnb-copy-")
        os.close(opened)
        self._path = Path(path)
        self.remove = weakref.finalize(self, self._path.unlink, missing_ok=True)
        self._there: set[int] = set()  # two threads may copy the same, to the same place

    def get(self, start: int = 0, stop: int | None = None) -> Path:
        """Return the copy, in which these bytes are; raise OSError if they cannot be had."""
        stop = self._nbytes if stop is None else min(stop, self._nbytes)
        for number in range(start // _BLOCK, -(-stop // _BLOCK)):
            if number not in self._there:
                at = number * _BLOCK
                size = min(_BLOCK, self._nbytes - at)
                content = self._source.read(at, at + size)
                if len(content) != size:  # such as all, of a web server that knows no ranges
                    raise OSError(
                        f"{self._source} gave {len(content):,} bytes in place of {size:,}"
                    )
                with open(self._path, "r+b") as file:
                    file.seek(at)
                    file.write(content)
                self._there.add(number)
                self._on_read(len(content))
        return self._path
