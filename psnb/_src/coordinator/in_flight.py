"""Waiting: the closures that may run, in the order in which they should. Pure, without locks.

Higher priorities come first; within one, closures that were lost with their worker, then first
come, first served, and long ones last. Closures that need a certain worker wait in queues of their
own, so that they never block others. A worker takes from all queues that suit it, in the same
order.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import chain

from psnb._src.coordinator.closures import NOT_TAKEN, Execution, Pin, Work, WorkerPredicate
from psnb._src.coordinator.remote_value import RemoteValue
from psnb._src.server.tables.operations import RoundWeights
from psnb._src.utils.range_set import RangeSet


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

    @property
    def highest(self) -> float:
        """The highest priority among them; there must be some."""
        return -self._heap[0]

    def rank(self) -> tuple[float, bool, int]:
        """Return the rank of the first closure among the queues: lower is earlier.

        Long ones come last in their priority: there is always another one.
        """
        first = self._levels[-self._heap[0]][0]
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
    """Closures that wait for a worker; `len` is their number.

    Attributes
    ----------
    queues_begun : int
        How many queues of pinned closures were ever begun: if it is the same, `choosers` has no new
        ones.
    """

    def __init__(self) -> None:
        self.queues_begun = 0
        self._size = 0
        self._anywhere = _ByPriority()
        # The queues of pinned closures, by name, index, or the identity of the choosing function,
        # which the queue keeps alive. No queue is empty.
        self._pinned: dict[tuple[str, object], _ByPriority] = {}

    def __len__(self) -> int:
        return self._size

    def pinned(self) -> bool:
        """Return whether any closure needs a certain worker."""
        return bool(self._pinned)

    def unpinned(self, priority: float) -> bool:
        """Return whether any closure of this priority or a higher one may run on every worker."""
        return bool(self._anywhere) and self._anywhere.highest >= priority

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

    def choosers(self) -> list[WorkerPredicate]:
        """Return the functions that choose a worker, to be asked without any lock."""
        return [queue.pin for queue in self._pinned.values() if callable(queue.pin)]

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
            self.queues_begun += 1
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


# InFlight: the closures that workers have, and the numbers of their commits. Pure, without locks.
#
# Only the scheduler changes it. A closure that was lost with its worker is *open* until it is
# known whether it has had its effect (`psnb._src.coordinator.resolve` asks the servers). A
# server that does not respond may hold that up for any time.


class InFlight:
    """Closures that run or are open; `len` is their number.

    Attributes
    ----------
    blocked_by : str
        What holds up open closures, or a gate's step; empty if nothing does, or if that was raised.
    settled : RangeSet
        Numbers of commits of closures that have ended, in whatever order.
    unreported : int
        How many of these the servers have not heard of; back to 0 when they are reported.
    """

    def __init__(self) -> None:
        self.blocked_by = ""
        self._running: dict[int, Work] = {}
        self._open: dict[int, Work] = {}
        self._commits = 0  # that have a number
        self.settled, self.unreported = RangeSet(), 0

    def __len__(self) -> int:
        return len(self._running) + len(self._open)

    def running(self) -> bool:
        """Return whether any closure runs."""
        return bool(self._running)

    def open(self) -> int:
        """Return how many closures are open."""
        return len(self._open)

    def begin(self, closure: Work) -> None:
        """Add a closure that a worker has got; the first time, its commits get numbers."""
        self._running[closure.id] = closure
        if closure.execution is NOT_TAKEN:
            closure.execution = Execution(self._commits)
            self._commits += closure.granted

    def has(self, closure: Work) -> bool:
        """Return whether a closure runs or is open."""
        return closure.id in self._running or closure.id in self._open

    def __iter__(self) -> Iterator[Work]:
        """Iterate over all."""
        return chain(self._running.values(), self._open.values())

    def advance(self, closure: Work, steps: int) -> None:
        """Note that the next steps are done."""
        execution = closure.execution
        first, execution.commit = execution.commit, execution.commit + steps
        self._settle(range(first, execution.commit))
        execution.done += steps
        execution.deaths = 0
        if execution.kept:
            execution.kept = {
                commit: each for commit, each in execution.kept.items() if commit >= first + steps
            }

    def find(self, remote: RemoteValue) -> tuple[Work, bool] | None:
        """Return the closure of a remote value, and whether it runs, if it is here."""
        for closures in (self._running, self._open):
            for closure in closures.values():
                if closure.remote is remote:
                    return closure, closures is self._running
        return None

    def lose(self, closures: Iterable[Work]) -> list[Work]:
        """Let those closures be open that run, and return them."""
        lost = [each for each in closures if self._running.pop(each.id, None) is not None]
        self._open |= {each.id: each for each in lost}
        return lost

    def block(self, trouble: str) -> None:
        """Note what holds up the open closures."""
        self.blocked_by = trouble
        for closure in self._open.values():
            closure.remote.block(trouble)

    def give_back(self, closure: Work) -> bool:
        """Remove a closure that its worker has not begun; return whether it was running."""
        return self._running.pop(closure.id, None) is not None

    def take_back(self, closure: Work) -> bool:
        """Remove a closure whose outcome is known; return whether it was running or open."""
        found = self._running.pop(closure.id, None) or self._open.pop(closure.id, None)
        if not self._open:
            self.blocked_by = ""
        if found is None:
            return False  # it has ended: its outcome stays
        closure.remote.block("")
        return True

    def take_all(self) -> list[Work]:
        """Remove and return all closures."""
        closures = [*self._running.values(), *self._open.values()]
        self._running.clear()
        self._open.clear()
        return closures

    def end(self, closure: Work) -> None:
        """Note that a closure that was begun at least once has ended for good."""
        if closure.left:
            self._settle(closure.commits)

    def closed_attempts(self, waiting: Iterable[Work]) -> dict[int, int]:
        """Return the attempts that were begun, of commits that are not settled.

        Parameters
        ----------
        waiting : iterable of Work
            Closures that wait, some of them to run again.
        """
        attempts: dict[int, int] = {}
        for closure in waiting:
            if closure.execution is not NOT_TAKEN:
                attempts |= dict.fromkeys(closure.commits, closure.execution.attempt - 1)
        for closure in self._open.values():
            attempts |= dict.fromkeys(closure.commits, closure.execution.attempt)
        return attempts

    def _settle(self, commits: range) -> None:
        self.settled.add(commits.start, commits.stop)
        self.unreported += len(commits)


# Gate: when closures may begin, and what must be done with what they pushed. Pure, no locks.
#
# The scheduler asks its gate before it hands out a closure, and calls it when closures begin and
# end. What must be done on servers or workers is a `Step`; the coordinator carries it out
# (`psnb._src.coordinator.view`). There is one kind of gate for each update mode
# (`psnb._src.protocol.messages`); `Gate` itself is for asynchronous updates: it lets everything
# begin and asks for no steps.


@dataclass(frozen=True, slots=True)
class ApplyRound:
    """Servers must apply what a round pushed.

    Attributes
    ----------
    number : int
        The round.
    closures : tuple of int
        Commit numbers of its closures that pushed and have completed, in the order in which they
        were scheduled.
    weights : RoundWeights or None
        What each counts; None if all count the same.
    """

    number: int
    closures: tuple[int, ...]
    weights: RoundWeights | None = None


@dataclass(frozen=True, slots=True)
class Flush:
    """Workers must send the updates that they have kept."""


Step = ApplyRound | Flush
"""What a gate asks for."""


class Gate:
    """Lets every closure begin at any time."""

    limits = False
    """Whether it may ever refuse; then no worker is sent more than it can begin at once."""

    round: int | None = None
    """The round of the closures that begin now, if there are rounds."""

    def open(self) -> bool:
        """Return whether anything may begin."""
        return True

    def admits(self, closure: Work) -> bool:
        """Return whether this closure may begin now."""
        return self.open()

    def begin(self, closure: Work) -> None:
        """Note that a closure that was admitted is sent to a worker."""

    def put_back(self, closure: Work) -> None:
        """Note that a closure that had begun has had no effect, and waits to begin again."""

    def end(self, closure: Work, *, pushed: bool, weight: float | None = None) -> None:
        """Note that a closure that had begun has ended, and whether it completed with pushes.

        ``weight`` is what it counts in its round, if it has said so.
        """

    def midway(self) -> bool:
        """Return whether what has begun waits for others to begin: holding them would break it."""
        return False

    def finish(self) -> None:
        """Note that no closure runs, and that a caller waits until all have had their effect."""

    def complete(self) -> bool:
        """Return whether all closures that have ended have had their effect."""
        return True

    def due(self) -> Step | None:
        """Return the step that must be done now, if there is one; each step once."""
        return None

    def stepped(self) -> None:
        """Note that the step was done, or has failed and will not be tried again."""


# RoundGate: closures in rounds, for synchronous updates. Pure; the scheduler's.


class RoundGate(Gate):
    """Lets a round begin when the one before it has been applied.

    A round has a number of slots. A closure takes a slot when it begins, and keeps it when it ends.
    A closure that was lost with its worker and has had no effect gives its slot up. As the first in
    the queue it takes the slot again, unless a closure of a higher priority does: then it runs in a
    later round. Of the closures of one slot of an epoch (`OrderedLeases`), one runs at a time.

    Parameters
    ----------
    closures : int
        The number of slots.

    Attributes
    ----------
    round : int
        The round under way, from 0.
    """

    limits = True
    round: int

    def __init__(self, closures: int) -> None:
        self.round = 0
        self._size = closures
        self._taken = 0
        self._running: dict[int, int | None] = {}  # by id, the slot
        self._pushed: dict[int, int] = {}  # by id, the commit
        self._weights: dict[int, float] = {}  # by id, of those that have one
        self._over = False  # to be applied; nothing begins
        self._applying = False

    def open(self) -> bool:
        return not self._over and self._taken < self._size

    def admits(self, closure: Work) -> bool:
        slot = closure.options.slot
        return self.open() and (slot is None or slot not in self._running.values())

    def begin(self, closure: Work) -> None:
        self._taken += 1
        self._running[closure.id] = closure.options.slot

    def put_back(self, closure: Work) -> None:
        self._running.pop(closure.id, None)
        self._taken -= 1

    def end(self, closure: Work, *, pushed: bool, weight: float | None = None) -> None:
        if closure.id not in self._running:
            return  # cancelled while it waited to run again
        del self._running[closure.id]
        if pushed:
            self._pushed[closure.id] = closure.execution.commit - 1  # of the step that is done
        if weight is not None:
            self._weights[closure.id] = weight
        if self._taken == self._size and not self._running:
            self._end_round()

    def midway(self) -> bool:
        return 0 < self._taken < self._size

    def finish(self) -> None:
        if self._taken and not self._running:
            self._end_round()

    def complete(self) -> bool:
        return not self._taken

    def due(self) -> ApplyRound | None:
        if not self._over or self._applying:
            return None
        self._applying = True
        # As they were scheduled: which worker is free first decides when each begins.
        pushed = sorted(self._pushed.items())
        weights = self._round_weights([closure for closure, _ in pushed])
        return ApplyRound(self.round, tuple(commit for _, commit in pushed), weights)

    def stepped(self) -> None:
        self.round += 1
        self._taken = 0
        self._pushed, self._weights = {}, {}
        self._over = self._applying = False

    def _round_weights(self, pushed: list[int]) -> RoundWeights | None:
        """Return the weights of the closures that pushed; None if all of the round are equal."""
        each = [self._weights.get(closure, 1.0) for closure in pushed]
        without = self._weights.keys() - set(pushed)
        total = math.fsum([*each, *(self._weights[closure] for closure in without)])
        if not total or (total == each[0] * len(each) and len(set(each)) == 1):
            return None
        return RoundWeights(each, total)

    def _end_round(self) -> None:
        if self._pushed:
            self._over = True
        else:
            self.stepped()  # there is nothing to apply


# StalenessGate: keeps updates from being too stale. Pure; the scheduler's.


class StalenessGate(Gate):
    """Lets a closure begin if that makes no update staler than the bound.

    While a closure runs, others can commit: those that ran when it began, and those that have begun
    since. Their number is its possible staleness, which must not exceed the bound. A closure that
    was lost with its worker counts as running until it is known that it has had no effect, and will
    not.

    Parameters
    ----------
    updates : int
        The bound.
    """

    limits = True

    def __init__(self, updates: int) -> None:
        self._bound = updates
        self._possible: dict[int, int] = {}  # staleness of those that run, the oldest first

    def open(self) -> bool:
        # The possible staleness of the oldest is the largest but for those that began before it.
        return max(self._possible.values(), default=-1) < self._bound

    def begin(self, closure: Work) -> None:
        for each in self._possible:
            self._possible[each] += 1
        self._possible[closure.id] = len(self._possible)

    def put_back(self, closure: Work) -> None:
        self._possible.pop(closure.id, None)

    def end(self, closure: Work, *, pushed: bool, weight: float | None = None) -> None:
        self._possible.pop(closure.id, None)


# FlushGate: for `Geo`, where workers keep updates for a while. Pure; the scheduler's.


class FlushGate(Gate):
    """Lets everything begin; before the queue says that all is done, workers send their updates."""

    def __init__(self) -> None:
        self._held = self._wanted = self._flushing = False

    def begin(self, closure: Work) -> None:
        self._held = True
        self._wanted = False  # not before it has ended: it would be left out

    def finish(self) -> None:
        self._wanted = self._held

    def complete(self) -> bool:
        return not self._held and not self._flushing

    def due(self) -> Flush | None:
        if not self._wanted or self._flushing:
            return None
        self._held = self._wanted = False
        self._flushing = True
        return Flush()

    def stepped(self) -> None:
        self._flushing = False
