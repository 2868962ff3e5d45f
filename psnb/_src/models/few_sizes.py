"""FewSizes: the sizes to which arrays are padded, so that few programs are compiled. Pure.

Threads: several may use one; at worst, one of them uses another size than it would have alone.
"""

from __future__ import annotations

_SPARE = 16
"""One part in so many is left free, for batches that need a little more than the first one."""


class FewSizes:
    """Chooses sizes, and prefers those that it has chosen before."""

    def __init__(self) -> None:
        self._used: tuple[int, ...] = ()

    def at_least(self, count: int) -> int:
        """Return a size that is not below ``count`` nor far above it."""
        for size in self._used:
            # A size that was used is compiled: it may be twice too large.
            if count <= size <= max(8, 2 * count):
                return size
        size = padded_size(count + count // _SPARE)
        self._used = tuple(sorted({*self._used, size}))
        return size


def padded_size(count: int) -> int:
    """Return the next size that is 4, 5, 6 or 7 times a power of two; 8 at the least."""
    if count <= 8:
        return 8
    step: int = 1 << max(0, (count - 1).bit_length() - 3)
    return -(-count // step) * step
