"""What lies in memory: the pieces of a dataset, who has which, and how a shuffle moves them."""

from psnb.data.memory.layout import Layout
from psnb.data.memory.loading import Loading
from psnb.data.memory.memory import Memory
from psnb.data.memory.store import MemoryStatistics

__all__ = ["Layout", "Loading", "Memory", "MemoryStatistics"]
