"""Checkpoints: atomic, pickle-free, independent of the number of servers."""

from psnb._src.checkpoint.checkpoint import Checkpoint
from psnb._src.checkpoint.checkpoint_folder import prepare
from psnb._src.checkpoint.manager import CheckpointManager

__all__ = [
    "Checkpoint",
    "CheckpointManager",
    "prepare",
]
