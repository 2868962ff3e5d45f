"""Scheduling closures until an epoch of a leased dataset is over.

Without rounds a few are scheduled ahead for each worker. With rounds, of synchronous updates, they
are scheduled round by round, each when all closures of the one before have ended: their numbers,
their lanes and how many there are depend on the dataset alone. While the closures of a round are
put, nobody may end it early. That costs no time, as servers apply a round meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import cycle, islice
from typing import NamedTuple

from psnb._src.coordinator.closures import Chooser, RemoteValue
from psnb._src.coordinator.datasets.leased import LeasedIterator
from psnb._src.monitor import WorkerStatistics
from psnb._src.threads import Condition, uninterrupted

_AHEAD = 4
"""Closures that are scheduled for each worker, so that it never waits for the notebook."""

_LOOK_AGAIN = 0.1
"""Seconds after which idle workers look again: the data of a lost worker may be free by now."""


class EpochServices(NamedTuple):
    """What is needed of a coordinator to run an epoch.

    Attributes
    ----------
    withdraw : callable
        Cancels the closures that wait for a worker chosen by a function, with a reason.
    filling : callable
        Returns a context in which the closures of a round are put: `ClosureQueue.filling`.
    workers : callable
        Tells how many workers there are.
    wake : callable
        Lets idle workers look for work.
    settled : Condition
        Notified when closures end.
    """

    withdraw: Callable[[Chooser, str], None]
    filling: Callable[[], AbstractContextManager[None]]
    workers: Callable[[], int]
    wake: Callable[[], None]
    settled: Condition


def run_epoch(
    iterator: LeasedIterator,
    schedule: Callable[[Chooser, int | None], RemoteValue],
    place: EpochServices,
    watch: Callable[[], object] = bool,
    wanted: Callable[[int], bool] = lambda waiting: True,
) -> Iterator[RemoteValue]:
    """Schedule closures, a few at a time, until an epoch is over; yield them as they end.

    They go to workers that have something to read; on others they would find nothing. When this
    ends early, those that have not begun are cancelled; but a round that was scheduled is run.

    Parameters
    ----------
    iterator : LeasedIterator
        The epoch.
    schedule : callable
        Schedules a closure on whichever worker a function chooses, to take from a lane if there are
        rounds.
    place : EpochServices
        Of the coordinator.
    watch : callable
        Called each time that closures have ended, and ten times a second. What it raises ends this.
    wanted : callable
        Takes how many closures have not been yielded, and tells whether one more is wanted; when
        none is left and none is wanted, that is all.
    """
    suits = iterator.suits  # once: closures are withdrawn by this very object
    lanes = [partial(_suits_lane, iterator, lane) for lane in range(iterator.seats or 0)]
    waiting: list[RemoteValue] = []
    try:
        while not iterator.progress().over and (waiting or wanted(0)):
            if iterator.seats is not None:
                if not waiting:
                    with uninterrupted, place.filling():
                        for lane in islice(cycle(iterator.lanes()), iterator.seats):
                            if wanted(len(waiting)):
                                waiting.append(schedule(lanes[lane], lane))
            else:
                while (
                    iterator.unread()
                    and len(waiting) < _AHEAD * max(1, place.workers())
                    and wanted(len(waiting))
                ):
                    waiting.append(schedule(suits, None))
            # No closure is waiting if somebody else's closures have taken the rest.
            with place.settled:
                ended = place.settled.wait_for(partial(_any_done, waiting), _LOOK_AGAIN)
            if not ended:
                place.wake()
            done = [each for each in waiting if each.done()]
            waiting = [each for each in waiting if each not in done]
            yield from done
            watch()
        yield from (each for each in waiting if each.done())
    finally:
        place.withdraw(suits, "the epoch is over")


def _suits_lane(iterator: LeasedIterator, lane: int, worker: WorkerStatistics) -> bool:
    return iterator.suits(worker, lane)


def _any_done(remotes: list[RemoteValue]) -> bool:
    return any(remote.done() for remote in remotes)
