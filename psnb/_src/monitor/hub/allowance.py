"""Rate limit: a number of uses per second on average, and twice that at once."""

from __future__ import annotations

import time
from collections.abc import Callable


class Allowance:
    """A token bucket: it fills steadily, and each use takes one token. Used from one thread.

    Parameters
    ----------
    per_second : float
        Uses per second in the long run; the bucket starts full, and holds two seconds' worth.
    clock : callable
        Returns seconds.
    """

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._left = 2 * per_second
        self._seen = clock()

    def allows(self) -> bool:
        """Take a token, and return whether there was one."""
        now = self._clock()
        gained = (now - self._seen) * self._per_second
        self._left, self._seen = min(self._left + gained, 2 * self._per_second), now
        if self._left < 1:
            return False
        self._left -= 1
        return True
