"""Waiting: the closures that may run, in the order in which they should. Pure, without locks.

Higher priorities come first; within one, closures that were lost with their worker, then first
come, first served, and long ones last. Closures that need a certain worker wait in queues of their
own, so that they never block others. A worker takes from all queues that suit it, in the same
order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from heapq import heapify, heappop, heappush
from itertools import chain

from psnb._src.coordinator.closures.options import Pin, WorkerPredicate
from psnb._src.coordinator.closures.remote_value import RemoteValue
from psnb._src.coordinator.scheduling.work import Work


class _ByPriority:
    """Closures by priority: adding and taking one costs O(log of the priorities in use)."""

    __slots__ = ("_heap", "_levels", "pin")

    def __init__(self, pin: Pin | None = None) -> None:
        self.pin = pin
        self._levels: dict[float, deque[Work]] = {}
        self._heap: list[float] = []  # the negated priorities in `_levels`, none of which is empty

    def __bool__(self) -> bool:
        return bool(self._heap)

    def level(self, priority: float) -> deque[Work]:
        """Return the closures of a priority; the caller adds one, so that it is not empty."""
        found = self._levels.get(priority)
        if found is None:
            found = self._levels[priority] = deque()
            heappush(self._heap, -priority)
        return found

    def first(self) -> Work:
        """Return the first closure."""
        return self._levels[-self._heap[0]][0]

    def rank(self) -> tuple[float, bool, int]:
        """Return the rank of the first closure among the queues: lower is earlier.

        Long ones come last in their priority: there is always another one.
        """
        first = self.first()
        return self._heap[0], first.long, first.id

    def take(self, admit: Callable[[Work], bool]) -> list[Work]:
        """Take closures for as long as the next one is admitted."""
        taken: list[Work] = []
        while self._heap:
            level = self._levels[-self._heap[0]]
            while level and admit(level[0]):
                taken.append(level.popleft())
            if level:
                break
            del self._levels[-heappop(self._heap)]
        return taken

    def remove(self, remote: RemoteValue) -> Work | None:
        """Remove the closure of a remote value, if it is here; O(closures)."""
        for priority, level in self._levels.items():
            for closure in level:
                if closure.remote is remote:
                    level.remove(closure)
                    if not level:
                        del self._levels[priority]
                        self._heap.remove(-priority)
                        heapify(self._heap)
                    return closure
        return None

    def __iter__(self) -> Iterator[Work]:
        for key in sorted(self._heap):
            yield from self._levels[-key]


class Waiting:
    """Closures that wait for a worker; `len` is their number."""

    def __init__(self) -> None:
        self._size = 0
        self._anywhere = _ByPriority()
        # The queues of pinned closures, by name, index, or the identity of the choosing function,
        # which the queue keeps alive. No queue is empty.
        self._pinned: dict[tuple[str, object], _ByPriority] = {}

    def __len__(self) -> int:
        return self._size

    def first(self) -> Iterator[Work]:
        """Iterate over the first closures: of those for any worker, and of those for each pin."""
        queues = chain((self._anywhere,), self._pinned.values())
        return (queue.first() for queue in queues if queue)

    def unpinned(self, priority: float) -> bool:
        """Return whether the first closure for any worker has this priority or a higher one.

        A long one does not count.
        """
        if not self._anywhere:
            return False
        negated, long, _ = self._anywhere.rank()
        return -negated >= priority and not long

    def any_for(self, name: str, index: int) -> bool:
        """Return whether any closure may suit a worker; nobody is asked whether it chooses it."""
        if self._anywhere or ("name", name) in self._pinned or ("index", index) in self._pinned:
            return True
        return any(callable(queue.pin) for queue in self._pinned.values())

    def add(self, closure: Work) -> None:
        """Append a closure to those of its priority."""
        options = closure.options
        queue = self._anywhere if options.worker is None else self._queue_for(options.worker)
        queue.level(options.priority).append(closure)
        self._size += 1

    def add_first(self, closure: Work) -> None:
        """Put a closure before those of its priority."""
        options = closure.options
        queue = self._anywhere if options.worker is None else self._queue_for(options.worker)
        queue.level(options.priority).appendleft(closure)
        self._size += 1

    def choosers(self, admits: Callable[[Work], bool]) -> list[WorkerPredicate]:
        """Return the functions that choose a worker for a closure that is admitted."""
        queues = self._pinned.values()
        return [each.pin for each in queues if callable(each.pin) and admits(each.first())]

    def awaited(self) -> list[object]:
        """Return the names and indices of the workers that closures need."""
        return [queue.pin for queue in self._pinned.values() if not callable(queue.pin)]

    def take(self, admit: Callable[[Work], bool], pins: Collection[Pin] = ()) -> list[Work]:
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
            queues = [self._anywhere, *(self._pinned[key] for key in keys)]
            while queues := [queue for queue in queues if queue]:
                one = min(queues, key=_ByPriority.rank).take(_once(admit))
                if not one:
                    break
                taken += one
            for key in keys:
                if not self._pinned[key]:
                    del self._pinned[key]
        self._size -= len(taken)
        return taken

    def remove(self, remote: RemoteValue) -> Work | None:
        """Remove and return the closure of a remote value, if it is here; O(closures)."""
        found = self._anywhere.remove(remote)
        for key, queue in list(self._pinned.items()) if found is None else ():
            found = found or queue.remove(remote)
            if not queue:
                del self._pinned[key]
        self._size -= found is not None
        return found

    def take_pinned(self, pin: Pin) -> list[Work]:
        """Take all closures that are pinned to ``pin``."""
        queue = self._pinned.pop(_key(pin), None)
        taken = queue.take(_all) if queue is not None else []
        self._size -= len(taken)
        return taken

    def __iter__(self) -> Iterator[Work]:
        """Iterate over all closures, those that need a certain worker last."""
        for queue in (self._anywhere, *self._pinned.values()):
            yield from queue

    def take_all(self) -> list[Work]:
        """Take all closures, whatever they are pinned to."""
        taken = list(self)
        self._anywhere, self._pinned, self._size = _ByPriority(), {}, 0
        return taken

    def _queue_for(self, pin: Pin) -> _ByPriority:
        queue = self._pinned.get(_key(pin))
        if queue is None:
            queue = self._pinned[_key(pin)] = _ByPriority(pin)
        return queue


def _all(closure: Work) -> bool:
    return True


def _once(admit: Callable[[Work], bool]) -> Callable[[Work], bool]:
    """Admit one closure at most."""
    taken = False

    def admit_one(closure: Work) -> bool:
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
