"""What is in a folder of checkpoints, for the command line. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from psnb._src.checkpoint.folders import checkpoints_in, is_gone, store_at
from psnb._src.checkpoint.reader import SavedCheckpoint
from psnb._src.utils.paths import AnyPath
from psnb._src.utils.text import text_table, truncate
from psnb.errors import CheckpointError

_WIDTH = 100
"""Characters of the metadata that are shown; 100 at least for `truncate`."""


@dataclass(frozen=True, slots=True)
class FolderListing:
    """What a folder of checkpoints has.

    Attributes
    ----------
    text : str
        A table with a line for each, the oldest first; below it, what is wrong.
    count, damaged : int
        How many there are, and how many of them are damaged.
    """

    text: str
    count: int
    damaged: int


def folder_listing(directory: AnyPath, *, verify: bool) -> FolderListing:
    """Look at all checkpoints of a folder.

    Parameters
    ----------
    directory : Path or RemotePath
        The folder.
    verify : bool
        Whether to check all that is in their files; otherwise, that the files are there.

    Raises
    ------
    CheckpointError
        If there is none.
    """
    rows: list[tuple[str, ...]] = []
    wrong: list[str] = []
    folder = store_at(directory)
    for path in checkpoints_in(directory):
        try:
            known = path.name, folder.written(path), *_known(path, verify)
            rows.append((*known, "ok" if verify else "not verified"))
        except CheckpointError as error:
            if not is_gone(path):  # otherwise a manager removed it just now
                rows.append((path.name, folder.written(path), *[""] * 4, "damaged"))
                wrong.append(str(error))
    if not rows:
        raise CheckpointError(f"there is no checkpoint in {str(directory)!r}")
    head = ("checkpoint", "written", "parameters", "bytes", "new", "metadata", "state")
    return FolderListing("\n".join([text_table(head, rows), *wrong]), len(rows), len(wrong))


def prune_verified(directory: AnyPath, keep: int) -> list[str]:
    """Remove all but the newest checkpoints, if these are whole.

    Parameters
    ----------
    directory : Path or RemotePath
        The folder.
    keep : int
        How many to keep; checkpoints in use, or marked as kept, stay too.

    Returns
    -------
    list of str
        The names of the removed checkpoints.

    Raises
    ------
    CheckpointError
        If one to be kept is damaged; nothing was removed.
    """
    folder = store_at(directory)
    before = checkpoints_in(directory)
    for path in before[-keep:]:
        try:
            SavedCheckpoint(path).verify()
        except CheckpointError as error:
            raise CheckpointError(
                f"nothing was removed, as one of those to keep is not whole: {error}"
            ) from error
    folder.prune(keep)
    left = {path.name for path in checkpoints_in(directory)}
    return [path.name for path in before if path.name not in left]


def _known(path: AnyPath, verify: bool) -> tuple[str, str, str, str]:
    """Return what a checkpoint's line says of its content."""
    saved = SavedCheckpoint(path)
    size, own = saved.nbytes, saved.own_nbytes
    if verify:
        saved.verify()
    plain = [
        f"{key}={value}"
        for key, value in saved.metadata.items()
        if value is None or isinstance(value, str | int | float)
    ]
    metadata = truncate(" ".join(" ".join(plain).split()), _WIDTH)
    return f"{len(saved):,}", f"{size:,}", f"{own:,}", metadata
