"""Opening files, local or remote, compressed or not.

Paths are local ones, or addresses that fsspec understands, such as ``s3://bucket/key``,
``https://host/file``, ``memory://file`` (fsspec's errors say what each needs to be installed). An
address is never split: ``a::b``, which fsspec would take for a chain of several, may be a file name
that other people have chosen. Local files are opened without fsspec. They are read, not mapped into
memory: a mapped file that another process shortens ends this one.

Every error of a file is a `DatasetError` that names it: exceptions of filesystems and decompressors
are translated here (`reading`) and nowhere else.
"""

from __future__ import annotations

import glob
import os
import platform
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

from fsspec.compression import compr
from fsspec.utils import infer_compression

from psnb._src.data.formats.streams import Decompressed, HttpFile
from psnb._src.utils.checks import path_text
from psnb._src.utils.paths import filesystem_of, is_local
from psnb._src.utils.text import error_text, shown
from psnb.errors import ConfigurationError, DatasetError, PsnbError

INFER = "infer"
"""Compression as the file's suffix says."""

_HTTP = ("http://", "https://")
_ZLIB_SUFFIXES = (".zlib", ".zz")
_MARKS = (
    ("gzip", rb"\x1f\x8b\x08", ".gz"),
    ("bz2", rb"BZh[1-9]1AY&SY", ".bz2"),
    ("xz", rb"\xfd7zXZ\x00", ".xz"),
    ("zstd", rb"\x28\xb5\x2f\xfd", ".zst"),
    ("zip", rb"PK\x03\x04", ".zip"),
)
"""What packed files begin with, as regular expressions, and how their names end."""


def list_files(patterns: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the files that some paths or patterns name, sorted for each pattern.

    Parameters
    ----------
    patterns : str, path or sequence of them
        Paths, in which ``*``, ``?``, ``[…]`` and ``**`` stand for what they do in a shell, unless
        there is a file of that very name. A path without any is returned whether there is such a
        file or not.

    Returns
    -------
    list of str
        Absolute paths, and addresses: workers have other working directories.

    Raises
    ------
    DatasetError
        If nothing matches a pattern, or the filesystem cannot be asked.
    """
    if hasattr(patterns, "columns"):  # iterated, it would be the names of these
        raise ConfigurationError(
            f"files must be paths, found {shown(patterns)}: psnb.data.Dataset.from_table takes it"
        )
    several: list[Any] = [patterns]
    if isinstance(patterns, Iterable) and not isinstance(patterns, (str, os.PathLike)):
        several = list(patterns)
    if not all(isinstance(each, (str, os.PathLike)) for each in several):
        raise ConfigurationError(
            f"files must be paths, or a list of paths, found {shown(patterns)}"
        )
    found = [path for pattern in several for path in _matches(path_text("files", pattern))]
    return [os.path.abspath(path) if is_local(path) else path for path in found]


def _matches(pattern: str) -> list[str]:
    # In the address of a web page, a question mark begins a query.
    magic = "*[" if pattern.startswith(_HTTP) else "*?["
    if not any(sign in pattern for sign in magic):
        return [pattern]
    with reading(pattern):
        if is_local(pattern):
            if os.path.isfile(pattern):
                return [pattern]
            found = [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
        else:
            system, inner = filesystem_of(pattern)
            if system.isfile(inner):
                return [pattern]
            found = system.glob(inner)
            if system._get_kwargs_from_urls(pattern) and pattern.endswith(inner):
                # With user, host and port as there.
                found = [pattern.removesuffix(inner) + path for path in found]
            else:
                found = [system.unstrip_protocol(path) for path in found]
    if not found:
        raise DatasetError(f"no file matches {pattern}")
    return sorted(found)


def compression_of(path: str, compression: str | None) -> str | None:
    """Return how a file is compressed, None if it is not; ``compression`` may be "infer".

    Raises
    ------
    ConfigurationError
        If the compression is not known.
    """
    if compression == INFER:
        return "zlib" if path.endswith(_ZLIB_SUFFIXES) else infer_compression(path)
    check_compression(compression)
    return compression


def check_compression(compression: str | None) -> None:
    """Raise `ConfigurationError` if a compression is not known."""
    known = sorted({INFER, "zlib", *(name for name in compr if name)})
    if compression is not None and compression not in known:
        raise ConfigurationError(f"compression is {shown(compression)}: not one of {known} or None")


def check_plain(path: str, compression: str | None, begin: bytes) -> None:
    """Raise `DatasetError` if a file is packed, and it was to be known by its name that it is not.

    Parameters
    ----------
    begin : bytes
        What the file begins with; some 16 bytes are enough.
    """
    if compression != INFER or compression_of(path, compression) is not None:
        return
    for how, mark, suffix in _MARKS:
        if re.match(mark, begin):
            raise DatasetError(
                f"{path} is packed with {how}, which its name does not say: give "
                f"compression={how!r}, or let its name end with {suffix}. compression=None reads "
                "its bytes as they are"
            )


def missing(path: str) -> str:
    """Return what to say of a file that is not there."""
    if not is_local(path):
        return f"{path}: no such file"
    place = platform.node()
    if not os.path.isabs(path):
        return f"{path}: no such file in {os.getcwd()} on {place}, where this runs"
    return (
        f"{path}: no such file on {place}, where this runs: each machine that reads it needs it at "
        "that path, in a folder that all share; or give an address, such as s3://bucket/file"
    )


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Translate errors of a file to `DatasetError`."""
    try:
        yield
    except PsnbError:
        raise
    except FileNotFoundError as error:
        raise DatasetError(missing(path)) from error
    except PermissionError as error:
        raise DatasetError(f"{path}: no permission to open it") from error
    except IsADirectoryError as error:
        raise DatasetError(f"{path} is a folder: list its files, e.g. {path}/*") from error
    except (EOFError, zlib.error) as error:
        raise DatasetError(f"{path}: the data are cut short or corrupt: {error}") from error
    except Exception as error:  # each filesystem has its own, without a common class
        raise DatasetError(f"{path} cannot be read: {error_text(error)}") from error


@contextmanager
def translated(path: str, problem: str, advice: str = "") -> Iterator[None]:
    """Translate all errors of a file to `DatasetError`, but those that name it already."""
    try:
        yield
    except Exception as error:  # filesystems and parsers have their own, without a common class
        if isinstance(error, DatasetError) and path in str(error):
            raise
        raise DatasetError(f"{problem}: {error_text(error)}{advice}") from error


@contextmanager
def opened(path: str, compression: str | None) -> Iterator[Any]:
    """Open a file for reading what is in it, decompressed; it has ``readinto``."""
    how = compression_of(path, compression)
    with ExitStack() as stack:
        with reading(path):
            source = HttpFile(path) if path.startswith(_HTTP) else stored(path)
            raw = stack.enter_context(source)
            # Without a byte there is nothing to decompress, not even a header.
            if how is not None and not holds_nothing(raw):
                raw = stack.enter_context(_decompressed(raw, how, path))
        yield raw


@contextmanager
def stored(path: str) -> Iterator[Any]:
    """Open a file for reading what is in it as it is stored; one may seek, where it can be."""
    with reading(path):
        if is_local(path):
            file: Any = open(path, "rb", opener=_open_file)  # noqa: SIM115
        else:
            system, inner = filesystem_of(path)
            file = system.open(inner, "rb")
    with file:
        yield file


def holds_nothing(file: Any) -> bool:
    """Return whether a file that stands at its beginning has no byte, if that can be seen."""
    if not file.seekable():
        return False
    size = file.seek(0, 2)
    file.seek(0)
    return bool(size == 0)


def _open_file(path: str, flags: int) -> int:
    """Open a file, but no pipe: to open one is to wait until another process writes to it."""
    opened = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(mode := os.fstat(opened).st_mode) and not stat.S_ISDIR(mode):
        os.close(opened)
        raise DatasetError(
            f"{path} is not a file but a pipe or a device, which can be read only once; read it "
            "with Dataset.from_generator, or write what comes out of it to a file"
        )
    return opened


def _decompressed(raw: Any, how: str, path: str) -> Any:
    if how in ("xz", "lzma", "zlib"):
        return Decompressed(raw, how)
    if how == "zip":
        archive = ZipFile(raw)
        first = archive.infolist()[0]
        # With others, Python reads all that a few bytes unpack to.
        if first.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            raise DatasetError(f"{path}: its first file is not deflated; pack it so, or with gzip")
        return archive.open(first)
    return compr[how](raw, mode="rb")


def size_of(path: str) -> int:
    """Return the size of a file in bytes, as it is stored."""
    with reading(path):
        if is_local(path):
            return os.stat(path).st_size
        system, inner = filesystem_of(path)
        size = system.size(inner)
    if size is None:
        raise DatasetError(f"{path}: its server does not say how large it is")
    return int(size)
