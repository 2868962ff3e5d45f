"""Which kind of folder a place is. Pure."""

from __future__ import annotations

from psnb._src.checkpoint.checkpoint_folder import CheckpointFolder, StoredCheckpoint
from psnb._src.checkpoint.local_folder import LocalFolder
from psnb._src.checkpoint.remote_folder import RemoteFolder
from psnb._src.remote_path import Place, RemotePath


def folder_of(place: Place) -> CheckpointFolder:
    """Return the folder of checkpoints at a place."""
    return RemoteFolder(place) if isinstance(place, RemotePath) else LocalFolder(place)


def use(path: Place) -> StoredCheckpoint:
    """Use a checkpoint, in whatever folder.

    Raises
    ------
    CheckpointError
        If it is not there.
    """
    return folder_of(path.parent).use(path)
