"""What is in a folder of checkpoints, for the command line: a table, and what is wrong. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from psnb._src.checkpoint.checkpoint_folder import checkpoints, prune, written
from psnb._src.checkpoint.saved_checkpoint import SavedCheckpoint
from psnb._src.excerpt import excerpt
from psnb._src.text_table import text_table
from psnb.errors import CheckpointError

_WIDTH = 100
"""Characters of the metadata that are shown; 100 at least for `excerpt`."""


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


def folder_listing(directory: Path, *, verify: bool) -> FolderListing:
    """Look at all checkpoints of a folder.

    Parameters
    ----------
    directory : pathlib.Path
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
    for path in checkpoints(directory):
        try:
            rows.append((*_known(path, verify), "ok" if verify else "not verified"))
        except CheckpointError as error:
            if path.exists():  # otherwise a manager removed it just now
                rows.append((path.name, written(path), *[""] * 3, "damaged"))
                wrong.append(str(error))
    if not rows:
        raise CheckpointError(f"there is no checkpoint in {str(directory)!r}")
    head = ("checkpoint", "written", "parameters", "bytes", "metadata", "state")
    return FolderListing("\n".join([text_table(head, rows), *wrong]), len(rows), len(wrong))


def prune_verified(directory: Path, keep: int) -> list[str]:
    """Remove all but the newest checkpoints, if these are whole.

    Parameters
    ----------
    directory : pathlib.Path
        The folder.
    keep : int
        How many to keep; those that are in use, or are marked as kept, stay too.

    Returns
    -------
    list of str
        The names of those that were removed.

    Raises
    ------
    CheckpointError
        If one to be kept is damaged; nothing was removed.
    """
    before = checkpoints(directory)
    for path in before[-keep:]:
        try:
            SavedCheckpoint(path).verify()
        except CheckpointError as error:
            raise CheckpointError(
                f"nothing was removed, as one of those to keep is not whole: {error}"
            ) from error
    prune(directory, keep)
    left = {path.name for path in checkpoints(directory)}
    return [path.name for path in before if path.name not in left]


def _known(path: Path, verify: bool) -> tuple[str, str, str, str, str]:
    """Return all of a checkpoint's line but its state."""
    saved = SavedCheckpoint(path)
    try:
        size = sum(file.stat().st_size for file in saved.files)
    except OSError as error:
        raise CheckpointError(f"checkpoint {str(path)!r} lacks a file: {error}") from error
    if verify:
        saved.verify()
    plain = [
        f"{key}={value}"
        for key, value in saved.metadata.items()
        if value is None or isinstance(value, str | int | float)
    ]
    told = excerpt(" ".join(plain), _WIDTH)
    return path.name, written(path), f"{len(saved):,}", f"{size:,}", " ".join(told.split())
