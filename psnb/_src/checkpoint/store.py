"""CheckpointStore: where checkpoints are, and how those who use it stay apart. Pure.

A checkpoint is there wholly or not at all, at any time, whichever process is killed.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import math
import os
import re
import shutil
import stat
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
from msgspec import Meta, Struct

from psnb._src.utils.files import sync
from psnb._src.utils.paths import AnyPath, RemotePath
from psnb._src.utils.sealed_json import FormatError, plain_json, read_sealed, require, sealed, typed
from psnb._src.utils.text import shown
from psnb.errors import CheckpointError

# FolderLock: a lock between processes and threads that use one folder. Pure.
#
# It is the operating system's lock (``flock``) on a file. Each opening of the file has its own
# lock, so it works between two managers of one process as between processes. The lock ends with its
# process, however that ends: nothing stays locked.

EXCLUSIVE, SHARED, AT_ONCE = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_NB


class FolderLock:
    """A file that is open and locked until it is released; one thread's at a time.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    mode : str
        As for `open`. NFS locks a file exclusively only if it is open for writing.
    how : int
        `EXCLUSIVE` or `SHARED`; with ``| AT_ONCE`` it does not wait.

    Attributes
    ----------
    file : file object
        The file.
    real : bool
        False if the file system has no locks, like some network file systems: then no process is
        kept out.

    Raises
    ------
    BlockingIOError
        If another holder has it, and ``how`` says not to wait.
    OSError
        If the file cannot be opened, or is not a regular file: to open a pipe would block, and a
        link may lead anywhere.
    """

    def __init__(self, path: Path, mode: str, how: int) -> None:
        with ExitStack() as opened:
            self.file: IO[Any] = opened.enter_context(open(path, mode, opener=_plain))
            try:
                fcntl.flock(self.file, how)
                self.real = True
            except BlockingIOError:
                raise
            except OSError:
                self.real = False
            opened.pop_all()  # it stays open unless this failed or was interrupted

    def release(self) -> None:
        """Unlock the file and close it; a second time does nothing."""
        if self.file.closed:
            return
        with self.file:
            if self.real:
                # Closing is not enough: a process that was forked meanwhile has the file open too.
                fcntl.flock(self.file, fcntl.LOCK_UN)

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()


def _plain(path: str, flags: int) -> int:
    """Open a file, unless it is a link, a pipe or a device."""
    opened = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return opened


# Manifest: the list of a checkpoint's content, how it is written and read. Pure.
#
# It is JSON, with a checksum of each shard's file and one of itself: XXH3 with 64 bits, which costs
# little more than reading, and misses accidental damage once in 2**64 times. It does not protect
# against attacks: an attacker can compute a new checksum. So a valid checksum alone is not trusted;
# `psnb._src.checkpoint.shards` and `psnb._src.server.tables.states` check everything else.

FORMAT = 7

MANIFEST = "manifest.json"
"""The file that makes a folder a checkpoint."""

KEPT = "kept"
"""The file that marks a checkpoint as one that stays. It is there from the beginning: otherwise
another manager's save might remove the checkpoint first."""

_FILES = r"(files-[0-9a-f]{32}/)?"
_FILE = _FILES + r"[0-9]{4,9}-[0-9]{5,9}(-(?P<depth>[0-9]{2,9}))?\.safetensors"
"""The names of shards' files, which are in the checkpoint's folder, or in one beside it that has
such a name, and nowhere else."""

_DEEPEST = 10**9

ShardFiles = Annotated[
    Mapping[Annotated[str, Meta(pattern=rf"\A{_FILE}\Z")], str], Meta(min_length=1)
]
"""The files of a shard, with their checksums: all of it, then what changed, the oldest first."""


class ManifestEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One parameter in a checkpoint.

    Attributes
    ----------
    name : str
        The parameter's name.
    description : mapping
        What must be equal to load it: kind, dtype, shape or dim and rows, optimizer slots.
    optimizer : mapping or None
        Name and hyperparameters at the time of saving, for information.
    shards : sequence of mapping of str to str
        The files of each of its shards.
    """

    name: str
    description: Mapping[str, Any]
    optimizer: Mapping[str, Any] | None
    shards: Annotated[Sequence[ShardFiles], Meta(min_length=1)]

    @property
    def files(self) -> Mapping[str, str]:
        """All files, with their checksums."""
        return {file: sum_ for shard in self.shards for file, sum_ in shard.items()}


class Manifest(Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The content of a checkpoint.

    Attributes
    ----------
    metadata : mapping
        The caller's.
    consistent : bool
        Whether no closure ran while it was saved: then it is consistent: of one moment in time.
    run : mapping
        What psnb needs to go on with what was saved; see `psnb._src.coordinator.settings`.
    depth : int
        On how many earlier ones it builds, whose files it shares; 0 if all are its own.
    prefix : str
        What comes before the names of its own files.
    parameters : sequence of ManifestEntry
        Its parameters.
    """

    metadata: Mapping[str, Any]
    consistent: bool
    run: Mapping[str, Any]
    depth: Annotated[int, Meta(ge=0, lt=_DEEPEST)]
    prefix: Annotated[str, Meta(pattern=rf"\A{_FILES}\Z")]
    parameters: Sequence[ManifestEntry]

    def __post_init__(self) -> None:
        names: set[str] = set()
        files: set[str] = set()
        for each in self.parameters:
            require(each.name not in names, f"parameter {each.name!r:.80} is there twice")
            names.add(each.name)
            for file in chain.from_iterable(each.shards):
                require(file not in files, f"shard {file} is there twice")
                files.add(file)

    @cached_property
    def entries(self) -> Mapping[str, ManifestEntry]:
        """Its parameters by name."""
        return {each.name: each for each in self.parameters}

    def own(self, file: str) -> bool:
        """Return whether a file was written for this checkpoint, not for one before."""
        match = re.fullmatch(_FILE, file)
        return match is not None and int(match["depth"] or 0) == self.depth

    def text(self) -> str:
        """Return the text that is written.

        Raises
        ------
        ValueError, TypeError
            If JSON cannot hold it.
        """
        return sealed(msgspec.to_builtins(self), FORMAT)


class DamagedFileError(OSError):
    """A file of a checkpoint was read, and is not what was written."""


def file_name(parameter: int, shard: int, depth: int) -> str:
    """Return the name of a shard's file, which none of those has that it builds on."""
    return f"{parameter:04d}-{shard:05d}{f'-{depth:02d}' if depth else ''}.safetensors"


def checked_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what JSON makes of a caller's metadata.

    Raises
    ------
    CheckpointError
        If it is not a mapping, or JSON cannot hold it (for example NaN).
    """
    try:
        require(isinstance(metadata, Mapping), f"expected a mapping, found {shown(metadata)}")
        return dict(plain_json(dict(metadata)))
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"the metadata of a checkpoint must be a mapping that JSON can hold: {error}"
        ) from error


def read_manifest(path: AnyPath, file: Callable[[str], Path]) -> Manifest:
    """Read the manifest of a checkpoint, of which a function returns the files on this machine.

    Raises
    ------
    CheckpointError
        If it is not a checkpoint, is damaged, or has a version that cannot be read.
    """
    try:
        return typed(read_sealed(file(MANIFEST), FORMAT), Manifest)
    except FormatError as error:
        raise CheckpointError(f"checkpoint {str(path)!r} {error}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{str(path)!r} is not a checkpoint, or is damaged: {str(error)[:500]}; restore "
            "another one, or copy it again from where it is whole"
        ) from error


_CANNOT_REMOVE = "an old checkpoint cannot be removed: %s"
_NOTHING_REMOVED = (
    "nothing old is removed from %s, as a checkpoint that cannot be read now may need it: %s. If "
    "that stays so, use the psnb that saved it, or move what is damaged away"
)

GONE = "removed just now"
"""What the error of a checkpoint says that another manager has removed."""

logger = logging.getLogger("psnb")

_NAME = re.compile(r"ckpt-(\d{6}|[1-9]\d{6,17})", re.ASCII)
"""As `checkpoint_name` makes them, so no two have one number."""


def checkpoint_name(number: int) -> str:
    """Return the name of a checkpoint.

    Raises
    ------
    CheckpointError
        If there are none after the one before: a checkpoint was renamed.
    """
    name = f"ckpt-{number:06d}"
    if number_of(name) is None:
        raise CheckpointError(
            f"no checkpoint can follow {checkpoint_name(number - 1)}: give it a smaller number"
        )
    return name


def number_of(name: str) -> int | None:
    """Return the number of a checkpoint; None if this is not a name of one."""
    match = _NAME.fullmatch(name)
    return match and int(match[1])


# CheckpointStore: checkpoints in an object store, or wherever else fsspec writes. Pure.
#
# There is no renaming and there are no locks, so the manifest makes a checkpoint, and is written
# last::
#
#     ckpt-000003/manifest.json               the checkpoint, with the names of its files
#     files-0f3a…/begun                       when this was begun, in seconds since the epoch
#     files-0f3a…/kept                        only if it is never removed as one of the oldest
#     files-0f3a…/0000-00000.safetensors      one file a shard
#     …
#
# A manifest is made only where there is none (which S3, GCS, Azure and fsspec's memory can check in
# one step), so of two that end at once each gets a number of its own. A removal deletes the
# manifest first, and then, of the folders with its files, those that no manifest names by now:
# checkpoints may share files. A save that shares files looks, once the new manifest is there,
# whether the old one is still there: if so, no other has removed files without having seen the new
# one. It is unknown whether a writer is alive: files that belong to no checkpoint are removed a day
# after they were begun. A checkpoint may be removed while it is read, which raises an error. To be
# read, files are copied to this machine's folder for temporary files.
#
# Only what is known to be unneeded is removed: `CheckpointStore._named` says which files are
# needed, by all that has a manifest, whatever its name. One that cannot be read now (no answer, no
# room for its copy, a newer format, damage) may need any: then nothing is removed.

_BEGUN = "begun"
_FILES_FOLDER = "files-"


class StoredCheckpoint:
    """A checkpoint in a store; of its files those that are asked for are copied to this machine.

    Parameters
    ----------
    path : Path or RemotePath
        Where it is.

    Raises
    ------
    OSError
        If it is not there.
    """

    def __init__(self, path: AnyPath) -> None:
        self.path = path
        if not (path / MANIFEST).exists():
            raise FileNotFoundError("it has no manifest")
        self._copies = Path(tempfile.mkdtemp(prefix="psnb-checkpoint-"))
        # At the latest with the last reference to it. Arrays that are mapped stay usable.
        self._removed = weakref.finalize(self, shutil.rmtree, self._copies, ignore_errors=True)

    def manifest(self) -> Manifest:
        """Return its manifest.

        Raises
        ------
        CheckpointError
            If it is damaged, or has a version that cannot be read.
        """
        return read_manifest(self.path, self.file)

    def file(self, name: str) -> Path:
        """Return one of its files on this machine, by the name that the manifest has.

        Raises
        ------
        OSError
            If it cannot be had.
        """
        copy = self._copies / name.replace("/", "-")
        if not copy.exists():
            coming = copy.with_name(f"{copy.name}.{uuid.uuid4().hex}")
            RemotePath(str(self.place(name))).fetch(coming)
            coming.rename(copy)  # only what is whole has its name, in any thread
        return copy

    def place(self, name: str) -> AnyPath:
        """Return where one of its files is."""
        return (self.path.parent if "/" in name else self.path) / name

    def size(self, name: str) -> int:
        """Return the bytes of one of its files; raises as `file` does."""
        return RemotePath(str(self.place(name))).size()

    def has(self, files: Iterable[str]) -> bool:
        """Return whether these of its files are there."""
        try:
            return all(self.size(each) for each in files)
        except OSError:
            return False

    def release(self) -> None:
        """Let it be removed, where that was kept from happening; idempotent."""
        self._removed()


class PartialCheckpoint:
    """A checkpoint that is being written: files that no manifest names yet.

    Attributes
    ----------
    folder : Path or RemotePath
        The folder of its files, which is there.
    prefix : str
        What comes before the names of its files in the manifest.
    finished : bool
        Whether there may be a manifest that names them.
    """

    def __init__(self, store: CheckpointStore) -> None:
        name = f"{_FILES_FOLDER}{uuid.uuid4().hex}"
        self.folder: AnyPath = store.path / name
        self.prefix, self.finished = f"{name}/", False
        self._store = store
        self._base: AnyPath | None = None

    def size(self, name: str) -> int:
        """Return the bytes of a file in its folder.

        Raises
        ------
        FileNotFoundError
            If it is not there.
        """
        return RemotePath(str(self.folder / name)).size()

    def share(self, base: StoredCheckpoint, files: Iterable[str]) -> None:
        """Let some files of a checkpoint, which is in use, be files of this one, too.

        They keep their names in the manifest, and stay when the other one is removed.

        Raises
        ------
        OSError
            If that is not possible.
        """
        self._base = base.path

    def finish(self, manifest: Manifest, *, kept: bool) -> AnyPath:
        """Make a checkpoint of it, which is the newest, and return where it is.

        It gets its number here, not when it was begun. So the newest is the one that was finished
        last, and it is not pruned at once if others have saved meanwhile.

        Parameters
        ----------
        manifest : Manifest
            What is in it.
        kept : bool
            Whether it is never removed as one of the oldest.

        Raises
        ------
        OSError
            If that is not possible; there is none then. But if the answer of a store was lost,
            there may be one, which is whole.
        """
        root = self._store.root
        if kept:
            (root / self.folder.name / KEPT).create(str(time.time()))
        text = manifest.text()
        number = max(self._store.numbers(), default=0)
        while True:
            number += 1
            path = root / checkpoint_name(number)
            path.make_folder()
            # From here on: if the answer is lost, a manifest may be there that names the files. If
            # there is none, they are removed as leftovers.
            self.finished = True
            try:
                (path / MANIFEST).create(text)
                break
            except FileExistsError:  # another one has ended at the same time
                continue
        if self._base is not None and not (self._base / MANIFEST).exists():
            path.remove()
            self.finished = False
            raise OSError(
                f"another manager has removed {self._base.name}, on which it was to build; save "
                "again: then it is a whole one"
            )
        return path


class CheckpointStore:
    """A folder of checkpoints; any number of managers, threads and processes may use it.

    Parameters
    ----------
    path : Path or RemotePath
        Where it is.
    left_after : float
        Seconds after which files that belong to no checkpoint are what a killed writer has left.

    Attributes
    ----------
    path : Path or RemotePath
        Where it is.
    root : RemotePath
        The same, where fsspec finds it.
    """

    path: AnyPath

    def __init__(self, path: AnyPath, left_after: float = 86400.0) -> None:
        self.path, self.root, self._left_after = path, RemotePath(str(path)), left_after

    def prepare(self) -> None:
        """Check that checkpoints can be written, and remove leftovers of killed processes.

        Raises
        ------
        CheckpointError
            If they cannot be written.
        """
        try:
            self._prepare()
        except OSError as error:
            raise CheckpointError(
                f"checkpoints cannot be written to {str(self.path)!r}: {error}"
            ) from error

    def checkpoints(self) -> list[AnyPath]:
        """Return the complete checkpoints at one moment, oldest first."""
        return [self.path / checkpoint_name(number) for number in self.numbers()]

    def numbers(self) -> list[int]:
        """Return the numbers of all checkpoints, in their order."""
        names = self.root.names()
        return sorted(
            number
            for name in names
            if (number := number_of(name)) is not None and self._is_complete(name)
        )

    def written(self, path: AnyPath) -> str:
        """Return when a checkpoint was written, for people to read."""
        try:
            written = (self.root / path.name / MANIFEST).modified()
        except OSError:
            return GONE
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(written))

    @contextmanager
    def partial(self) -> Iterator[PartialCheckpoint]:
        """Begin a checkpoint; at the end of the block it is removed, unless it was finished.

        Raises
        ------
        OSError
            If it cannot be begun.
        """
        made = PartialCheckpoint(self)
        folder = self.root / made.folder.name
        try:
            folder.make_folder()
            (folder / _BEGUN).create(str(time.time()))
            yield made
        finally:
            if not made.finished:
                with suppress(OSError):
                    folder.remove()

    def use(self, path: AnyPath) -> StoredCheckpoint:
        """Use a checkpoint.

        Raises
        ------
        CheckpointError
            If it is not there.
        """
        try:
            return self._use(path.name)
        except OSError as error:
            raise CheckpointError(
                f"{str(path)!r} is not a checkpoint, or was removed since as one of the oldest "
                f"({error}); see the manager's checkpoints"
            ) from error

    def last_kept(self) -> float:
        """Return when the last of the checkpoints that stay was written, in s since the epoch.

        Minus infinity if there is none.
        """
        latest = -math.inf
        for path in self.checkpoints():
            with suppress(CheckpointError):  # then one more is kept than need be
                latest = max(latest, _time_in(self._folders(path)[0] / KEPT, -math.inf))
        return latest

    def prune(self, keep: int) -> None:
        """Remove all but the newest ``keep`` checkpoints, and those that stay; failures are logged.

        Checkpoints that are in use are left for the next time, where that can be known. If one
        cannot be read, a warning says so, and nothing is removed.
        """
        try:
            self._prune(keep)
        except (CheckpointError, OSError) as error:
            logger.warning(_NOTHING_REMOVED, self.path, error)

    def _prune(self, keep: int) -> None:
        if not (old := self.checkpoints()[:-keep]):
            return
        named = self._named()
        found = {path.name: named[path.name] for path in old if path.name in named}
        going = {name: each for name, each in found.items() if not (each[0] / KEPT).exists()}
        for name in going:
            (self.root / name).remove()  # first: without it the others are leftovers
        self._free({folder for folders in going.values() for folder in folders})

    def _is_complete(self, name: str) -> bool:
        return (self.root / name / MANIFEST).exists()

    def _use(self, name: str) -> StoredCheckpoint:
        return StoredCheckpoint(self.path / name)

    def _folders(self, path: AnyPath) -> list[RemotePath]:
        """Return the folders in which the files of a checkpoint are, its own first.

        Raises
        ------
        CheckpointError
            If its manifest cannot be read.
        """
        stored = self.use(path)
        try:
            manifest = stored.manifest()
        finally:
            stored.release()
        files = [file for entry in manifest.parameters for file in entry.files]
        names = [name.partition("/")[0] for name in (manifest.prefix, *files) if "/" in name]
        # One that was written on a disk, and copied here, has its files in its own folder.
        own = [] if manifest.prefix else [path.name]
        return [self.root / name for name in dict.fromkeys([*own, *names])]

    def _named(self) -> dict[str, list[RemotePath]]:
        """Return the folders of files that are needed, by the name of what needs them.

        Raises
        ------
        CheckpointError, OSError
            If a manifest cannot be read: it may name any.
        """
        while True:
            names = self._with_manifest()
            try:
                found = {name: self._folders(self.path / name) for name in names}
            except CheckpointError:
                if self._with_manifest() == names:
                    raise
                continue
            # One that went meanwhile may have had the same files as one that came meanwhile.
            if self._with_manifest() == names:
                return found

    def _with_manifest(self) -> set[str]:
        """Return the names of all that is a checkpoint, also where people have renamed it."""
        names = self.root.names()
        return {
            name for name in names if not name.startswith(_FILES_FOLDER) and self._is_complete(name)
        }

    def _free(self, folders: set[RemotePath]) -> None:
        """Remove those of some folders of files that are not needed; all removing of files is here.

        Raises
        ------
        CheckpointError, OSError
            If it is not known which these are.
        """
        if not folders:
            return
        needed = {folder for each in self._named().values() for folder in each}
        for folder in sorted(folders - needed):
            folder.remove()

    def _prepare(self) -> None:
        with self.partial():
            pass
        begun_before = time.time() - self._left_after
        old = {
            folder
            for name in self.root.names()
            if name.startswith(_FILES_FOLDER)
            and _time_in((folder := self.root / name) / _BEGUN, math.inf) < begun_before
        }
        try:
            self._free(old)
        except (CheckpointError, OSError) as error:
            logger.warning(_NOTHING_REMOVED, self.path, error)


def _time_in(path: RemotePath, otherwise: float) -> float:
    """Return the time that a file has; ``otherwise`` if there is none."""
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return otherwise


# LocalStore: checkpoints on disks, and the locks by which those who use them stay apart. Pure.
#
# What is on disk can be renamed, linked and locked, so a checkpoint here is one folder with all of
# its files, which people copy and remove; the layout of `CheckpointStore` would work too, but lose
# that, and with it that what is read is not removed.
#
# Managers in any processes and threads may share a folder. Two kinds of locks keep them apart:
#
# - The folder's own, on the file ``.lock`` in it, is held only briefly: to make a partial folder,
#   to give a complete one its number, to list them, to see whether one is in use. So no process
#   sees a state between two steps.
# - A checkpoint's, on its manifest, is held as long as the checkpoint is in use: by its writer
#   alone until it has its name, then by any number of readers. A checkpoint in use is not removed.
#
# A file that checkpoints share is one file with several names (hard links): each checkpoint has all
# of its own, and the file goes with the last of them.
#
# A folder that is being written or removed has a unique hidden name. A killed process loses its
# locks, so a hidden folder that is not in use is a leftover. A folder with a checkpoint's name is
# complete at any time, also if the file system has no locks. What no manager has made is left
# alone: folders without a manifest, links, and files. Without locks, leftovers stay, a checkpoint
# may be removed while it is read, and saves that end at the same time may get their numbers in any
# order.

_LOCK = ".lock"
"""The file that carries the folder's lock. It is never removed; otherwise two processes could each
hold a lock."""

_HIDDEN = ".incomplete-"
_PARTIAL = re.compile(rf"{re.escape(_HIDDEN)}[0-9a-f]{{32}}")
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}
"""The errors of renaming a folder if its new name is taken."""


class LocalCheckpoint(StoredCheckpoint):
    """A checkpoint on disk, locked as long as it is in use."""

    path: Path

    def __init__(self, path: Path) -> None:
        self.path = path
        if not stat.S_ISREG((path / MANIFEST).lstat().st_mode):
            raise DamagedFileError(
                "its manifest is not a regular file"
            )  # opening a pipe would block
        # Without waiting: the writer of a partial folder may itself wait for the folder's lock.
        self._lock = FolderLock(path / MANIFEST, "rb", SHARED | AT_ONCE)

    def file(self, name: str) -> Path:
        file = self.path / name
        if not stat.S_ISREG(file.lstat().st_mode):
            raise DamagedFileError("it is not a regular file, but a link or a device")
        return file

    def place(self, name: str) -> AnyPath:
        return self.path / name

    def release(self) -> None:
        self._lock.release()


class _LocalPartial(PartialCheckpoint):
    """A hidden folder whose manifest is locked."""

    folder: Path

    def __init__(self, folder: Path, lock: FolderLock, store: LocalStore) -> None:
        self.folder, self.prefix = folder, ""
        self._lock, self._local = lock, store

    def share(self, base: StoredCheckpoint, files: Iterable[str]) -> None:
        refused: OSError | None = None
        for name in files:
            file, own = base.file(name), self.folder / name
            try:
                os.link(file, own)
            except OSError as error:
                refused = error
                shutil.copyfile(file, own)
                sync(own)
        if refused is not None:
            logger.warning(
                "what a checkpoint shares with %s is copied, as the file system cannot link it: "
                "%s; CheckpointManager(full_every=1) costs no more there",
                base.path,
                refused,
            )

    def finish(self, manifest: Manifest, *, kept: bool) -> Path:
        if kept:
            (self.folder / KEPT).touch()
        self._lock.file.write(manifest.text())
        self._lock.file.flush()
        sync(self.folder / MANIFEST)
        sync(self.folder)
        path = self._local.place(self.folder, self._lock)
        sync(self._local.path)
        return path


class LocalStore(CheckpointStore):
    """A folder on this machine's disks, or on such that several hosts share.

    Parameters
    ----------
    path : pathlib.Path
        Where it is.
    """

    path: Path

    def checkpoints(self) -> list[AnyPath]:
        with self._steady():
            return super().checkpoints()

    @contextmanager
    def partial(self) -> Iterator[PartialCheckpoint]:
        path = self._hidden()
        try:
            with self._alone():  # so that it is not seen before it is locked
                path.mkdir()
                manifest = FolderLock(path / MANIFEST, "x", EXCLUSIVE | AT_ONCE)
            with manifest:
                yield _LocalPartial(path, manifest, self)
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def place(self, path: Path, manifest: FolderLock) -> Path:
        """Give a complete folder the name of the newest checkpoint, and return its path."""
        with self._alone():
            manifest.release()  # not all file systems rename a folder in which a file is open
            number = max(self.numbers(), default=0)
            while True:
                number += 1
                final = self.path / checkpoint_name(number)
                try:
                    return path.rename(final)
                except OSError as error:
                    # A file has that name; or, without locks, a checkpoint that was just made.
                    if error.errno not in _TAKEN:
                        raise

    def last_kept(self) -> float:
        latest = -math.inf
        for path in self.checkpoints():
            with suppress(OSError):
                latest = max(latest, (self.path / path.name / KEPT).stat().st_mtime)
        return latest

    def _prune(self, keep: int) -> None:
        for path in (self.path / each.name for each in self.checkpoints()[:-keep]):
            try:
                with self._alone():
                    if _is_there(path / KEPT) or _is_used(path):
                        continue
                    # Renamed first: a folder with a checkpoint's name must be complete at any time.
                    going = path.rename(self._hidden())
            except FileNotFoundError:
                pass  # another manager was faster
            except OSError as error:
                logger.warning(_CANNOT_REMOVE, error)
            else:
                shutil.rmtree(going, ignore_errors=True)

    def _prepare(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        with self._alone() as lock:
            probe = self._hidden()
            probe.mkdir()
            probe.rmdir()
            left = [path for path in self.path.glob(f"{_HIDDEN}*") if _is_partial(path)]
            # A leftover is never used again, so it can be removed after the lock is released.
            dead = [path for path in left if lock.real and not _is_used(path)]
        if left and not lock.real:
            logger.warning(
                "the file system of %s has no locks, which would show that a process saves: remove "
                "%s* there while none does",
                self.path,
                _HIDDEN,
            )
        for path in dead:
            shutil.rmtree(path, ignore_errors=True)

    def _is_complete(self, name: str) -> bool:
        # No manager makes a folder of such a name without a manifest, nor with a link for one.
        try:
            return stat.S_ISREG((self.path / name / MANIFEST).lstat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _use(self, name: str) -> StoredCheckpoint:
        with self._steady():
            return LocalCheckpoint(self.path / name)

    def _hidden(self) -> Path:
        return self.path / f"{_HIDDEN}{uuid.uuid4().hex}"

    def _alone(self) -> FolderLock:
        """Lock the folder, briefly: only the holder makes, names or removes folders there."""
        return FolderLock(self.path / _LOCK, "ab", EXCLUSIVE)

    @contextmanager
    def _steady(self) -> Iterator[None]:
        """Keep others, briefly, from making, naming or removing folders there."""
        with ExitStack() as moment:
            # Without such a file nothing was written there; for example, a checkpoint was copied.
            with suppress(OSError):
                moment.enter_context(FolderLock(self.path / _LOCK, "rb", SHARED))
            yield


def _is_partial(path: Path) -> bool:
    """Return whether this is a folder that a manager has begun, and nothing of others."""
    return _PARTIAL.fullmatch(path.name) is not None and path.is_dir() and not path.is_symlink()


def _is_there(path: Path) -> bool:
    """Return whether something is there; unlike pathlib, raise if that cannot be known."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def _is_used(path: Path) -> bool:
    """Return whether a checkpoint is written or read; call it while it is locked alone."""
    try:
        FolderLock(path / MANIFEST, "r+b", EXCLUSIVE | AT_ONCE).release()
    except FileNotFoundError:  # it is being removed, or its writer was killed at once
        return False
    except OSError:  # its writer has it; or its manifest is not a regular file, and not a manager's
        return True
    return False


# Which kind of store a place has. Pure.


def store_at(place: AnyPath) -> CheckpointStore:
    """Return the folder of checkpoints at a place."""
    return CheckpointStore(place) if isinstance(place, RemotePath) else LocalStore(place)


def checkpoints_in(directory: AnyPath) -> list[AnyPath]:
    """Return the checkpoints of a folder, the oldest first; none if there is no such folder.

    Raises
    ------
    CheckpointError
        If it cannot be read.
    """
    try:
        return store_at(directory).checkpoints()
    except OSError as error:
        raise not_read(directory, error) from error


def not_read(place: AnyPath, error: OSError) -> CheckpointError:
    """Return the error for a place that cannot be read."""
    return CheckpointError(
        f"{str(place)!r} cannot be read now: {error}; see whether it is reached from here"
    )


_AMISS = (DamagedFileError, FileNotFoundError, IsADirectoryError, NotADirectoryError)


def require_read(path: AnyPath, error: CheckpointError) -> None:
    """Raise that a checkpoint cannot be read now, or here, if that is why an error was raised.

    It may be whole. All else, also files that are not there, is damage.
    """
    cause = error.__cause__
    if isinstance(cause, FormatError):
        raise CheckpointError(f"{error}: use the psnb that saved it, or move it away") from cause
    if isinstance(cause, OSError) and not isinstance(cause, _AMISS):
        raise not_read(path, cause) from cause


def is_gone(path: AnyPath) -> bool:
    """Return whether a checkpoint is known not to be there; what cannot be reached may be."""
    try:
        return not (path / MANIFEST).exists()
    except OSError:
        return False


def use(path: AnyPath) -> StoredCheckpoint:
    """Use a checkpoint, in whatever folder.

    Raises
    ------
    CheckpointError
        If it is not there.
    """
    return store_at(path.parent).use(path)
