"""Epochs: scheduling closures until a dataset was used, a few at a time.

Of a leased dataset, without rounds, a few long closures are scheduled ahead for each worker, which
does step after step, each with a commit of its own: so what the notebook does for a step is shared
by all that a worker does in `LONG_SECONDS`. With rounds, of synchronous updates, closures are
scheduled round by round, each when all closures of the one before have ended: their numbers, their
slots and how many there are depend on the dataset alone. While the closures of a round are put, it
must not be ended early. That costs no time, as servers apply a round meanwhile.

Elements that the notebook reads itself go to closures in their order, and so do results.

Splits that closures read from beginning to end are scheduled all at once. There are no leases then:
what such a closure returns counts once, and if its worker is lost, it reads its split again. So it
must change nothing but what a second run replaces.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import cycle, islice
from typing import Any

from psnb._src.coordinator.closures.options import DEFAULT_RETRIES, ScheduleOptions, WorkerPredicate
from psnb._src.coordinator.closures.remote_value import RemoteValue, StepValues, require_progress
from psnb._src.coordinator.core import CoordinatorCore
from psnb._src.coordinator.datasets.leased import LeasedIterator, WholeSplits
from psnb._src.coordinator.scheduling.events import Withdraw
from psnb._src.data.node import nothing_in
from psnb._src.data.nodes.partitions import KnownPartitions
from psnb._src.monitor.progress_line import WorkDone
from psnb._src.monitor.statistics import WorkerStatistics
from psnb._src.utils.interrupts import uninterrupted
from psnb.errors import ServerUnresponsiveError

_AHEAD = 4
"""Closures that are scheduled for each worker, so that it never waits for the notebook."""


_MOST_STEPS = 256
"""Steps of a run, at most."""


_MOST_RESULTS = 16
"""The same where the notebook takes what each returns, and may stop by it."""


_LOOK_AGAIN = 0.1
"""Seconds after which idle workers look again: the data of a lost worker may be free by now."""

_LOOK_AT_LEAST = 1.0
"""The same where no worker is idle, nobody watches, and nothing else is due."""


_DUE = "due"


def run_epoch(
    core: CoordinatorCore,
    fn: Callable[..., Any],
    iterator: LeasedIterator,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    results: bool = False,
    wanted: Callable[[int], bool] | None = None,
    watch: Callable[[], object] | None = None,
) -> Iterator[RemoteValue]:
    """Schedule closures, a few at a time, until an epoch is over; yield them as they end.

    They go to workers that have something to read; on others they would find nothing. Those that
    found no data, and those that failed, come as well. When this ends early, those that have not
    begun are cancelled, and runs end with the step that they do; but a round that was scheduled is
    run.

    Parameters
    ----------
    core : CoordinatorCore
        Of the coordinator.
    fn : callable
        Takes from the iterator, which it is called with, and with the other arguments.
    iterator : LeasedIterator
        The epoch.
    args, kwargs
        The other arguments.
    results : bool
        Whether what steps return is wanted; without rounds only. A run of many steps then comes
        each time that something has arrived, too: see `StepValues`.
    wanted : callable, optional
        Takes how many closures have not been yielded, and returns whether one more is wanted; when
        none is left and none is wanted, that is all. They have one step each then; without rounds
        only.
    watch : callable
        Called each time that closures have ended, and ten times a second, if it is given. What it
        raises ends this.
    """
    core.resources.require_own((iterator,), "the iterator")
    leases, round_size = core.leases, core.leases.round_size
    steps = 1 if round_size or wanted else _MOST_RESULTS if results else _MOST_STEPS

    more = wanted or (lambda _: True)

    def suits(worker: WorkerStatistics, slot: int | None = None) -> bool:
        return leases.suits(iterator.epoch, worker.name, slot)

    slots = [partial(suits, slot=slot) for slot in range(round_size or 0)]

    def schedule(chooser: WorkerPredicate, slot: int | None) -> RemoteValue:
        keeps = results or steps == 1
        how = ScheduleOptions(worker=chooser, slot=slot, steps=steps, results=keeps)
        return core.schedule(fn, (iterator, *args), kwargs, how)

    def fill(waiting: list[RemoteValue]) -> bool:
        over = iterator.progress().over
        if over and any(isinstance(each, StepValues) for each in waiting):
            # What their last steps have returned may be on its way.
            core.queue.inbox.post(Withdraw(suits, "the epoch is over"))
            return True
        # Nothing may be waiting though there is more: other closures have taken the rest.
        if over or not (waiting or more(0)):
            return False
        if round_size is None:
            while iterator.unread() and _room(waiting, core) and more(len(waiting)):
                waiting.append(schedule(suits, None))
        elif not waiting:
            with uninterrupted, core.queue.filling():
                for slot in islice(cycle(leases.slots(iterator.epoch)), round_size):
                    waiting.append(schedule(slots[slot], slot))
        return True

    def due() -> bool:
        if watch is not None or core.membership.idle or iterator.progress().over:
            return True
        return round_size is None and iterator.unread() and _room(waiting, core) > 0

    waiting: list[RemoteValue] = []
    try:
        yield from as_they_end(core, waiting, fill, watch or bool, due)
        yield from (each for each in waiting if each.done())
    finally:
        core.queue.inbox.post(Withdraw(suits, "the epoch is over"))


def run_in_order(
    core: CoordinatorCore,
    elements: Iterator[Any],
    schedule: Callable[[Any], RemoteValue],
    round_size: int | None = None,
) -> Iterator[RemoteValue]:
    """Schedule a closure for each element that is read here; yield them in the elements' order.

    The first one is yielded as well when an unresponsive server holds it up: ``fetch`` raises that.
    When this ends early, what was scheduled is run.

    Parameters
    ----------
    core : CoordinatorCore
        Of the coordinator.
    elements : iterator
        Read here, no more of them than are scheduled.
    schedule : callable
        Schedules a closure for an element.
    round_size : int, optional
        Schedule that many at a time, and wait until all were yielded; by default always a few.
    """

    def fill(waiting: list[RemoteValue]) -> bool:
        room = _room(waiting, core)
        if round_size is not None:
            room = 0 if waiting else round_size
        for element in islice(elements, room):
            waiting.append(schedule(element))
        return bool(waiting)

    return as_they_end(core, [], fill, in_order=True)


def _room(waiting: list[RemoteValue], core: CoordinatorCore) -> int:
    """Return how many more closures are scheduled now."""
    return max(0, _AHEAD * max(1, core.membership.count) - len(waiting))


def as_they_end(
    core: CoordinatorCore,
    waiting: list[RemoteValue],
    fill: Callable[[list[RemoteValue]], bool],
    watch: Callable[[], object] = bool,
    due: Callable[[], bool] = lambda: True,
    *,
    in_order: bool = False,
) -> Iterator[RemoteValue]:
    """Take closures out of a list as they end, and yield them, while ``fill`` goes on.

    Parameters
    ----------
    core : CoordinatorCore
        Of the coordinator, whose saves are polled meanwhile.
    waiting : list
        At first.
    fill : callable
        Takes the list, adds closures that it schedules, and returns whether to go on.
    watch : callable
        As for `run_epoch`.
    due : callable
        Returns whether ``fill`` or ``watch`` is to be called though nothing has ended; called ten
        times a second. To wait on costs the event loop three turns, and this none.
    in_order : bool
        Whether they are yielded in the order of the list.
    """
    # They come here by themselves: to look at all that wait, at the end of each turn of the loop,
    # took a third of the notebook's time with 200 workers.
    done: deque[RemoteValue] = deque()
    asked: set[RemoteValue] = set()
    steps: list[StepValues] = []
    hurried = False

    def ready() -> Any:
        if in_order:
            return waiting[0].ended_or_blocked()
        return bool(done) or any(each.arrived for each in steps) or (hurried and _DUE)

    def look() -> None:
        nonlocal hurried
        core.saving.poll()
        if not hurried and due():
            hurried = True
            core.queue.inbox.post(bool)  # the loop looks whether it is ready

    while fill(waiting):
        for each in () if in_order else waiting:
            if each not in asked:
                asked.add(each)
                each.call_back(done.append)
        steps[:] = [each for each in waiting if isinstance(each, StepValues)]
        hurried = False
        wait = partial(core.queue.inbox.wait, ready)
        if in_order:
            ended = waiting[0].done() or wait(_LOOK_AGAIN)
        else:
            ended = wait(_LOOK_AT_LEAST, look=look)
        if not ended or ended is _DUE:
            core.membership.look_again()
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
        core.saving.poll()
        watch()


def map_splits(
    core: CoordinatorCore,
    function: Callable[..., Any],
    splits: WholeSplits,
    shown: bool | None,
    count: Callable[[Callable[[], tuple[int, int]]], object] | None = None,
) -> list[Any]:
    """Call ``function(datasets, number)`` for each split on some worker; return the results.

    Parameters
    ----------
    core : CoordinatorCore
        Of the coordinator.
    function : callable
        A closure that changes no parameters. Returns a result, which is false if its split has
        nothing, and what partitions it has read.
    splits : WholeSplits
        What to read.
    shown : bool or None
        Whether progress is shown; as for `ClusterCoordinator.join`.
    count : callable, optional
        Is given what returns how many parts are done, and how many there are.

    Raises
    ------
    DatasetError
        If all files are empty, or closures have read a partition that was computed again meanwhile,
        with other rows.
    Exception
        What the first closure that failed raised. Those that have not begun are withdrawn, and
        those that run have ended.
    """
    remotes: list[RemoteValue] = []
    results, partitions = [], KnownPartitions()
    try:
        for number, chooser in enumerate(splits.choosers):
            how = ScheduleOptions(DEFAULT_RETRIES, 0, chooser, detached=True)
            remotes.append(core.schedule(function, (splits.datasets, number), {}, how))

        def parts() -> tuple[int, int]:
            return sum(each.done() for each in remotes), len(remotes)

        if count is not None:
            count(parts)
        with core.progress(shown, lambda: WorkDone(*parts(), "parts")):
            for each in remotes:
                result, read = each.fetch()
                partitions.add(read)
                results.append(result)
    except BaseException:  # an interrupt, too: the other parts are not waited for
        give_up(core, splits.choosers, remotes, "another part of the dataset failed")
        raise
    if splits.files and not any(results):
        raise nothing_in(splits.files)
    return results


def give_up(
    core: CoordinatorCore,
    choosers: Iterable[WorkerPredicate],
    remotes: Iterable[RemoteValue],
    reason: str,
) -> None:
    """Withdraw the closures for which some functions choose, and wait for those that run."""
    for chooser in choosers:
        core.queue.inbox.post(Withdraw(chooser, reason))
    for each in remotes:
        with suppress(ServerUnresponsiveError):  # what that one holds up cannot be waited for
            each.wait()
