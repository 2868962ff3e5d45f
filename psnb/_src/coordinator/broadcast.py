"""BroadcastCalls: calls to given workers, before all queued closures, each once at most."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from psnb._src.coordinator.closures.options import ScheduleOptions, WorkerPredicate
from psnb._src.coordinator.closures.remote_value import ClosureStatus, RemoteValue, require_progress
from psnb._src.coordinator.queue import ClosureQueue
from psnb._src.monitor.statistics import WorkerStatistics
from psnb._src.protocol.packing import PerWorkerReference
from psnb._src.utils.tracebacks import timed_out
from psnb._src.worker.context import worker_index

_PATIENCE = 1.0
"""Seconds between two looks at whether the workers that are waited for are still there."""


_FIRST = 1 << 62


Call = tuple[str, Callable[..., Any], tuple[Any, ...]]
"""A worker's name, a function and its arguments."""


class BroadcastCalls:
    """Makes calls on given workers and waits for them. Thread-safe.

    A call that fails cancels nothing, and `join` does not raise its error. Calls that are no longer
    waited for are cancelled.

    Parameters
    ----------
    schedule : callable
        Schedules a function with arguments and options.
    worker_names : callable
        Returns which workers there are at the moment.
    queue : ClosureQueue
        Where they wait.
    """

    def __init__(
        self,
        schedule: Callable[[Callable[..., Any], tuple[Any, ...], ScheduleOptions], RemoteValue],
        worker_names: Callable[[], set[str]],
        queue: ClosureQueue,
    ) -> None:
        self._schedule, self.worker_names, self._queue = schedule, worker_names, queue

    def withdraw(self, chooser: WorkerPredicate, reason: str) -> None:
        """Cancel the closures that wait for a worker chosen by this function object."""
        self._queue.withdraw(chooser, reason)

    def run(
        self, calls: Sequence[Call], timeout: float | None = None, *, all_or_none: bool = False
    ) -> list[RemoteValue | None]:
        """Make calls and wait until all have ended.

        Parameters
        ----------
        calls : sequence of Call
            What to call.
        timeout : float, optional
            Seconds to wait at most.
        all_or_none : bool
            When one has failed, cancel those that have not begun.

        Returns
        -------
        list of RemoteValue or None
            In the order of the calls; None for those whose worker has left before they ended.

        Raises
        ------
        TimeoutError
            If it takes longer than ``timeout`` seconds.
        ServerUnresponsiveError
            If all that are left wait for a server that does not respond.
        """
        end = None if timeout is None else time.monotonic() + timeout
        choosers = {worker: _chooser(worker) for worker, _, _ in calls}
        gone: set[str] = set()
        remotes: list[RemoteValue] = []
        try:
            for worker, function, args in calls:
                # No retries: a new worker has got new values.
                options = ScheduleOptions(0, _FIRST, choosers[worker], detached=True)
                remotes.append(self._schedule(function, args, options))
            while not self._all_ended(remotes, end):
                if all_or_none and any(each.status is ClosureStatus.FAILED for each in remotes):
                    for chooser in choosers.values():
                        self._queue.withdraw(chooser, "another call has failed")
                pairs = zip(calls, remotes, strict=True)
                missing = {call[0] for call, remote in pairs if not remote.done()}
                if end is not None and time.monotonic() >= end:
                    names = ", ".join(sorted(missing))
                    raise timed_out(f"not within {timeout} s: the values of workers {names}")
                for worker in missing - gone - self.worker_names():
                    gone.add(worker)
                    self._queue.withdraw(choosers[worker], f"worker {worker!r} has left")
        finally:
            for chooser in choosers.values():
                self._queue.withdraw(chooser, "it is not waited for any more")
        return [
            None if call[0] in gone and remote.status is not ClosureStatus.COMPLETED else remote
            for call, remote in zip(calls, remotes, strict=True)
        ]

    def _all_ended(self, remotes: list[RemoteValue], end: float | None) -> bool:
        left = _PATIENCE if end is None else min(_PATIENCE, max(0.0, end - time.monotonic()))
        if self._queue.inbox.wait(lambda: all(each.done() for each in remotes), left):
            return True
        require_progress(remotes)
        return False


def _chooser(name: str) -> WorkerPredicate:
    def has_name(worker: WorkerStatistics) -> bool:
        return worker.name == name

    return has_name


def fetch_per_worker(
    value: PerWorkerReference,
    question: Callable[[Any], Any],
    timeout: float | None,
    pinned: BroadcastCalls,
) -> list[Any]:
    """Return what a function says of the value of each worker, in the order of the workers' index.

    Parameters
    ----------
    value : PerWorkerReference
        What to read.
    question : callable
        What is called with it on each worker; errors name it.
    timeout : float or None
        Seconds to wait at most.
    pinned : BroadcastCalls
        Calls the workers.
    """
    calls = [(name, read_value, (value, question)) for name in sorted(pinned.worker_names())]
    pairs = [remote.fetch() for remote in pinned.run(calls, timeout) if remote is not None]
    return [each for _, each in sorted(pairs, key=lambda pair: pair[0])]


def read_value(value: Any, question: Callable[[Any], Any]) -> tuple[int, Any]:
    """Return the index of a worker and what a function says of its value."""
    return worker_index(), question(value)
