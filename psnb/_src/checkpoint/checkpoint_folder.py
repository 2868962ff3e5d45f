"""The folder of checkpoints, and the locks by which its users stay apart. Pure.

Managers in any processes and threads may share a folder. Two kinds of locks keep them apart:

- The folder's own, on the file ``.lock`` in it, is held only briefly: to make a partial folder, to
  give a complete one its number, to list them, to see whether one is in use. So nobody sees a state
  between two steps.
- A checkpoint's, on its manifest, is held as long as the checkpoint is in use: by its writer alone
  until it has its name, then by any number of readers. Nobody removes a checkpoint in use.

A folder that is being written or removed has a unique hidden name. A killed process loses its
locks, so a hidden folder that nobody uses is a leftover. A folder with a checkpoint's name is
complete at any time, also if the file system has no locks. Without locks, leftovers stay, a
checkpoint may be removed while it is read, and saves that end at the same time may get their
numbers in any order.
"""

from __future__ import annotations

import errno
import logging
import math
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from psnb._src.checkpoint.folder_lock import AT_ONCE, EXCLUSIVE, SHARED, FolderLock
from psnb.errors import CheckpointError

logger = logging.getLogger("psnb")

MANIFEST = "manifest.json"
"""The file that carries a checkpoint's lock."""

KEPT = "kept"
"""The file that marks a checkpoint as one that stays. It is there from the beginning: otherwise
another manager's save might remove the checkpoint first."""

_LOCK = ".lock"
"""The file that carries the folder's lock. It is never removed; otherwise two processes could each
hold a lock."""

_NAME = re.compile(r"ckpt-(\d{6,})")
_HIDDEN = ".incomplete-"
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}
"""The errors of renaming a folder if its new name is taken."""


def checkpoints(directory: Path) -> list[Path]:
    """Return the complete checkpoints of a folder at one moment, oldest first."""
    with _steady(directory):
        return [path for _, path in _numbered(directory)]


def written(path: Path) -> str:
    """Return when a checkpoint was written, for people to read."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(path.stat().st_mtime))
    except OSError:
        return "removed just now"  # by another manager


def prepare(directory: Path) -> None:
    """Check that checkpoints can be written, and remove leftovers of killed processes.

    Raises
    ------
    CheckpointError
        If they cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _alone(directory) as lock:
            probe = _hidden(directory)
            probe.mkdir()
            probe.rmdir()
            left = list(directory.glob(f"{_HIDDEN}*"))
            # Nobody will use a leftover again, so it can be removed after the lock is released.
            dead = [path for path in left if lock.real and not _is_used(path)]
    except OSError as error:
        raise CheckpointError(
            f"checkpoints cannot be written to {str(directory)!r}: {error}"
        ) from error
    if left and not lock.real:
        logger.warning(
            "the file system of %s cannot tell who is alive, as it has no locks: remove %s* there "
            "while nobody saves",
            directory,
            _HIDDEN,
        )
    for path in dead:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def partial(directory: Path) -> Iterator[tuple[Path, FolderLock]]:
    """Make a folder to write a checkpoint into; removed at the end unless `place` named it.

    Yields
    ------
    pathlib.Path
        The folder.
    FolderLock
        Its locked manifest, to be written last.

    Raises
    ------
    OSError
        If it cannot be made.
    """
    path = _hidden(directory)
    try:
        with _alone(directory):  # so that nobody sees it before it is locked
            path.mkdir()
            manifest = FolderLock(path / MANIFEST, "x", EXCLUSIVE | AT_ONCE)
        with manifest:
            yield path, manifest
    finally:
        shutil.rmtree(path, ignore_errors=True)


def place(path: Path, manifest: FolderLock) -> Path:
    """Give a complete folder the name of the newest checkpoint, and return its path.

    It gets its number here, not when it was begun. So the newest is the one that was finished last,
    and it is not pruned at once if others have saved meanwhile.

    Raises
    ------
    OSError
        If it cannot be renamed.
    """
    directory = path.parent
    with _alone(directory):
        manifest.release()  # not all file systems rename a folder in which a file is open
        number = max((number for number, _ in _numbered(directory)), default=0)
        while True:
            number += 1
            final = directory / f"ckpt-{number:06d}"
            try:
                return path.rename(final)
            except OSError as error:
                # A file has that name; or, without locks, a checkpoint that was just made.
                if error.errno not in _TAKEN:
                    raise


def keep(path: Path) -> FolderLock:
    """Keep a checkpoint from being removed until the lock is released.

    Raises
    ------
    CheckpointError
        If it is not there.
    """
    try:
        with _steady(path.parent):
            if not stat.S_ISREG((path / MANIFEST).lstat().st_mode):
                raise OSError("its manifest is no plain file")  # opening a pipe would block
            # Without waiting: the writer of a partial folder may itself wait for the folder's lock.
            return FolderLock(path / MANIFEST, "rb", SHARED | AT_ONCE)
    except OSError as error:
        raise CheckpointError(
            f"{str(path)!r} is no checkpoint, or was removed since as one of the oldest ({error}); "
            "see the manager's checkpoints"
        ) from error


def last_kept(directory: Path) -> float:
    """Return when the last of the checkpoints that stay was written, in seconds since the epoch.

    Minus infinity if there is none.
    """
    latest = -math.inf
    for path in checkpoints(directory):
        with suppress(OSError):
            latest = max(latest, (path / KEPT).stat().st_mtime)
    return latest


def prune(directory: Path, keep: int) -> None:
    """Remove all but the newest ``keep`` checkpoints, and those that stay; failures are logged.

    Checkpoints that are being read are left for the next time.
    """
    for path in checkpoints(directory)[:-keep]:
        if (path / KEPT).exists():
            continue
        try:
            with _alone(directory):
                if _is_used(path):
                    continue
                # Renamed first: a folder with a checkpoint's name must be complete at any time.
                going = path.rename(_hidden(directory))
        except FileNotFoundError:
            pass  # another manager was faster
        except OSError as error:
            logger.warning("an old checkpoint cannot be removed: %s", error)
        else:
            shutil.rmtree(going, ignore_errors=True)


def _numbered(directory: Path) -> list[tuple[int, Path]]:
    if not directory.is_dir():
        return []
    return sorted(
        (int(match[1]), path)
        for path in directory.iterdir()
        if (match := _NAME.fullmatch(path.name)) and path.is_dir()
    )


def _hidden(directory: Path) -> Path:
    return directory / f"{_HIDDEN}{uuid.uuid4().hex}"


def _alone(directory: Path) -> FolderLock:
    """Lock the folder, briefly: only the holder makes, names or removes folders there."""
    return FolderLock(directory / _LOCK, "ab", EXCLUSIVE)


@contextmanager
def _steady(directory: Path) -> Iterator[None]:
    """Keep others, briefly, from making, naming or removing folders there."""
    with ExitStack() as moment:
        # Without such a file nobody ever wrote there; for example, a checkpoint was copied there.
        with suppress(OSError):
            moment.enter_context(FolderLock(directory / _LOCK, "rb", SHARED))
        yield


def _is_used(path: Path) -> bool:
    """Return whether someone writes or reads a checkpoint; call it while holding `_alone`."""
    try:
        FolderLock(path / MANIFEST, "r+b", EXCLUSIVE | AT_ONCE).release()
    except FileNotFoundError:  # it is being removed, or its writer was killed at once
        return False
    except BlockingIOError:
        return True
    return False
