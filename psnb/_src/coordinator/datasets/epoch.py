"""Scheduling closures until an epoch of a leased dataset is over."""

from __future__ import annotations

from collections.abc import Callable
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
) -> None:
    """Schedule closures, a few at a time, until an epoch is over.

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
    """
    suits = iterator.suits  # once: closures are withdrawn by this very object
    waiting: list[RemoteValue] = []
    try:
        while not iterator.progress().over:
            while iterator.unread() and len(waiting) < _AHEAD * max(1, workers()):
                waiting.append(schedule(suits))
            # No closure is waiting if somebody else's closures have taken the rest.
            with settled:
                ended = settled.wait_for(partial(_any_done, waiting), _LOOK_AGAIN)
            if not ended:
                wake()
            waiting = [each for each in waiting if not each.done()]
    finally:
        withdraw(suits, "the epoch is over")


def _any_done(remotes: list[RemoteValue]) -> bool:
    return any(remote.done() for remote in remotes)
