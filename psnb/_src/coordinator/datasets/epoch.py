"""run_epoch: scheduling closures until an epoch of a leased dataset is over.

Without rounds a few long closures are scheduled ahead for each worker, which does step after step,
each with a commit of its own: so what the notebook does for a step is shared by all that a worker
does in `LONG_SECONDS`. With rounds, of synchronous updates, they are scheduled round by round, each
when all closures of the one before have ended: their numbers, their slots and how many there are
depend on the dataset alone. While the closures of a round are put, it must not be ended early. That
costs no time, as servers apply a round meanwhile.

Elements that the notebook reads itself go to closures in their order, and so do results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sized
from contextlib import AbstractContextManager
from functools import partial
from itertools import cycle, islice
from typing import Any, NamedTuple

from psnb._src.coordinator.closures.options import WorkerPredicate
from psnb._src.coordinator.closures.remote_value import RemoteValue, StepValues, require_progress
from psnb._src.coordinator.datasets.leased import LeasedIterator
from psnb._src.monitor.statistics import WorkerStatistics
from psnb._src.utils.inbox import Inbox
from psnb._src.utils.interrupts import uninterrupted

_AHEAD = 4
"""Closures that are scheduled for each worker, so that it never waits for the notebook."""


MOST_STEPS = 256
"""Steps of a run, at most."""


MOST_RESULTS = 16
"""The same where the notebook takes what each returns, and may stop by it."""


_LOOK_AGAIN = 0.1
"""Seconds after which idle workers look again: the data of a lost worker may be free by now."""


class EpochServices(NamedTuple):
    """What is needed of a coordinator to run an epoch.

    Attributes
    ----------
    poll : callable
        Begins the saves that are due; cheap.
    withdraw : callable
        Cancels the closures that wait for a worker chosen by a function, with a reason.
    filling : callable
        Returns a context in which the closures of a round are put: `ClosureQueue.filling`.
    workers : callable
        Tells how many workers there are.
    wake : callable
        Lets idle workers look for work.
    inbox : Inbox
        To wait for closures.
    """

    poll: Callable[[], object]
    withdraw: Callable[[WorkerPredicate, str], None]
    filling: Callable[[], AbstractContextManager[None]]
    workers: Callable[[], int]
    wake: Callable[[], None]
    inbox: Inbox


def run_epoch(
    iterator: LeasedIterator,
    schedule: Callable[[WorkerPredicate, int | None], RemoteValue],
    services: EpochServices,
    watch: Callable[[], object] = bool,
    wanted: Callable[[int], bool] = lambda waiting: True,
) -> Iterator[RemoteValue]:
    """Schedule closures, a few at a time, until an epoch is over; yield them as they end.

    They go to workers that have something to read; on others they would find nothing. When this
    ends early, those that have not begun are cancelled, and runs end with the step that they do;
    but a round that was scheduled is run.

    Parameters
    ----------
    iterator : LeasedIterator
        The epoch.
    schedule : callable
        Schedules a closure on whichever worker a function chooses, to take from a slot if there are
        rounds.
    services : EpochServices
        Of the coordinator.
    watch : callable
        Called each time that closures have ended, and ten times a second. What it raises ends this.
    wanted : callable
        Takes how many closures have not been yielded, and returns whether one more is wanted; when
        none is left and none is wanted, that is all.
    """
    suits = iterator.suits  # once: closures are withdrawn by this very object
    slots = [partial(_suits_slot, iterator, slot) for slot in range(iterator.round_size or 0)]

    def fill(waiting: list[RemoteValue]) -> bool:
        over = iterator.progress().over
        if over and any(isinstance(each, StepValues) for each in waiting):
            # What their last steps have returned may be on its way.
            services.withdraw(suits, "the epoch is over")
            return True
        # Nothing may be waiting though there is more: other closures have taken the rest.
        if over or not (waiting or wanted(0)):
            return False
        if iterator.round_size is None:
            while iterator.unread() and _room(waiting, services) and wanted(len(waiting)):
                waiting.append(schedule(suits, None))
        elif not waiting:
            with uninterrupted, services.filling():
                for slot in islice(cycle(iterator.slots()), iterator.round_size):
                    if wanted(len(waiting)):
                        waiting.append(schedule(slots[slot], slot))
        return True

    waiting: list[RemoteValue] = []
    try:
        yield from _ended(waiting, fill, services, watch)
        yield from (each for each in waiting if each.done())
    finally:
        services.withdraw(suits, "the epoch is over")


def run_in_order(
    elements: Iterator[Any],
    schedule: Callable[[Any], RemoteValue],
    services: EpochServices,
    round_size: int | None = None,
) -> Iterator[RemoteValue]:
    """Schedule a closure for each element that is read here; yield them in the elements' order.

    The first one is yielded as well when an unresponsive server holds it up: ``fetch`` raises that.
    When this ends early, what was scheduled is run.

    Parameters
    ----------
    elements : iterator
        Read here, no more of them than are scheduled.
    schedule : callable
        Schedules a closure for an element.
    services : EpochServices
        Of the coordinator.
    round_size : int, optional
        Schedule that many at a time, and wait until all were yielded; by default always a few.
    """

    def fill(waiting: list[RemoteValue]) -> bool:
        room = _room(waiting, services)
        if round_size is not None:
            room = 0 if waiting else round_size
        for element in islice(elements, room):
            waiting.append(schedule(element))
        return bool(waiting)

    return _ended([], fill, services, in_order=True)


def _room(waiting: list[RemoteValue], services: EpochServices) -> int:
    """Return how many more closures are scheduled now."""
    return max(0, _AHEAD * max(1, services.workers()) - len(waiting))


def _ended(
    waiting: list[RemoteValue],
    fill: Callable[[list[RemoteValue]], bool],
    services: EpochServices,
    watch: Callable[[], object] = bool,
    *,
    in_order: bool = False,
) -> Iterator[RemoteValue]:
    """Take closures out of a list as they end, and yield them, while ``fill`` goes on."""
    # They come here by themselves: to look at all that wait, at the end of each turn of the loop,
    # took a third of the notebook's time with 200 workers.
    done: deque[RemoteValue] = deque()
    asked: set[RemoteValue] = set()
    while fill(waiting):
        for each in () if in_order else waiting:
            if each not in asked:
                asked.add(each)
                each.call_back(done.append)
        steps = [each for each in waiting if isinstance(each, StepValues)]
        ready: Callable[[], Any] = partial(_any_done, done, steps)
        if in_order:
            ready = waiting[0].ended_or_blocked
        ended = (in_order and waiting[0].done()) or services.inbox.wait(ready, _LOOK_AGAIN)
        if not ended:
            services.wake()
            require_progress(waiting)
        elif in_order:  # one: the next takes its place before the second is looked at
            yield waiting.pop(0)
        else:
            yield from [each for each in steps if each.arrived and not each.done()]
            while done:
                each = done.popleft()
                waiting.remove(each)
                asked.remove(each)
                yield each
        services.poll()
        watch()


def _suits_slot(iterator: LeasedIterator, slot: int, worker: WorkerStatistics) -> bool:
    return iterator.suits(worker, slot)


def _any_done(done: Sized, steps: list[StepValues]) -> bool:
    return bool(done) or any(each.arrived for each in steps)
