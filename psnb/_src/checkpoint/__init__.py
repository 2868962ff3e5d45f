"""Checkpoints on disk: atomic, pickle-free, independent of the number of servers."""

from psnb._src.checkpoint.checkpoint import Checkpoint
from psnb._src.checkpoint.checkpoint_folder import prepare
from psnb._src.checkpoint.folder_manager import FolderManager
from psnb._src.checkpoint.rhythm import Rhythm

__all__ = ["Checkpoint", "FolderManager", "Rhythm", "prepare"]
