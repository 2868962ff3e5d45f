"""Checkpoints without a cluster: what was learned, as arrays; and what restoring one came to."""

from psnb._src.checkpoint.reader import Restored, SavedCheckpoint, SavedTable, load

__all__ = [
    "Restored",
    "SavedCheckpoint",
    "SavedTable",
    "load",
]
