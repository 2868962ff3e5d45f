"""Scheduling closures until an epoch of a leased dataset is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from psnb._src.coordinator.closures import Chooser, RemoteValue
from psnb._src.coordinator.datasets.leased import LeasedIterator
from psnb._src.threads import Condition

_AHEAD = 4
"""Closures that are scheduled for each worker, so that it never waits for the notebook."""

_LOOK_AGAIN = 0.1
"""Seconds after which idle workers look again: the data of a lost worker may be free by now."""


def run_epoch(
    iterator: LeasedIterator,
    schedule: Callable[[Chooser], RemoteValue],
    withdraw: Callable[[Chooser, str], None],
    workers: Callable[[], int],
    wake: Callable[[], None],
    settled: Condition,
    watch: Callable[[], object] = bool,
    wanted: Callable[[int], bool] = lambda waiting: True,
) -> Iterator[RemoteValue]:
    """Schedule closures, a few at a time, until an epoch is over; yield them as they end.

    They go to workers that have something to read; on others they would find nothing.

    Parameters
    ----------
    iterator : LeasedIterator
        The epoch.
    schedule : callable
        Schedules a closure on whichever worker a function chooses.
    withdraw : callable
        Cancels the closures that wait for a worker chosen by a function, with a reason.
    workers : callable
        Tells how many workers there are.
    wake : callable
        Lets idle workers look for work.
    settled : Condition
        Notified when closures end.
    watch : callable
        Called each time that closures have ended, and ten times a second. What it raises ends this.
    wanted : callable
        Takes how many closures have not been yielded, and tells whether one more is wanted; when
        none is left and none is wanted, that is all.
    """
    suits = iterator.suits  # once: closures are withdrawn by this very object
    waiting: list[RemoteValue] = []
    try:
        while not iterator.progress().over and (waiting or wanted(0)):
            while (
                iterator.unread()
                and len(waiting) < _AHEAD * max(1, workers())
                and wanted(len(waiting))
            ):
                waiting.append(schedule(suits))
            # No closure is waiting if somebody else's closures have taken the rest.
            with settled:
                ended = settled.wait_for(partial(_any_done, waiting), _LOOK_AGAIN)
            if not ended:
                wake()
            done = [each for each in waiting if each.done()]
            waiting = [each for each in waiting if each not in done]
            yield from done
            watch()
        yield from (each for each in waiting if each.done())
    finally:
        withdraw(suits, "the epoch is over")


def _any_done(remotes: list[RemoteValue]) -> bool:
    return any(remote.done() for remote in remotes)
