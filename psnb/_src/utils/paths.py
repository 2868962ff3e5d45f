"""Addresses of files: paths on this machine, or what fsspec understands, like ``s3://bucket/key``.

Pure. fsspec's errors say what a protocol needs to be installed.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

_PROTOCOL = re.compile("[A-Za-z0-9+._-]+://")


def is_local(path: str) -> bool:
    """Return whether a path is one of this machine's files, without a protocol."""
    return _PROTOCOL.match(path) is None


def filesystem_of(address: str) -> tuple[Any, str]:
    """Return the filesystem of an address or local path, and the file's name in it."""
    if is_local(address):
        return LocalFileSystem(), os.path.abspath(address)
    kind = fsspec.get_filesystem_class(address.split("://", 1)[0])
    return kind(**kind._get_kwargs_from_urls(address)), kind._strip_protocol(address)


@dataclass(frozen=True, order=True, slots=True, repr=False)
class RemotePath:
    """The address of a file or folder; nothing is cached.

    Immutable, and safe in any thread. All errors of the place are OSErrors.

    Parameters
    ----------
    address : str
        Something like ``s3://bucket/folder``.
    """

    _address: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "_address", self._address.rstrip("/"))

    def __str__(self) -> str:
        return self._address

    def __fspath__(self) -> str:
        return self._address  # which fsspec and what is built on it understand

    def __repr__(self) -> str:
        return f"<psnb RemotePath {self._address!r}>"

    def __truediv__(self, below: str) -> RemotePath:
        return RemotePath(f"{self._address}/{below}")

    @property
    def name(self) -> str:
        """The last part."""
        return self._address.rpartition("/")[2]

    @property
    def parent(self) -> RemotePath:
        """All but the last part."""
        return RemotePath(self._address.rpartition("/")[0])

    def exists(self) -> bool:
        """Return whether something is there; raise if that cannot be known now.

        By ``info``: fsspec's own ``exists`` takes any error for an answer.
        """
        try:
            self._call("info")
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def names(self) -> list[str]:
        """Return the names in a folder; none if it is not there."""
        try:
            found = self._call("ls", detail=False)
        except FileNotFoundError:
            return []
        return sorted(each.rstrip("/").rpartition("/")[2] for each in found)

    def size(self) -> int:
        """Return the bytes of a file."""
        return int(self._call("size"))

    def modified(self) -> float:
        """Return when a file was written, in seconds since the epoch."""
        return float(self._call("modified").timestamp())

    def read_text(self) -> str:
        """Return the text of a file."""
        return str(self._call("cat_file").decode())

    def create(self, text: str) -> None:
        """Make a file, unless there is one: then it raises FileExistsError.

        Most stores make sure that of two concurrent callers only one succeeds.
        """
        self._call("pipe_file", text.encode(), mode="create")

    def make_folder(self) -> None:
        """Make a folder and those around it, where there are any; but no bucket."""
        if "/" in self._call("_strip_protocol").strip("/") and not self._call("exists"):
            self.parent.make_folder()
            with suppress(FileExistsError):  # another one was faster
                self._call("mkdir", create_parents=False)

    def read(self, start: int, stop: int) -> bytes:
        """Return some bytes of a file."""
        return bytes(self._call("cat_file", start=start, end=stop))

    def remove(self) -> None:
        """Remove a file, or a folder with all that is in it; nothing if it is not there."""
        with suppress(FileNotFoundError):
            self._call("rm", recursive=True)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the filesystem for what is there."""
        try:
            system, inner = filesystem_of(self._address)
            system.invalidate_cache()  # others write there, too
            return getattr(system, method)(inner, *args, **kwargs)
        except OSError:
            raise
        except Exception as error:  # of any store's own kind
            raise OSError(f"{type(error).__name__}: {error}") from error


AnyPath = Path | RemotePath
"""Where a folder is."""


def as_path(given: str | os.PathLike[str]) -> AnyPath:
    """Return the place that a path or address names."""
    text = os.fspath(given)
    if is_local(text) or text.startswith("file://"):
        return Path(text.removeprefix("file://")).absolute()
    return RemotePath(text)
