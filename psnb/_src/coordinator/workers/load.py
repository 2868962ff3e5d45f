"""Load: what a worker holds, and whether it should hold more. Pure.

A worker gets one closure a thread, and beyond that as much short work as hides the way there and
back. Long closures, and those of functions that nobody has seen end, are not sent ahead: another
worker may be free first. How long a closure takes is what those of its function took.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

from psnb._src.coordinator.closures import Closure

AHEAD_SECONDS = 0.02
"""Work that waits on a worker, for each of its threads; a longer closure counts as long."""

SPREAD_SECONDS = 0.001
"""The same while other workers have nothing to do: less is not worth messages to more of them."""

RECALL_SECONDS = 0.2
"""Without any outcome, after which closures that wait on a worker are better off elsewhere."""

MOST_AHEAD = 256


class Load:
    """The closures that were sent to one worker and have not come back.

    Belongs to the event loop; other threads may ask for `len`.

    Parameters
    ----------
    threads : int
        Closures that the worker runs at the same time.
    """

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._closures: dict[int, tuple[Closure, float]] = {}  # in the order of their sending
        self._seconds = 0.0  # what the short ones take together
        self._long = 0
        self.refused = False  # something that waits was too much
        self.stuck = False  # what was sent as short is not: send nothing ahead
        self.ahead = AHEAD_SECONDS

    def __len__(self) -> int:
        return len(self._closures)

    def __iter__(self) -> Iterator[Closure]:
        """Iterate over the closures in the order in which the worker got them."""
        return (closure for closure, _ in self._closures.values())

    def add(self, closure: Closure) -> bool:
        """Take a closure on if there is room for it, and return whether there was."""
        expected = closure.function.duration.mean
        if expected is None or expected > AHEAD_SECONDS:
            expected = math.inf
        if len(self._closures) >= self._threads and not self._ahead(expected):
            self.refused = True
            return False
        self._closures[closure.id] = closure, expected
        if expected is math.inf:
            self._long += 1
        else:
            self._seconds += expected
        return True

    def remove(self, closure_id: int) -> Closure:
        """Give up a closure that came back, in whatever way."""
        closure, expected = self._closures.pop(closure_id)
        if expected is math.inf:
            self._long -= 1
        else:
            # Sums of floats drift: begin anew whenever there is nothing.
            self._seconds = self._seconds - expected if self._closures else 0.0
        return closure

    def keep(self, closure_id: int, attempt: int, result: bytes) -> bool:
        """Keep what a closure is going to return; False if it is not here in that attempt."""
        closure, _ = self._closures.get(closure_id, (None, 0.0))
        if closure is None or closure.run.attempt != attempt:
            return False
        closure.run.kept = attempt, result
        return True

    def waiting(self) -> list[int]:
        """Return the numbers of those that the worker cannot have begun if it lost no time."""
        return list(islice(self._closures, self._threads, None))

    def clear(self) -> list[Closure]:
        """Give up all closures and return them in the order of their sending."""
        return [self.remove(closure_id) for closure_id in list(self._closures)]

    def _ahead(self, expected: float) -> bool:
        # Work that waits must not wait behind something long.
        free = self._threads - self._long
        return (
            not self.stuck
            and len(self._closures) < self._threads + MOST_AHEAD
            and self._seconds + expected <= self.ahead * free
        )
