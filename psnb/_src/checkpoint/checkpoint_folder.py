"""CheckpointFolder: where checkpoints are, and how those who use it stay apart. Pure.

Whoever uses one, a checkpoint is there wholly or not at all, at any time and whoever is killed:
`psnb._src.checkpoint.local_folder` and `psnb._src.checkpoint.remote_folder` say by what means.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from psnb._src.checkpoint.manifest import Manifest, read_manifest
from psnb._src.remote_path import Place
from psnb.errors import CheckpointError

CANNOT_REMOVE = "an old checkpoint cannot be removed: %s"

GONE = "removed just now"
"""What is told of a checkpoint that another manager has removed."""

_NAME = re.compile(r"ckpt-(\d{6}|[1-9]\d{6,17})", re.ASCII)
"""As `checkpoint_name` makes them, so no two have one number."""


def checkpoint_name(number: int) -> str:
    """Return the name of a checkpoint.

    Raises
    ------
    CheckpointError
        If there are none after the one before: somebody has renamed a checkpoint.
    """
    name = f"ckpt-{number:06d}"
    if number_of(name) is None:
        raise CheckpointError(
            f"no checkpoint can follow {checkpoint_name(number - 1)}: give it a smaller number"
        )
    return name


def number_of(name: str) -> int | None:
    """Return the number of a checkpoint; None if this is no name of one."""
    match = _NAME.fullmatch(name)
    return match and int(match[1])


def written_at(seconds: float) -> str:
    """Return a time, in seconds since the epoch, for people to read."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def not_there(path: Place, error: OSError) -> CheckpointError:
    """Return the error for a checkpoint that cannot be used."""
    return CheckpointError(
        f"{str(path)!r} is no checkpoint, or was removed since as one of the oldest ({error}); "
        "see the manager's checkpoints"
    )


class StoredCheckpoint(ABC):
    """A checkpoint that is in use; nobody removes it until it is released, where that is possible.

    Attributes
    ----------
    path : Path or RemotePath
        Where it is.
    """

    path: Place

    def manifest(self) -> Manifest:
        """Return its manifest.

        Raises
        ------
        CheckpointError
            If it is damaged, or has a version that cannot be read.
        """
        return read_manifest(self.path, self.file)

    @abstractmethod
    def file(self, name: str) -> Path:
        """Return one of its files on this machine, by the name that the manifest has.

        Raises
        ------
        OSError
            If it cannot be had.
        """

    @abstractmethod
    def place(self, name: str) -> Place:
        """Return where one of its files is."""

    @abstractmethod
    def size(self, name: str) -> int:
        """Return the bytes of one of its files; raises as `file` does."""

    def has(self, files: Iterable[str]) -> bool:
        """Return whether these of its files are there."""
        try:
            return all(self.size(each) for each in files)
        except OSError:
            return False

    @abstractmethod
    def release(self) -> None:
        """Let it be removed; idempotent."""


class PartialCheckpoint(ABC):
    """A checkpoint that is being written.

    Attributes
    ----------
    folder : Path or RemotePath
        The folder of its files, which is there.
    prefix : str
        What comes before the names of its files in the manifest.
    """

    folder: Place
    prefix: str

    @abstractmethod
    def size(self, name: str) -> int:
        """Return the bytes of a file in its folder.

        Raises
        ------
        FileNotFoundError
            If it is not there.
        """

    @abstractmethod
    def share(self, base: StoredCheckpoint, files: Iterable[str]) -> None:
        """Let some files of a checkpoint, which is in use, be files of this one, too.

        They keep their names in the manifest, and stay when the other one is removed.

        Raises
        ------
        OSError
            If that is not possible.
        """

    @abstractmethod
    def finish(self, manifest: Manifest, *, kept: bool) -> Place:
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


class CheckpointFolder(ABC):
    """A folder of checkpoints; any number of managers, threads and processes may use it.

    Attributes
    ----------
    path : Path or RemotePath
        Where it is.
    """

    path: Place

    @abstractmethod
    def prepare(self) -> None:
        """Check that checkpoints can be written, and remove leftovers of killed processes.

        Raises
        ------
        CheckpointError
            If they cannot be written.
        """

    @abstractmethod
    def checkpoints(self) -> list[Place]:
        """Return the complete checkpoints at one moment, oldest first."""

    @abstractmethod
    def written(self, path: Place) -> str:
        """Return when a checkpoint was written, for people to read."""

    @abstractmethod
    def partial(self) -> AbstractContextManager[PartialCheckpoint]:
        """Begin a checkpoint; at the end of the block it is removed, unless it was finished.

        Raises
        ------
        OSError
            If it cannot be begun.
        """

    @abstractmethod
    def use(self, path: Place) -> StoredCheckpoint:
        """Use a checkpoint.

        Raises
        ------
        CheckpointError
            If it is not there.
        """

    @abstractmethod
    def last_kept(self) -> float:
        """Return when the last of the checkpoints that stay was written, in s since the epoch.

        Minus infinity if there is none.
        """

    @abstractmethod
    def prune(self, keep: int) -> None:
        """Remove all but the newest ``keep`` checkpoints, and those that stay; failures are logged.

        Checkpoints that are in use are left for the next time, where that can be known.
        """
