"""Checkpoints on disk: atomic, pickle-free, independent of the number of servers."""

from psnb._src.checkpoint.checkpoint import Checkpoint, ModelParts
from psnb._src.checkpoint.folder_listing import folder_listing, prune_verified
from psnb._src.checkpoint.folder_manager import FolderManager
from psnb._src.checkpoint.folder_of import folder_of
from psnb._src.checkpoint.layered_rows import LayeredRows
from psnb._src.checkpoint.newer_checkpoint import (
    NewerCheckpoint,
    WantedParameter,
    newer_checkpoint,
    newest_number,
)
from psnb._src.checkpoint.newest_whole import newest_whole
from psnb._src.checkpoint.restore_choice import RestoreChoice
from psnb._src.checkpoint.restored import Restored
from psnb._src.checkpoint.rhythm import Rhythm
from psnb._src.checkpoint.saved_checkpoint import SavedCheckpoint, load
from psnb._src.checkpoint.saved_table import SavedTable

__all__ = [
    "Checkpoint",
    "FolderManager",
    "LayeredRows",
    "ModelParts",
    "NewerCheckpoint",
    "RestoreChoice",
    "Restored",
    "Rhythm",
    "SavedCheckpoint",
    "SavedTable",
    "WantedParameter",
    "folder_listing",
    "folder_of",
    "load",
    "newer_checkpoint",
    "newest_number",
    "newest_whole",
    "prune_verified",
]
