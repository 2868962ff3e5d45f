"""Checkpoints: atomic, pickle-free, independent of the number of servers."""

from psnb.checkpoint.checkpoint import Checkpoint
from psnb.checkpoint.manager import CheckpointManager
from psnb.checkpoint.store import prepare

__all__ = ["Checkpoint", "CheckpointManager", "prepare"]
