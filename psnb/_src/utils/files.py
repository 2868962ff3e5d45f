"""Files that must be whole: their checksums, and that they are on disk. Pure."""

from __future__ import annotations

import json
import math
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial, total_ordering
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import fsspec
import msgspec
import numpy as np
from fsspec.implementations.local import LocalFileSystem
from msgspec import Meta
from safetensors import safe_open
from xxhash import xxh3_64, xxh3_64_hexdigest

from psnb._src.utils.threads import Answer, uninterrupted

Typed = TypeVar("Typed")

_CHUNK = 1 << 18


def checksum(file: Path) -> str:
    """Return the XXH3 checksum of a file, which is read piece by piece."""
    found, chunk = xxh3_64(), bytearray(_CHUNK)
    view = memoryview(chunk)
    with open(file, "rb", buffering=0) as opened:
        while size := opened.readinto(chunk):
            found.update(view[:size])
    return found.hexdigest()


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


# Sealed JSON: an object with its format and a checksum of itself. Pure.
#
# The checksum is XXH3 with 64 bits: it misses accidental damage once in 2**64 times, and does not
# protect against attacks. So a reader checks everything else in it: with the type that it
# must have (`typed`), whose errors name the place. The text itself is parsed by Python:
# msgspec's own decoder keeps the last of two equal keys, and its integers end at 64 bits, but
# metadata are the caller's.

_MOST_BYTES = 1 << 28
"""A manifest has some hundred bytes for each parameter; a larger file is not read."""


def sealed(content: Mapping[str, Any], form: int) -> str:
    """Return the text of an object, with its format and checksum.

    Raises
    ------
    ValueError, TypeError, RecursionError
        If JSON cannot hold it.
    """
    # As it will be read: for example, keys that are numbers become texts.
    plain = plain_json({"format": form, **content})
    return json.dumps({**plain, "xxh3": _sum(plain)}, indent=1)


def read_sealed(file: Path, form: int) -> dict[str, Any]:
    """Return the object in a file, without format and checksum.

    Raises
    ------
    OSError, ValueError, RecursionError
        If it is not there, is damaged, or has another format.
    """
    with open(file, "rb") as opened:
        data = opened.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"its manifest has more than {_MOST_BYTES} bytes")
    content = typed(_parsed(data.decode()), dict[str, Any])
    found = content.pop("format", None)
    if type(found) is not int:
        raise ValueError("its manifest does not say its format")
    if found != form:
        raise FormatError(f"has format {found!r:.80}, this psnb reads {form}")
    content = {"format": form, **content}
    if content.pop("xxh3", None) != _sum(content):
        raise ValueError("its manifest does not have the checksum that it says")
    del content["format"]
    return content


class FormatError(ValueError):
    """It is written in another version of its format."""


def plain_json(content: Any) -> Any:
    """Return what JSON makes of an object.

    Raises
    ------
    ValueError, TypeError, RecursionError
        If JSON cannot hold it, for example NaN.
    """
    return _parsed(_json(content))


def typed(content: object, kind: type[Typed]) -> Typed:
    """Return what JSON holds as a type of msgspec's.

    Raises
    ------
    ValueError
        If it is of another type; it says where. (msgspec's own error is none in its 0.20.)
    """
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def one_of(*words: str) -> Meta:
    """Return what has `msgspec` check that a text is one of some words.

    Not `Literal`: then mypy would want such a type of all who write one.
    """
    return Meta(pattern=rf"\A({'|'.join(map(re.escape, words))})\Z")


def require(condition: bool, otherwise: str) -> None:
    """Raise ValueError unless a condition holds, such as one between two values of an object."""
    if not condition:
        raise ValueError(otherwise)


def _sum(content: Mapping[str, Any]) -> str:
    return xxh3_64_hexdigest(_json(content).encode())


def _json(content: Any) -> str:
    return json.dumps(content, allow_nan=False)


def _parsed(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError(f"a key is there twice among {[key for key, _ in pairs]}")
    return made


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON's")


# Arrays of safetensors files, mapped into memory: only what is touched is read. Pure.

DTYPES = {
    f"{kind.upper()}{8 * size}": np.dtype(f"<{kind}{size}")
    for kind, sizes in (("i", (1, 2, 4, 8)), ("u", (1, 2, 4, 8)), ("f", (2, 4, 8)))
    for size in sizes
}
"""The dtypes that parameters have, by their names in the files."""

Dtype = Annotated[str, one_of(*(each.name for each in DTYPES.values()))]
"""The name of one, as `msgspec` checks it."""


_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def safetensors_head(
    arrays: Mapping[str, tuple[np.dtype, tuple[int, ...]]], nbytes: int = 0
) -> bytes:
    """Return the beginning of a safetensors file, before the bytes of its arrays.

    By hand, as the library writes only arrays that are in memory as a whole.

    Parameters
    ----------
    arrays : mapping of str to tuple
        Dtype and shape of each, in the order in which they follow without gaps.
    nbytes : int
        The least number of its bytes; always a multiple of 8.
    """
    header, end = {}, 0
    for name, (dtype, shape) in arrays.items():
        start, end = end, end + dtype.itemsize * math.prod(shape)
        header[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text = text.ljust(max(len(text) + -len(text) % 8, nbytes - 8))
    return len(text).to_bytes(8, "little") + text


def mapped_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file by their names, mapped into memory and read-only.

    The file must not be shortened while they are used: that ends the process.

    Raises
    ------
    OSError, SafetensorError, ValueError
        If it is not such a file, or has an array of another dtype.
    """
    with safe_open(path, framework="numpy"):
        pass  # it raises unless the arrays in the header fill the file
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return {name: _mapped(path, name, 8 + size, form) for name, form in header.items()}


def _mapped(path: Path, name: str, start: int, form: dict[str, Any]) -> np.ndarray:
    dtype, shape = DTYPES.get(form["dtype"]), tuple(form["shape"])
    if dtype is None:
        raise ValueError(f"array {name!r:.80} has dtype {form['dtype']}")
    try:
        if not math.prod(shape):
            return np.empty(shape, dtype)
        whole = np.memmap(path, dtype, "r", start + form["data_offsets"][0], shape)
    except OverflowError as error:
        raise ValueError(f"array {name!r:.80} has shape {shape}") from error
    return whole.view(np.ndarray)


# Whether processes have the same version of psnb: what they say to each other is its own affair.
#
# The version is that of the door, which imports all rooms: so it is asked for when it is needed.


class OtherVersionError(ConnectionRefusedError):
    """A process has another version of psnb than the one that calls it."""


def own_version() -> str:
    """Return the version of psnb in this process."""
    return str(import_module("psnb").__version__)


def check_version(reply: object) -> None:
    """Raise OtherVersionError if what answers has another version, as its first answer says."""
    theirs, own = reply.get("psnb") if isinstance(reply, dict) else None, own_version()
    if theirs is not None and theirs != own:
        raise OtherVersionError(
            f"it has psnb {theirs}, and this process psnb {own}: install the same version in both, "
            "and start it again"
        )


# Addresses of files: paths on this machine, or what fsspec understands, like ``s3://bucket/key``.
#
# Pure. fsspec's errors say what a protocol needs to be installed.

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


# NewFile: a file that is being written, here or where fsspec writes, and its checksum. Pure.


class WrittenFile(NamedTuple):
    """A file that was written.

    Attributes
    ----------
    nbytes : int
        Its size.
    checksum : str
        XXH3 of it, as `psnb._src.utils.files.checksum` returns it.
    by : str
        What people call who wrote it.
    """

    nbytes: int
    checksum: str
    by: str


class NewFile:
    """A file in a folder that is there. Once this ends as a context manager, the file is on disk.

    If it ends with an error, a folder of fsspec's has no such file. One thread's at a time.

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
            self._file = open(os.path.join(folder, name), "xb", buffering=0)  # noqa: SIM115
        else:
            self._system, inner = filesystem_of(folder)
            self._path = f"{inner}/{name}"
            self._file = self._system.open(self._path, "wb")
        self._sum, self._nbytes = xxh3_64(), 0

    def __enter__(self) -> NewFile:
        return self

    def __exit__(self, kind: object, *exc_info: object) -> None:
        with ExitStack() as ended:
            if kind is not None and not self._local:
                ended.callback(self._remove)
            ended.callback(self._file.close)
            if self._local and kind is None:
                os.fsync(self._file.fileno())

    def _remove(self) -> None:
        # To close it is to upload what there is, maybe after its folder was removed.
        with suppress(Exception):  # the error before is raised
            self._system.rm(self._path)

    def write(self, content: memoryview) -> None:
        """Write all of this."""
        self._sum.update(content)
        self._nbytes += content.nbytes
        while content:
            content = content[self._file.write(content) :]

    def written(self, by: str) -> WrittenFile:
        """Return what was written, by whom."""
        return WrittenFile(self._nbytes, self._sum.hexdigest(), by)


# RemotePath: a file or folder where fsspec finds it, with the names of `pathlib.Path`. Pure.


@total_ordering
class RemotePath:
    """The address of a file or folder; what is there is always looked up again.

    Immutable, and safe in any thread. All errors of the place are OSErrors.

    Parameters
    ----------
    address : str
        Something like ``s3://bucket/folder``.
    """

    __slots__ = ("_address",)

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")

    def __str__(self) -> str:
        return self._address

    def __fspath__(self) -> str:
        return self._address  # which fsspec and what is built on it understand

    def __repr__(self) -> str:
        return f"<psnb RemotePath {self._address!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and str(self) == str(other)

    def __lt__(self, other: RemotePath) -> bool:
        return str(self) < str(other)

    def __hash__(self) -> int:
        return hash(self._address)

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
            with self._system() as (system, inner):
                system.info(inner)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def names(self) -> list[str]:
        """Return the names of what is in a folder; none if it is not there."""
        try:
            with self._system() as (system, inner):
                found = system.ls(inner, detail=False)
        except FileNotFoundError:
            return []
        return sorted(each.rstrip("/").rpartition("/")[2] for each in found)

    def size(self) -> int:
        """Return the bytes of a file."""
        with self._system() as (system, inner):
            return int(system.size(inner))

    def modified(self) -> float:
        """Return when a file was written, in seconds since the epoch."""
        with self._system() as (system, inner):
            return float(system.modified(inner).timestamp())

    def read_text(self) -> str:
        """Return the text of a file."""
        with self._system() as (system, inner):
            return str(system.cat_file(inner).decode())

    def create(self, text: str) -> None:
        """Make a file, unless there is one: then it raises FileExistsError.

        Most stores see to it that only one of two can, who do it at once.
        """
        with self._system() as (system, inner):
            system.pipe_file(inner, text.encode(), mode="create")

    def make_folder(self) -> None:
        """Make a folder and those around it, where there are any; but no bucket."""
        with self._system() as (system, inner):
            if "/" not in inner.strip("/") or system.exists(inner):
                return
            self.parent.make_folder()
            with suppress(FileExistsError):  # another one was faster
                system.mkdir(inner, create_parents=False)

    def fetch(self, to: Path) -> None:
        """Copy a file to this machine."""
        with self._system() as (system, inner):
            system.get_file(inner, str(to))

    def remove(self) -> None:
        """Remove a file, or a folder with all that is in it; nothing if it is not there."""
        try:
            with self._system() as (system, inner):
                system.rm(inner, recursive=True)
        except FileNotFoundError:
            pass

    @contextmanager
    def _system(self) -> Iterator[tuple[Any, str]]:
        try:
            system, inner = filesystem_of(self._address)
            system.invalidate_cache()  # others write there, too
            yield system, inner
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
