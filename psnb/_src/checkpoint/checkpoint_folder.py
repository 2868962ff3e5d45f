"""The folder that checkpoints are in: who may do what in it. Pure.

Managers of any processes and threads share one. Two kinds of locks keep them apart:

- The folder's own, on the file ``.lock`` in it, is held for moments: to make a partial folder, to
  give a whole one its number, to list them, to see whether one is used. So nobody sees what is
  between two steps.
- A checkpoint's, on its manifest, is held for as long as it is used: by its writer alone until it
  has its name, by any number of readers after that. Nobody removes what is used.

What is being written or removed bears a hidden name that nobody else has. A killed process loses
its locks: a hidden folder that nobody uses is what one has left. What bears a checkpoint's name is
whole at any time, also where the file system has no locks. There, leftovers stay, a checkpoint may
go while it is read, and saves that end at the same time may get their numbers in any order.
"""

from __future__ import annotations

import errno
import logging
import re
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from psnb._src.checkpoint.folder_lock import AT_ONCE, EXCLUSIVE, SHARED, FolderLock
from psnb.errors import CheckpointError

logger = logging.getLogger("psnb")

MANIFEST = "manifest.json"
"""Whose lock is a checkpoint's."""

_LOCK = ".lock"
"""Whose lock is the folder's own; it is never removed, or two could have one each."""

_NAME = re.compile(r"ckpt-(\d{6,})")
_HIDDEN = ".incomplete-"
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}
"""How renaming a folder fails if there is something of its new name."""


def checkpoints(directory: Path) -> list[Path]:
    """Return the whole checkpoints of a folder, oldest first: those of one moment."""
    with _steady(directory):
        return [path for _, path in _numbered(directory)]


def prepare(directory: Path) -> None:
    """Make sure that checkpoints can be written, and clear what killed processes left.

    Raises
    ------
    CheckpointError
        If they cannot.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _alone(directory) as lock:
            probe = _hidden(directory)
            probe.mkdir()
            probe.rmdir()
            left = list(directory.glob(f"{_HIDDEN}*"))
            # Nobody takes up again what is not used, so it can be removed after this moment.
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
    """Make a folder to write a checkpoint into; what was not placed goes with the block.

    Yields
    ------
    pathlib.Path
        The folder.
    FolderLock
        Its manifest, to be written last.

    Raises
    ------
    OSError
        If it cannot be made.
    """
    path = _hidden(directory)
    try:
        with _alone(directory):  # nobody sees it while it is not locked
            path.mkdir()
            manifest = FolderLock(path / MANIFEST, "x", EXCLUSIVE | AT_ONCE)
        with manifest:
            yield path, manifest
    finally:
        shutil.rmtree(path, ignore_errors=True)


def place(path: Path, manifest: FolderLock) -> Path:
    """Give a whole folder the name of the newest checkpoint and return that.

    It gets its number here, not when it was begun: so the newest is the one that was finished last,
    and does not go at once where others have saved meanwhile.

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
                # A file has that name; or a checkpoint just made, where there are no locks.
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
                raise OSError("its manifest is no plain file")  # a pipe would be waited for
            # At once: the writer of a partial folder may be waiting for the end of this moment.
            return FolderLock(path / MANIFEST, "rb", SHARED | AT_ONCE)
    except OSError as error:
        raise CheckpointError(
            f"{str(path)!r} is no checkpoint, or was removed since as one of the oldest ({error}); "
            "see the manager's checkpoints"
        ) from error


def prune(directory: Path, keep: int) -> None:
    """Remove all but the newest ``keep`` checkpoints; what cannot be removed is logged.

    Those that are being read are left for another time.
    """
    for path in checkpoints(directory)[:-keep]:
        try:
            with _alone(directory):
                if _is_used(path):
                    continue
                # Renamed first: what bears a checkpoint's name must be whole, also while it goes.
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
    """Be the only one who makes, names or removes folders there; for moments."""
    return FolderLock(directory / _LOCK, "ab", EXCLUSIVE)


@contextmanager
def _steady(directory: Path) -> Iterator[None]:
    """Let nobody make, name or remove folders there; for moments."""
    with ExitStack() as moment:
        # Where there is no such file nobody ever did, as where a checkpoint was copied to.
        with suppress(OSError):
            moment.enter_context(FolderLock(directory / _LOCK, "rb", SHARED))
        yield


def _is_used(path: Path) -> bool:
    """Return whether someone writes or reads a checkpoint; to be asked while `_alone`."""
    try:
        FolderLock(path / MANIFEST, "r+b", EXCLUSIVE | AT_ONCE).release()
    except FileNotFoundError:  # it goes, or was begun by a process that was killed at once
        return False
    except BlockingIOError:
        return True
    return False
