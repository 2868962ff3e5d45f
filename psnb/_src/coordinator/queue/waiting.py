"""Waiting: the closures that may run, in the order in which they should. Pure, without locks.

Higher priorities come first; within one, closures that were lost with their worker, then first
come, first served. Closures that need a certain worker wait in lines of their own, so that they
never block others. A worker takes from all lines that suit it, in the same order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from heapq import heappop, heappush

from psnb._src.coordinator.closures import Chooser, Closure, Pin


class _ByPriority:
    """Closures by priority: adding and taking one costs O(log of the priorities in use)."""

    __slots__ = ("_heap", "_levels", "pin")

    def __init__(self, pin: Pin | None = None) -> None:
        self.pin = pin
        self._levels: dict[float, deque[Closure]] = {}
        self._heap: list[float] = []  # the negated priorities in `_levels`, none of which is empty

    def __bool__(self) -> bool:
        return bool(self._heap)

    def level(self, priority: float) -> deque[Closure]:
        """Return the closures of a priority; the caller adds one, so that it is not empty."""
        found = self._levels.get(priority)
        if found is None:
            found = self._levels[priority] = deque()
            heappush(self._heap, -priority)
        return found

    def rank(self) -> tuple[float, int]:
        """Return the rank of the first closure among the lines: lower is earlier."""
        return self._heap[0], self._levels[-self._heap[0]][0].id

    def take(self, admit: Callable[[Closure], bool]) -> list[Closure]:
        """Take closures for as long as the next one is admitted."""
        taken: list[Closure] = []
        while self._heap:
            level = self._levels[-self._heap[0]]
            while level and admit(level[0]):
                taken.append(level.popleft())
            if level:
                break
            del self._levels[-heappop(self._heap)]
        return taken

    def __iter__(self) -> Iterator[Closure]:
        for key in sorted(self._heap):
            yield from self._levels[-key]


class Waiting:
    """Closures that wait for a worker; `len` tells how many.

    Attributes
    ----------
    lines : int
        How many lines of pinned closures were ever begun: if it is the same, `choosers` has no new
        ones.
    """

    def __init__(self) -> None:
        self.lines = 0
        self._size = 0
        self._anywhere = _ByPriority()
        # The lines of pinned closures, by name, index, or the identity of the choosing function,
        # which the line keeps alive. No line is empty.
        self._pinned: dict[tuple[str, object], _ByPriority] = {}

    def __len__(self) -> int:
        return self._size

    def pinned(self) -> bool:
        """Return whether any closure needs a certain worker."""
        return bool(self._pinned)

    def add(self, closure: Closure) -> None:
        """Append a closure to those of its priority."""
        options = closure.options
        line = self._anywhere if options.worker is None else self._line(options.worker)
        line.level(options.priority).append(closure)
        self._size += 1

    def add_first(self, closure: Closure) -> None:
        """Put a closure before those of its priority."""
        options = closure.options
        line = self._anywhere if options.worker is None else self._line(options.worker)
        line.level(options.priority).appendleft(closure)
        self._size += 1

    def choosers(self) -> list[Chooser]:
        """Return the functions that choose a worker, to be asked without any lock."""
        return [line.pin for line in self._pinned.values() if callable(line.pin)]

    def take(self, admit: Callable[[Closure], bool], pins: Collection[Pin] = ()) -> list[Closure]:
        """Take closures that are pinned to nothing or to one of ``pins``.

        Parameters
        ----------
        admit : callable
            Asked for each in turn; the first that it refuses, and all behind it, stay.
        pins : collection
            The worker's name and index, and the functions that choose it.
        """
        keys = [key for pin in pins if (key := _key(pin)) in self._pinned] if self._pinned else []
        if not keys:
            taken = self._anywhere.take(admit)
        else:
            taken = []
            lines = [self._anywhere, *(self._pinned[key] for key in keys)]
            while lines := [line for line in lines if line]:
                one = min(lines, key=_ByPriority.rank).take(_once(admit))
                if not one:
                    break
                taken += one
            for key in keys:
                if not self._pinned[key]:
                    del self._pinned[key]
        self._size -= len(taken)
        return taken

    def take_pinned(self, pin: Pin) -> list[Closure]:
        """Take all closures that are pinned to ``pin``."""
        line = self._pinned.pop(_key(pin), None)
        taken = line.take(_all) if line is not None else []
        self._size -= len(taken)
        return taken

    def __iter__(self) -> Iterator[Closure]:
        """Iterate over all closures, those that need a certain worker last."""
        for line in (self._anywhere, *self._pinned.values()):
            yield from line

    def take_all(self) -> list[Closure]:
        """Take all closures, whatever they are pinned to."""
        taken = list(self)
        self._anywhere, self._pinned, self._size = _ByPriority(), {}, 0
        return taken

    def _line(self, pin: Pin) -> _ByPriority:
        line = self._pinned.get(_key(pin))
        if line is None:
            line = self._pinned[_key(pin)] = _ByPriority(pin)
            self.lines += 1
        return line


def _all(closure: Closure) -> bool:
    return True


def _once(admit: Callable[[Closure], bool]) -> Callable[[Closure], bool]:
    """Admit one closure at most."""
    taken = False

    def admit_one(closure: Closure) -> bool:
        nonlocal taken
        taken, before = True, taken
        return not before and admit(closure)

    return admit_one


def _key(pin: Pin) -> tuple[str, object]:
    if isinstance(pin, str):
        return "name", pin
    if isinstance(pin, int):
        return "index", pin
    # By identity: some functions cannot be hashed, and foreign code must not run here.
    return "function", id(pin)
