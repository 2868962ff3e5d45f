"""Opening files, local or remote, compressed or not.

Paths are local ones, or addresses that fsspec understands, such as ``s3://bucket/key``,
``https://host/file``, ``memory://file`` (what each needs to be installed, fsspec's errors say). An
address is never split: what fsspec would take for a chain of several, ``a::b``, may be a file name
that other people have chosen. Local files are opened without fsspec. They are read, not mapped into
memory: a mapped file that another process shortens ends this one.

Every error of a file is a `DatasetError` that names it: exceptions of filesystems and decompressors
are translated here (`reading`) and nowhere else.
"""

from __future__ import annotations

import glob
import io
import lzma
import os
import platform
import re
import shutil
import signal
import stat
import subprocess
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import fsspec
import numpy as np
from fsspec.compression import compr
from fsspec.utils import infer_compression

from psnb._src.utils.checks import integer
from psnb._src.utils.files import filesystem_of, is_local
from psnb._src.utils.memory import lasting
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError, DatasetError, PsnbError

# Files on HTTP servers.

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
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return whether the server sends the size, as it must for ranges."""
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
                raise EOFError("the server sent less than it had announced")
            count -= len(data)


# Reading an xz or lzma stream as a file, in bounded memory, as Python's own class does not.

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
    """Return the files that some paths or patterns name, those of each pattern sorted.

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
    several: list[Any] = [patterns]
    if isinstance(patterns, Iterable) and not isinstance(patterns, (str, os.PathLike)):
        several = list(patterns)
    if not all(isinstance(each, (str, os.PathLike)) for each in several):
        raise ConfigurationError(
            f"files must be paths, or a list of paths, found {shown(patterns)}"
        )
    found = [path for pattern in several for path in _matches(os.fspath(pattern))]
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
            found = [_address(pattern, inner, path, system) for path in system.glob(inner)]
    if not found:
        raise DatasetError(f"no file matches {pattern}")
    return sorted(found)


def _address(pattern: str, inner: str, path: str, system: Any) -> str:
    """Return the address of a file that matches a pattern, with user, host and port as there."""
    if system._get_kwargs_from_urls(pattern) and pattern.endswith(inner):
        return pattern.removesuffix(inner) + path
    address: str = system.unstrip_protocol(path)
    return address


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
    except Exception as error:
        # Each filesystem has its own exceptions, without a common class.
        raise DatasetError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Translate errors of writing a file to `DatasetError`."""
    try:
        yield
    except Exception as error:  # each filesystem has its own exceptions
        raise DatasetError(f"{path} cannot be written: {type(error).__name__}: {error}") from error


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
    if how == "zlib":
        return ZlibFile(raw)
    if how in ("xz", "lzma"):
        return XzFile(raw)
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


# Chunk: what every reader of files yields.

CHUNK_BYTES = 1 << 20
"""About how much of a file becomes one chunk: as much as a processor's own cache holds."""

CHUNK_RECORDS = 4096
"""The most records of one chunk, however short they are."""


@dataclass(frozen=True, eq=False, slots=True)
class Chunk:
    """Some consecutive records of a file.

    What becomes one chunk depends on the file from its first record on, and on nothing else: when
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
        Where the record after the last begins. Given to ``read`` as ``offset``, reading goes on
        there. In uncompressed bytes from the start of the file; of Parquet, in rows.
    loose : bool
        Whether arrays that have one shape here may have another in other chunks.
    """

    columns: Any
    count: int
    first: int
    next_offset: int
    loose: bool = False


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


# Limits on the size of a record: no memory is allocated for a longer one.

MAX_RECORD_BYTES = 1 << 26
"""How many bytes a record may have, unless a reader is given another limit."""

MAX_COLUMNS = 1 << 14
"""How many columns a CSV file may have, unless its reader is given another limit."""

LONGEST = 1 << 30
"""The largest limit that can be set."""


def checked_limit(limit: int) -> int:
    """Return a limit as an int, or raise `ConfigurationError` if it cannot be one."""
    return integer("max_record_bytes", limit, 1, LONGEST)


class _Limited(Protocol):
    @property
    def compression(self) -> str | None: ...

    @property
    def max_record_bytes(self) -> int: ...


def check_reading(form: _Limited) -> None:
    """Check what most formats have, a frozen dataclass each; make its limit an int.

    Raises
    ------
    ConfigurationError
        If the compression is not known, or the limit not possible.
    """
    check_compression(form.compression)
    object.__setattr__(form, "max_record_bytes", checked_limit(form.max_record_bytes))


def too_long(place: FilePosition, noun: str, number: int, byte: int, limit: int) -> DatasetError:
    """Return the error for a record over the limit; parameters as for `FilePosition.error`."""
    return place.error(
        noun,
        number,
        byte,
        f"it is longer than max_record_bytes={limit}; give the reader more, unless the file is of "
        "another format, or compressed",
    )


def within(lengths: np.ndarray, limit: int) -> int:
    """Return how many records come before the first that is too long."""
    longer = lengths > limit
    return int(longer.argmax()) if longer.any() else len(lengths)


# A window that moves over the bytes of a file.

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
        A view of what is read and not yet skipped; valid until the next `more`.
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
                # What decompresses does so into a buffer of its own, of as many bytes.
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


# Reading a file through a shell command.
#
# Threads: one feeds the command if it cannot open the file itself, another reads the command's
# standard error. Both end with the command, which ends with the reading.

_KEPT = 4096
"""How many of the last bytes of standard error are kept for the message."""

_END_SECONDS = 5.0
"""Seconds that threads may take to end after the command, which may have left children behind."""


@contextmanager
def piped(
    path: str, compression: str | None, command: str, offset: int, limit: int
) -> Iterator[ByteWindow]:
    """Run a command of the shell on a file; yield the window on its output, from an offset on.

    Raises
    ------
    DatasetError
        If the file cannot be read, or the output ends and the command has failed: any part of a
        pipeline, where the shell can tell (bash and newer others).
    """
    with opened(path, compression) as file:
        direct = is_local(path) and compression_of(path, compression) is None
        with reading(path):
            process = subprocess.Popen(
                _shell(command),
                stdin=file if direct else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        run = _PipedCommand(process, path, command, None if direct else file)
        try:
            window = ByteWindow(run, path, limit=limit)
            if offset > 0:
                window.discard(offset)
            else:
                window.more()
            yield window
        finally:
            run.end()


def _shell(command: str) -> list[str]:
    """Return how to run a command so that it fails if any part of a pipeline in it does."""
    found = shutil.which("bash")
    if found is not None:
        return [found, "-o", "pipefail", "-c", command]
    # Not every other shell has it: then the last part of a pipeline decides.
    return ["/bin/sh", "-c", f"(set -o pipefail) 2>/dev/null && set -o pipefail\n{command}"]


class _PipedCommand:
    """A running command; its output is read like a file."""

    def __init__(self, process: subprocess.Popen[bytes], path: str, command: str, file: Any):
        self._process = process
        self._path = path
        self._command = command
        self._complaints = b""
        self._failure: BaseException | None = None
        self._threads = [threading.Thread(target=self._listen, name="psnb-pipe-errors")]
        if file is not None:
            feeder = threading.Thread(target=self._feed, args=[file], name="psnb-pipe-feeder")
            self._threads.append(feeder)
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def readinto(self, buffer: Any) -> int:
        """Fill a part of a buffer; return how much of it, 0 at the end of a command that did well.

        Raises
        ------
        DatasetError
            At the end, if the command failed or could not be fed.
        """
        count: int = self._process.stdout.readinto(buffer)  # type: ignore[union-attr]
        if count == 0:
            self._check(self._process.wait())
        return count

    def end(self) -> None:
        """Kill the command and all that it started, if it is still there."""
        if self._process.returncode is None:
            # It was not waited for yet, so its process id is still its own.
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _check(self, status: int) -> None:
        self._join()
        if self._failure is not None:
            with reading(self._path):
                raise self._failure
        # With pipefail, a part whose reader had seen enough (`zcat | head`) ends the shell so.
        if status not in (0, 128 + signal.SIGPIPE):
            how = f"exit status {status}" if status > 0 else f"signal {-status}"
            complaint = self._complaints.decode("utf-8", "replace").strip()
            raise DatasetError(
                f"{self._path}: the command {self._command!r} ended with {how}"
                + (f"; it wrote: {complaint}" if complaint else " and wrote no error")
            )

    def _join(self) -> None:
        for thread in self._threads:
            thread.join(_END_SECONDS)

    def _listen(self) -> None:
        errors = self._process.stderr
        assert errors is not None
        while piece := errors.read(_KEPT):
            self._complaints = (self._complaints + piece)[-_KEPT:]

    def _feed(self, file: Any) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        buffer = np.empty(CHUNK_BYTES, np.uint8).data
        try:
            while count := file.readinto(buffer):
                left = buffer[:count]
                while left:
                    left = left[pipe.write(left) :]
        except BrokenPipeError:
            # The command has seen enough; how it ends says whether that is well.
            pass
        except Exception as error:  # raised in the reader's thread
            self._failure = error
        finally:
            with suppress(OSError):
                pipe.close()
