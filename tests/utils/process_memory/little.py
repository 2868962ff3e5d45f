"""A process that has little memory left, as a test says."""

from __future__ import annotations

from psnb._src.utils.process_memory.limits import MemoryUse
from psnb._src.utils.process_memory.room import MemoryRoom

NEAR = MemoryUse(90, 10, 100, "at which a test ends its process")


class Little(MemoryRoom):
    """Refuses what is larger than ``most`` bytes, or all that lasts beyond them together.

    Attributes
    ----------
    most : int
        Bytes.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def lacks(self, nbytes: int, *, lasts: bool) -> MemoryUse | None:
        if nbytes > self.most:
            return NEAR
        if lasts:
            self.most -= nbytes
        return None
