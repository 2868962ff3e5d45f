"""LocalFolder: checkpoints on disks, and the locks by which those who use them stay apart. Pure.

Managers in any processes and threads may share a folder. Two kinds of locks keep them apart:

- The folder's own, on the file ``.lock`` in it, is held only briefly: to make a partial folder, to
  give a complete one its number, to list them, to see whether one is in use. So nobody sees a state
  between two steps.
- A checkpoint's, on its manifest, is held as long as the checkpoint is in use: by its writer alone
  until it has its name, then by any number of readers. Nobody removes a checkpoint in use.

A file that checkpoints share is one file with several names (hard links): each checkpoint has all
of its own, and the file goes with the last of them.

A folder that is being written or removed has a unique hidden name. A killed process loses its
locks, so a hidden folder that nobody uses is a leftover. A folder with a checkpoint's name is
complete at any time, also if the file system has no locks. What no manager has made is left alone:
folders without a manifest, links, and files. Without locks, leftovers stay, a
checkpoint may be removed while it is read, and saves that end at the same time may get their
numbers in any order.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import shutil
import stat
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from psnb._src.checkpoint.checkpoint_folder import (
    CANNOT_REMOVE,
    GONE,
    CheckpointFolder,
    PartialCheckpoint,
    StoredCheckpoint,
    checkpoint_name,
    not_there,
    number_of,
    written_at,
)
from psnb._src.checkpoint.folder_lock import AT_ONCE, EXCLUSIVE, SHARED, FolderLock
from psnb._src.checkpoint.manifest import KEPT, MANIFEST, Manifest
from psnb._src.remote_path import Place
from psnb._src.whole_files import sync
from psnb.errors import CheckpointError

logger = logging.getLogger("psnb")

_LOCK = ".lock"
"""The file that carries the folder's lock. It is never removed; otherwise two processes could each
hold a lock."""

_HIDDEN = ".incomplete-"
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}
"""The errors of renaming a folder if its new name is taken."""


class LocalCheckpoint(StoredCheckpoint):
    """A checkpoint on disk, locked as long as it is in use.

    Parameters
    ----------
    path : pathlib.Path
        Where it is.

    Raises
    ------
    OSError
        If it is not there.
    """

    path: Path

    def __init__(self, path: Path) -> None:
        self.path = path
        if not stat.S_ISREG((path / MANIFEST).lstat().st_mode):
            raise OSError("its manifest is no plain file")  # opening a pipe would block
        # Without waiting: the writer of a partial folder may itself wait for the folder's lock.
        self._lock = FolderLock(path / MANIFEST, "rb", SHARED | AT_ONCE)

    def file(self, name: str) -> Path:
        file = self.place(name)
        if not stat.S_ISREG(file.lstat().st_mode):
            raise OSError("it is no plain file, but a link or a device")
        return file

    def place(self, name: str) -> Path:
        return self.path / name

    def size(self, name: str) -> int:
        return self.place(name).stat().st_size

    def release(self) -> None:
        self._lock.release()


class _LocalPartial(PartialCheckpoint):
    """A hidden folder whose manifest is locked."""

    prefix = ""

    def __init__(self, folder: Path, lock: FolderLock, owner: LocalFolder) -> None:
        self.folder: Path = folder
        self._lock, self._owner = lock, owner

    def size(self, name: str) -> int:
        return (self.folder / name).stat().st_size

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
        path = self._owner.place(self.folder, self._lock)
        sync(self._owner.path)
        return path


class LocalFolder(CheckpointFolder):
    """A folder on this machine's disks, or on such that several hosts share.

    Parameters
    ----------
    path : pathlib.Path
        Where it is.
    """

    path: Path

    def __init__(self, path: Path) -> None:
        self.path = path

    def checkpoints(self) -> list[Place]:
        with self._steady():
            return [path for _, path in self._numbered()]

    def written(self, path: Place) -> str:
        try:
            return written_at((self.path / path.name).stat().st_mtime)
        except OSError:
            return GONE

    def prepare(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with self._alone() as lock:
                probe = self._hidden()
                probe.mkdir()
                probe.rmdir()
                left = [path for path in self.path.glob(f"{_HIDDEN}*") if _is_partial(path)]
                # Nobody will use a leftover again, so it can be removed after the lock is released.
                dead = [path for path in left if lock.real and not _is_used(path)]
        except OSError as error:
            raise CheckpointError(
                f"checkpoints cannot be written to {str(self.path)!r}: {error}"
            ) from error
        if left and not lock.real:
            logger.warning(
                "the file system of %s cannot tell who is alive, as it has no locks: remove %s* "
                "there while nobody saves",
                self.path,
                _HIDDEN,
            )
        for path in dead:
            shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def partial(self) -> Iterator[PartialCheckpoint]:
        path = self._hidden()
        try:
            with self._alone():  # so that nobody sees it before it is locked
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
            number = max((number for number, _ in self._numbered()), default=0)
            while True:
                number += 1
                final = self.path / checkpoint_name(number)
                try:
                    return path.rename(final)
                except OSError as error:
                    # A file has that name; or, without locks, a checkpoint that was just made.
                    if error.errno not in _TAKEN:
                        raise

    def use(self, path: Place) -> StoredCheckpoint:
        try:
            with self._steady():
                return LocalCheckpoint(self.path / path.name)
        except OSError as error:
            raise not_there(path, error) from error

    def last_kept(self) -> float:
        latest = -math.inf
        for path in self.checkpoints():
            with suppress(OSError):
                latest = max(latest, (self.path / path.name / KEPT).stat().st_mtime)
        return latest

    def prune(self, keep: int) -> None:
        for path in (self.path / each.name for each in self.checkpoints()[:-keep]):
            if (path / KEPT).exists():
                continue
            try:
                with self._alone():
                    if _is_used(path):
                        continue
                    # Renamed first: a folder with a checkpoint's name must be complete at any time.
                    going = path.rename(self._hidden())
            except FileNotFoundError:
                pass  # another manager was faster
            except OSError as error:
                logger.warning(CANNOT_REMOVE, error)
            else:
                shutil.rmtree(going, ignore_errors=True)

    def _numbered(self) -> list[tuple[int, Path]]:
        if not self.path.is_dir():
            return []
        return sorted(
            (number, path)
            for path in self.path.iterdir()
            if (number := number_of(path.name)) is not None and _has_manifest(path)
        )

    def _hidden(self) -> Path:
        return self.path / f"{_HIDDEN}{uuid.uuid4().hex}"

    def _alone(self) -> FolderLock:
        """Lock the folder, briefly: only the holder makes, names or removes folders there."""
        return FolderLock(self.path / _LOCK, "ab", EXCLUSIVE)

    @contextmanager
    def _steady(self) -> Iterator[None]:
        """Keep others, briefly, from making, naming or removing folders there."""
        with ExitStack() as moment:
            # Without such a file nobody ever wrote there; for example, a checkpoint was copied.
            with suppress(OSError):
                moment.enter_context(FolderLock(self.path / _LOCK, "rb", SHARED))
            yield


def _has_manifest(path: Path) -> bool:
    """Return whether this is a checkpoint: no manager makes a folder of such a name without one."""
    try:
        return stat.S_ISREG((path / MANIFEST).lstat().st_mode)
    except OSError:
        return False


def _is_partial(path: Path) -> bool:
    """Return whether this is a folder that a manager has begun, and no link or file of others."""
    return path.is_dir() and not path.is_symlink()


def _is_used(path: Path) -> bool:
    """Return whether someone writes or reads a checkpoint; call it while it is locked alone."""
    try:
        FolderLock(path / MANIFEST, "r+b", EXCLUSIVE | AT_ONCE).release()
    except FileNotFoundError:  # it is being removed, or its writer was killed at once
        return False
    except OSError:  # its writer has it; or its manifest is no plain file, and not a manager's
        return True
    return False
