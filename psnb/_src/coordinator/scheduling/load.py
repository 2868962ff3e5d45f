"""Load: which closures a worker has, and whether it should get more. Pure.

A worker gets one closure for each thread, and beyond that enough short ones to hide the network's
round trip, and the way of each one's commit to the servers. Long closures, and those of functions
of which none has ended yet, are not sent ahead: another worker may be free first. A closure is
expected to take as long as others of its function.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

from psnb._src.coordinator.closures.functions import Duration
from psnb._src.coordinator.scheduling.work import NOT_TAKEN, Work
from psnb._src.worker.context import InputContext

AHEAD_SECONDS = 0.1
"""Seconds of work that waits on a worker behind each thread's; a longer closure counts as long."""


LONG_SECONDS = 0.5
"""The same for long ones, and what steps one of them is granted: these need nothing of the
notebook, and it ends with any of them when something else is to be done."""


SPREAD_SECONDS = 0.001
"""The same while other workers are idle: less work is not worth messages to more of them."""


RECALL_SECONDS = 0.2
"""Seconds without any outcome after which closures that wait on a worker go elsewhere.

Behind a long one, whose steps are reported now and then only, as long as that takes.
"""


MOST_AHEAD = 256


_NEXT_TO_NOTHING = 1e-6


class Load:
    """The closures that were sent to one worker and have not come back.

    Belongs to the event loop; other threads may ask for `len`.

    Parameters
    ----------
    threads : int
        Closures that the worker runs at the same time.
    """

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._closures: dict[int, tuple[Work, float]] = {}  # in the order of their sending
        self._seconds = 0.0  # what the short ones take together
        self._long = 0
        self.refused = False  # there was no room for a closure that waits
        self.stuck = False  # closures sent as short are long: send nothing ahead
        self.ahead, self.long_seconds = AHEAD_SECONDS, LONG_SECONDS
        self._moved = 0.0  # when closures last came or went
        self._latency = Duration()  # of an answer beyond the time that its closure took

    def __len__(self) -> int:
        return len(self._closures)

    def __iter__(self) -> Iterator[Work]:
        """Iterate over the closures in the order in which the worker got them."""
        return (closure for closure, _ in self._closures.values())

    def __contains__(self, closure: object) -> bool:
        return isinstance(closure, Work) and closure.id in self._closures

    def add(self, closure: Work) -> bool:
        """Add a closure if there is room for it, and return whether there was.

        A long one that is new is granted as many steps as are expected to take `LONG_SECONDS`, or
        longer if there are many workers.
        """
        expected, ahead = closure.function.duration.mean, self.ahead
        if closure.long and ahead > 0.0:  # else there is a gate
            if closure.execution is NOT_TAKEN and expected is not None:
                closure.granted = self._steps(expected, closure.options.steps)
            ahead = self.long_seconds if ahead == AHEAD_SECONDS else ahead
        if expected is None or expected > AHEAD_SECONDS:
            expected = math.inf
        else:
            expected *= closure.left
        if len(self._closures) >= self.threads and not self._ahead(expected, ahead):
            self.refused = True
            return False
        self._closures[closure.id] = closure, expected
        if expected is math.inf:
            self._long += 1
        else:
            self._seconds += expected
        return True

    def full(self) -> bool:
        """Return whether there is no room for any closure; note it, as `add` does."""
        ahead = self.long_seconds if self.ahead == AHEAD_SECONDS else self.ahead
        full = len(self._closures) >= self.threads and not self._ahead(_NEXT_TO_NOTHING, ahead)
        self.refused = self.refused or full
        return full

    def find(self, closure_id: int) -> Work:
        """Return a closure that is here."""
        return self._closures[closure_id][0]

    def advance(self, closure_id: int, steps: int) -> None:
        """Note that the next steps of one that goes on are done; before it is changed."""
        closure, expected = self._closures[closure_id]
        if expected is not math.inf and closure.left:
            less = expected * steps / closure.left
            self._closures[closure_id] = closure, expected - less
            self._seconds -= less

    def remove(self, closure_id: int) -> Work:
        """Remove a closure that came back, in whatever way."""
        closure, expected = self._closures.pop(closure_id)
        if expected is math.inf:
            self._long -= 1
        else:
            # Sums of floats drift: start from zero whenever there is nothing.
            self._seconds = self._seconds - expected if self._closures else 0.0
        return closure

    def keep(self, closure_id: int, attempt: int, commit: int, result: bytes) -> bool:
        """Keep the result that a closure is going to return; False if that attempt is not here."""
        closure, _ = self._closures.get(closure_id, (None, 0.0))
        if closure is None or closure.execution.attempt != attempt:
            return False
        closure.execution.kept[commit] = result
        return True

    def note_taken(self, closure_id: int, place: InputContext, elements: bytes) -> None:
        """Note what a closure that is here has taken from iterators, and where; it has failed."""
        closure, _ = self._closures[closure_id]
        closure.execution.taken = place, elements

    def waiting(self) -> list[int]:
        """Return the ids of the closures that should wait behind those on the worker's threads."""
        return list(islice(self._closures, self.threads, None))

    def long(self) -> list[int]:
        """Return the ids of the long ones."""
        return [closure.id for closure in self if closure.long]

    def sent(self, now: float) -> None:
        """Note that closures were sent, at a time in seconds."""
        self._moved = now

    def answered(self, now: float, seconds: float, *, held: bool = False) -> None:
        """Note that closures have ended, the first of which took ``seconds``.

        What was ``held`` back, as the steps of long ones are, says nothing of how slow the worker
        is.
        """
        if not held:
            self._latency.add(max(0.0, now - self._moved - seconds))
        self._moved = now
        self.stuck = False

    def overdue(self, now: float) -> list[int]:
        """Return the ids of closures that have waited for too long, and might run elsewhere."""
        waiting = self.waiting()
        # If the worker's process or network is slow anyway, asking would make it slower.
        patience = max(RECALL_SECONDS, 4 * (self._latency.mean or 0.0))
        if any(closure.long for closure in islice(self, self.threads)):
            patience = max(patience, self.long_seconds)  # its reports are held back, for less
        if not waiting or now - self._moved < patience:
            return []
        # Half of them first: whatever holds the worker up may be over in a moment.
        first = 0 if self.stuck else len(waiting) // 2
        self.stuck = True
        self._moved += patience
        return waiting[first:]

    def clear(self) -> list[Work]:
        """Remove all closures and return them in the order in which they were sent."""
        return [self.remove(closure_id) for closure_id in list(self._closures)]

    def _steps(self, expected: float, most: int) -> int:
        return max(1, min(most, int(self.long_seconds / max(expected, _NEXT_TO_NOTHING))))

    def _ahead(self, expected: float, ahead: float) -> bool:
        # Work that waits must not wait behind something long.
        free = self.threads - self._long
        first = islice(self._closures.values(), self.threads)
        run = sum(seconds for _, seconds in first if seconds is not math.inf)
        return (
            not self.stuck
            and len(self._closures) < self.threads + MOST_AHEAD
            # What runs counts if it takes longer than what may wait.
            and self._seconds - min(run, ahead * self.threads) + expected <= ahead * free
        )
