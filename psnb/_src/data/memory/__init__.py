"""Datasets in memory: their pieces, where these are, and how a shuffle moves them."""

from psnb._src.data.memory.loading import Loading
from psnb._src.data.memory.memory import Memory
from psnb._src.data.memory.memory_store import MemoryStatistics
from psnb._src.data.memory.shuffle_plan import ShufflePlan

__all__ = [
    "Loading",
    "Memory",
    "MemoryStatistics",
    "ShufflePlan",
]
