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
        Into how many pieces it is cut.
    missing : int
        How many pieces no worker has: they are not loaded yet, or lost.
    workers : mapping of str to MemoryStatistics
        What each worker has, by its name.
    """

    pieces: int
    missing: int
    workers: Mapping[str, MemoryStatistics]

    @property
    def examples(self) -> int:
        """How many examples are in memory (or on disk, if memory is short)."""
        return sum(each.examples for each in self.workers.values())

    @property
    def bytes_in_memory(self) -> int:
        """Bytes that the examples take in the workers' memory."""
        return sum(each.bytes_in_memory for each in self.workers.values())

    @property
    def bytes_on_disk(self) -> int:
        """Bytes beyond ``memory_limit``, which are in files of the workers."""
        return sum(each.bytes_on_disk for each in self.workers.values())
