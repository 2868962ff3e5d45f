"""Checkpoints: atomic, pickle-free, independent of the number of servers."""

from psnb.checkpoint.checkpoint import Checkpoint
from psnb.checkpoint.directory import prepare
from psnb.checkpoint.manager import CheckpointManager

__all__ = ["Checkpoint", "CheckpointManager", "prepare"]
