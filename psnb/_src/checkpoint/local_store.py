"""LocalStore: checkpoints on disks, and the locks by which processes share them. Pure.

Files on disk can be renamed, linked and locked, so a checkpoint here is one folder with all of
its files, which people copy and remove. The layout of `CheckpointStore` would work too, but
without that, and without protection of checkpoints that are being read.

Managers in any processes and threads may share a folder. Two kinds of locks keep them apart:

- The folder's own, on the file ``.lock`` in it, is held only briefly: to make a partial folder,
  to give a complete one its number, to list them, to see whether one is in use. So no process
  sees a state between two steps.
- A checkpoint's, on its manifest, is held as long as the checkpoint is in use: by its writer
  alone until it has its name, then by any number of readers. A checkpoint in use is not removed.

A file that checkpoints share is one file with several names (hard links): each checkpoint has all
of its own, and the file goes with the last of them.

A folder that is being written or removed has a unique hidden name. A killed process loses its
locks, so a hidden folder that is not in use is a leftover. A folder with a checkpoint's name is
complete at any time, also if the file system has no locks. Whatever no manager has made is left
alone: folders without a manifest, links, and files. Without locks, leftovers stay, a checkpoint
may be removed while it is read, and saves that end at the same time may get their numbers in any
order.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any

from psnb._src.checkpoint.manifest import KEPT, MANIFEST, Manifest
from psnb._src.checkpoint.store import (
    CheckpointStore,
    PartialCheckpoint,
    StoredCheckpoint,
    checkpoint_name,
)
from psnb._src.utils.files import DamagedFileError, opened_plain, sync
from psnb._src.utils.paths import AnyPath

EXCLUSIVE, SHARED, AT_ONCE = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_NB


class FolderLock:
    """A file that is open and locked until it is released; one thread's at a time.

    The lock is the operating system's (``flock``). Each opening of the file has its own, so it
    works between two managers of one process as between processes. It ends with its process,
    however that ends: nothing stays locked.

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
            self.file: IO[Any] = opened.enter_context(open(path, mode, opener=opened_plain))
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


_CANNOT_REMOVE = "an old checkpoint cannot be removed: %s"

logger = logging.getLogger("psnb")

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
        self.release = FolderLock(path / MANIFEST, "rb", SHARED | AT_ONCE).release

    def file(self, name: str, start: int = 0, stop: int | None = None) -> Path:
        file = self.path / name
        if not stat.S_ISREG(file.lstat().st_mode):
            raise DamagedFileError("it is not a regular file, but a link or a device")
        return file

    def place(self, name: str) -> AnyPath:
        return self.path / name


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
        with self._local.alone():
            self._lock.release()  # not all file systems rename a folder in which a file is open
            number = max(self._local.numbers(), default=0)
            while True:
                number += 1
                try:
                    path = self.folder.rename(self._local.path / checkpoint_name(number))
                    break
                except OSError as error:
                    # A file has that name; or, without locks, a checkpoint that was just made.
                    if error.errno not in _TAKEN:
                        raise
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
    _kind = LocalCheckpoint

    @contextmanager
    def partial(self) -> Iterator[PartialCheckpoint]:
        with suppress(FileExistsError):
            # Its parents are not made: what was to be mounted there may be missing.
            self.path.mkdir()
            logger.warning("%s was gone, with its checkpoints: it is made anew", self.path)
        path = self._hidden()
        try:
            with self.alone():  # so that it is not seen before it is locked
                path.mkdir()
                manifest = FolderLock(path / MANIFEST, "x", EXCLUSIVE | AT_ONCE)
            with manifest:
                yield _LocalPartial(path, manifest, self)
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def _prune(self, keep: int) -> None:
        for path in (self.path / each.name for each in self.checkpoints()[:-keep]):
            try:
                with self.alone():
                    with suppress(FileNotFoundError):
                        (path / KEPT).lstat()  # not `exists`, which is silent if it is not known
                        continue
                    if _is_used(path):
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
        with self.alone() as lock:
            probe = self._hidden()
            probe.mkdir()
            probe.rmdir()
            left = [  # what a manager has begun, and nothing of others
                path
                for path in self.path.glob(f"{_HIDDEN}*")
                if _PARTIAL.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
            ]
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

    def _kept_at(self, path: AnyPath) -> float:
        return (self.path / path.name / KEPT).stat().st_mtime

    def _hidden(self) -> Path:
        return self.path / f"{_HIDDEN}{uuid.uuid4().hex}"

    def alone(self) -> FolderLock:
        """Lock the folder, briefly: only the holder makes, names or removes folders there."""
        return FolderLock(self.path / _LOCK, "ab", EXCLUSIVE)

    def _steady(self) -> AbstractContextManager[object]:
        try:
            return FolderLock(self.path / _LOCK, "rb", SHARED)
        except OSError:  # nothing was written there; for example, a checkpoint was copied
            return nullcontext()


def _is_used(path: Path) -> bool:
    """Return whether a checkpoint is written or read; call it while it is locked alone."""
    try:
        FolderLock(path / MANIFEST, "r+b", EXCLUSIVE | AT_ONCE).release()
    except FileNotFoundError:  # it is being removed, or its writer was killed early
        return False
    except OSError:  # its writer has it; or its manifest is not a regular file, and not a manager's
        return True
    return False
