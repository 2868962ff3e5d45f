"""Folders of checkpoints, local or not: the store of each, and its content. Pure."""

from __future__ import annotations

from psnb._src.checkpoint.local_store import LocalStore
from psnb._src.checkpoint.manifest import MANIFEST
from psnb._src.checkpoint.store import CheckpointStore
from psnb._src.utils.files import DamagedFileError
from psnb._src.utils.paths import AnyPath, RemotePath
from psnb._src.utils.sealed_json import FormatError
from psnb.errors import CheckpointError


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
    """Return whether a checkpoint is known not to be there; one that cannot be reached may be."""
    try:
        return not (path / MANIFEST).exists()
    except OSError:
        return False
