"""Checkpoints on disk: atomic, pickle-free, independent of the number of servers."""

from psnb._src.checkpoint.checkpoint import Checkpoint
from psnb._src.checkpoint.checkpoint_folder import prepare
from psnb._src.checkpoint.folder_manager import FolderManager
from psnb._src.checkpoint.restore_choice import RestoreChoice
from psnb._src.checkpoint.restored import Restored

__all__ = ["Checkpoint", "FolderManager", "RestoreChoice", "Restored", "prepare"]
