"""Checkpoints without a cluster: what was learned, as arrays; and what restoring one came to."""

from psnb._src.checkpoint.reader import SavedCheckpoint, load
from psnb._src.checkpoint.restore import Restored
from psnb._src.checkpoint.saved_table import SavedTable

__all__ = [
    "Restored",
    "SavedCheckpoint",
    "SavedTable",
    "load",
]
