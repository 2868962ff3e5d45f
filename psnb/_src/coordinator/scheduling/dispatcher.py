"""Dispatcher: which worker gets which closures, and when. Pure, without locks.

A worker gets closures when it has sent something, as it may have room then, and when there is new
work while it is *idle*: then it could do more than there was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from psnb._src.coordinator.closures.options import Pin, WorkerPredicate
from psnb._src.coordinator.scheduling.gates import Gate
from psnb._src.coordinator.scheduling.load import AHEAD_SECONDS, LONG_SECONDS, SPREAD_SECONDS, Load
from psnb._src.coordinator.scheduling.waiting import Waiting
from psnb._src.coordinator.scheduling.work import Work
from psnb._src.coordinator.scheduling.worker_state import WorkerState
from psnb._src.protocol.errors import pack_error
from psnb._src.protocol.messages import held_seconds
from psnb._src.utils.text import text_of


class Dispatcher:
    """Workers, and closures that wait for them.

    Parameters
    ----------
    gate : Gate
        Decides which closures may begin.
    clock : callable
        Returns a time in seconds.

    Attributes
    ----------
    waiting : Waiting
        The closures.
    workers : dict of WorkerState to None
        The sessions that are open, in the order of their opening.
    paused : bool
        Whether none are handed out at present, as the user wants.
    holds : int
        How many hold dispatch, each for a moment: then closures begin only to fill a round that has
        begun.
    num_workers : int
        How many workers there are, with those that are being connected.
    """

    def __init__(self, gate: Gate, clock: Callable[[], float]) -> None:
        self.gate, self._clock = gate, clock
        self.waiting = Waiting()
        self.workers: dict[WorkerState, None] = {}
        self.paused, self.holds, self.num_workers = False, 0, 1
        self._idle: dict[WorkerState, None] = {}  # the latest last
        self._threads: int | None = None

    def now(self) -> float:
        """Return the time."""
        return self._clock()

    def join(self, worker: WorkerState) -> None:
        """Add a session."""
        self.workers[worker] = None
        worker.load = Load(self._threads or worker.threads)

    def leave(self, worker: WorkerState) -> None:
        """Forget a session."""
        self.workers.pop(worker, None)
        self._idle.pop(worker, None)

    @property
    def threads(self) -> int | None:
        """How many closures each worker is to run at once; None: as many as it has threads."""
        return self._threads

    @threads.setter
    def threads(self, count: int | None) -> None:
        self._threads = count
        for worker in self.workers:
            worker.load.threads = count or worker.threads

    def begins(self) -> bool:
        """Return whether closures are handed out, if there are any and the gate admits them."""
        return not self.paused and (not self.holds or self.gate.midway())

    def has_work(self) -> bool:
        """Return whether a closure waits for a worker and may begin."""
        # Before any worker is tried, which takes milliseconds if there are a thousand idle ones.
        return bool(self.waiting) and self.begins() and any(map(self._admits, self.waiting.first()))

    def idle(self) -> list[WorkerState]:
        """Return the workers that could do more than there was, the latest one first.

        That one is still busy with a little: very short work is not worth spreading.
        """
        return list(reversed(self._idle))

    def is_idle(self, worker: WorkerState) -> bool:
        """Return whether a worker could do more than there was."""
        return worker in self._idle

    def any_idle(self) -> bool:
        """Return whether any worker could do more than there was."""
        return bool(self._idle)

    def some_starve(self) -> bool:
        """Return whether workers have threads without work."""
        return any(worker.has_free_threads() for worker in self._idle)

    def take_for(self, worker: WorkerState) -> tuple[list[Work], list[tuple[Work, bytes]]]:
        """Take the closures that a worker should get now.

        Returns
        -------
        taken : list of Work
            They have begun, for the gate and the worker's load.
        failed : list of tuple
            Those whose function to choose a worker has raised, with the pickled error.
        """
        self._idle.pop(worker, None)
        if not worker.gets_closures:
            return [], []
        load = worker.load
        self._set_limits(load)
        taken: list[Work] = []
        failed: list[tuple[Work, bytes]] = []
        if not load.full() and self.begins():
            pins: list[Pin] = [worker.name, worker.index, *self._chosen(worker, failed)]
            if self.begins():  # a function that chooses may have paused all
                taken = self.waiting.take(partial(self._begin, load), pins)
            if taken:
                load.sent(self._clock())
        if not load.refused:
            self._idle[worker] = None  # as the latest
        return taken, failed

    def overdue(self) -> Iterator[tuple[WorkerState, list[int]]]:
        """Yield the workers on which closures wait, with the ids of those that wait too long."""
        for worker in self.workers:
            if worker.started and worker.load.waiting():
                yield worker, worker.load.overdue(self._clock())

    def _set_limits(self, load: Load) -> None:
        load.refused = False
        if self.gate.limits:
            load.ahead = 0.0
            return
        # The longest idle one stands for all: there may be hundreds.
        first = next(iter(self._idle), None)
        starves = first is not None and first.has_free_threads()
        load.ahead = SPREAD_SECONDS if starves else AHEAD_SECONDS
        load.long_seconds = max(LONG_SECONDS, 2.5 * held_seconds(self.num_workers))

    def _admits(self, closure: Work) -> bool:
        return closure.options.detached or self.gate.admits(closure)

    def _begin(self, load: Load, closure: Work) -> bool:
        if not self._admits(closure) or not load.add(closure):
            return False
        if not closure.options.detached:
            self.gate.begin(closure)
        return True

    def _chosen(
        self, worker: WorkerState, failed: list[tuple[Work, bytes]]
    ) -> Iterator[WorkerPredicate]:
        if not (choosers := self.waiting.choosers(self._admits)):
            return
        statistics = worker.statistics()
        for chooser in choosers:
            try:
                if chooser(statistics):
                    yield chooser
            except BaseException as error:  # the users' functions may raise anything
                named = text_of(chooser, repr)
                packed = pack_error(error, f"raised by worker={named}, asked for {statistics}")
                failed += [(each, packed) for each in self.waiting.take_pinned(chooser)]
