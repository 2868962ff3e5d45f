"""newest_whole: the checkpoint to go on from, also if newer ones are damaged. Pure."""

from __future__ import annotations

import logging

from psnb._src.checkpoint.folder_of import checkpoints_in
from psnb._src.checkpoint.saved_checkpoint import SavedCheckpoint
from psnb._src.excerpt import excerpt
from psnb._src.remote_path import Place
from psnb.errors import CheckpointError

logger = logging.getLogger("psnb")


def newest_whole(directory: Place) -> SavedCheckpoint | None:
    """Return the newest checkpoint of a folder that is not damaged; None if it has none at all.

    All files of it are checked. A warning tells of each newer one that is damaged.

    Raises
    ------
    CheckpointError
        If all are damaged, or the folder cannot be read.
    """
    damage: list[str] = []
    for path in reversed(checkpoints_in(directory)):
        try:
            found = SavedCheckpoint(path)
            found.verify()
        except CheckpointError as error:
            if path.exists():  # otherwise a manager removed it just now
                damage.append(str(error))
            continue
        for each in damage:
            logger.warning("the newest checkpoint is damaged, %s is older: %s", path, excerpt(each))
        return found
    if damage:
        raise CheckpointError(
            "\n".join([f"all checkpoints in {str(directory)!r} are damaged:", *damage])
        )
    return None
