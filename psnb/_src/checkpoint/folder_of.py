"""Which kind of folder a place is. Pure."""

from __future__ import annotations

from psnb._src.checkpoint.checkpoint_folder import CheckpointFolder, StoredCheckpoint
from psnb._src.checkpoint.local_folder import LocalFolder
from psnb._src.checkpoint.remote_folder import RemoteFolder
from psnb._src.remote_path import Place, RemotePath
from psnb.errors import CheckpointError


def folder_of(place: Place) -> CheckpointFolder:
    """Return the folder of checkpoints at a place."""
    return RemoteFolder(place) if isinstance(place, RemotePath) else LocalFolder(place)


def checkpoints_in(directory: Place) -> list[Place]:
    """Return the checkpoints of a folder, the oldest first; none if there is no such folder.

    Raises
    ------
    CheckpointError
        If it cannot be read.
    """
    try:
        return folder_of(directory).checkpoints()
    except OSError as error:
        raise not_read(directory, error) from error


def not_read(place: Place, error: OSError) -> CheckpointError:
    """Return the error for a place that cannot be read."""
    return CheckpointError(
        f"{str(place)!r} cannot be read now: {error}; see whether it is reached from here"
    )


def use(path: Place) -> StoredCheckpoint:
    """Use a checkpoint, in whatever folder.

    Raises
    ------
    CheckpointError
        If it is not there.
    """
    return folder_of(path.parent).use(path)
