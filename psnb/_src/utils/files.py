"""Files that must be whole: their checksums, and that they are on disk. Pure."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from xxhash import xxh3_64

from psnb._src.utils.interrupts import uninterrupted
from psnb._src.utils.paths import filesystem_of, is_local
from psnb._src.utils.threads import Answer

_CHUNK = 1 << 20


class DamagedFileError(OSError):
    """A file of a checkpoint was read, and is not what was written."""


def checksum(
    file: Path, on_read: Callable[[int], object] = bool, start: int = 0, nbytes: int | None = None
) -> str:
    """Return the XXH3 checksum of a file, or of some bytes of it, which is read piece by piece.

    ``on_read`` is called with the bytes of each piece.
    """
    with open(file, "rb", buffering=0) as opened:
        left = os.fstat(opened.fileno()).st_size if nbytes is None else nbytes
        opened.seek(start)
        found, chunk = xxh3_64(), memoryview(bytearray(min(_CHUNK, left)))
        while size := opened.readinto(chunk[:left]):
            found.update(chunk[:size])
            on_read(size)
            left -= size
    return found.hexdigest()


def opened_plain(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file; OSError if it is a link, a pipe or a device, which might block."""
    opened = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return opened


def sync(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def synced(file: Path) -> str:
    """Sync a file to disk, and return its checksum, computed meanwhile."""
    done: Answer[None] = Answer()
    waits = partial(done.give, sync, file)
    with uninterrupted:
        threading.Thread(target=waits, name="psnb-sync", daemon=True).start()
    found = checksum(file)
    done.result()
    return found


class NewFile:
    """A file in a folder that is there. Once this ends as a context manager, the file is on disk.

    It consists of parts, each with a checksum. If it ends with an error, a folder of fsspec's has
    no such file. One thread's at a time.

    Parameters
    ----------
    folder : str
        A local path, or an address that fsspec understands.
    name : str
        The file's name there, which is none yet.
    """

    def __init__(self, folder: str, name: str) -> None:
        self._local = is_local(folder)
        self._file: Any
        if self._local:
            self._file = open(os.path.join(folder, name), "xb", buffering=_CHUNK)  # noqa: SIM115
        else:
            self._system, inner = filesystem_of(folder)
            self._path = f"{inner}/{name}"
            self._file = self._system.open(self._path, "wb")
        self._sum, self._nbytes = xxh3_64(), 0  # of this part, and of all

    def __enter__(self) -> NewFile:
        return self

    def __exit__(self, kind: object, *exc_info: object) -> None:
        with ExitStack() as ended:
            if kind is not None and not self._local:
                ended.callback(self._remove)
            ended.callback(self._file.close)
            if self._local and kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())

    def _remove(self) -> None:
        # To close it would upload its content, maybe after its folder was removed.
        with suppress(Exception):  # the error before is raised
            self._system.rm(self._path)

    def begin_part(self) -> int:
        """Begin a part; return where: a multiple of 8, as numbers are used where they are."""
        self.write(memoryview(bytes(-self._nbytes % 8)))
        self._sum = xxh3_64()
        return self._nbytes

    def write(self, content: memoryview) -> None:
        """Add bytes to the part."""
        self._sum.update(content)
        self._nbytes += content.nbytes
        while content:
            content = content[self._file.write(content) :]

    @property
    def checksum(self) -> str:
        """That of the part as it is now."""
        return self._sum.hexdigest()
