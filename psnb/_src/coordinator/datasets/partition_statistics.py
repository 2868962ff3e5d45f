"""PartitionStatistics: what the workers have of a dataset in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from psnb._src.data import MemoryStatistics


@dataclass(frozen=True, slots=True)
class PartitionStatistics:
    """A dataset in the memory of workers, when it was last asked about.

    Attributes
    ----------
    pieces : int
        Into how many it is cut.
    missing : int
        How many of them no worker has: not loaded yet, or lost.
    workers : mapping of str to MemoryStatistics
        What each worker has, by its name.
    """

    pieces: int
    missing: int
    workers: Mapping[str, MemoryStatistics]

    @property
    def examples(self) -> int:
        """How many examples are in memory (or on disk, for want of it)."""
        return sum(each.examples for each in self.workers.values())

    @property
    def bytes_in_memory(self) -> int:
        """What they take of the workers' memory."""
        return sum(each.bytes_in_memory for each in self.workers.values())

    @property
    def bytes_on_disk(self) -> int:
        """What of them was beyond ``memory_limit`` and is in files of the workers."""
        return sum(each.bytes_on_disk for each in self.workers.values())
