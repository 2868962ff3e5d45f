"""Broadcasts: calls to given workers, before all queued closures, each once at most."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from psnb._src.coordinator.closures.options import ScheduleOptions, WorkerPredicate
from psnb._src.coordinator.closures.remote_value import ClosureStatus, RemoteValue, require_progress
from psnb._src.coordinator.queue import ClosureQueue
from psnb._src.coordinator.scheduling.events import Withdraw
from psnb._src.protocol.packing import PerWorkerReference
from psnb._src.utils.tracebacks import timed_out
from psnb._src.worker.context import worker_index

_PATIENCE = 1.0
"""Seconds between two looks at whether the workers that are waited for are still there."""


_FIRST = 1 << 62


Call = tuple[str, Callable[..., Any], tuple[Any, ...]]
"""A worker's name, a function and its arguments."""


class Broadcasts:
    """Makes calls on given workers and waits for them. Thread-safe.

    A call that fails cancels nothing, and `join` does not raise its error. Calls that are no longer
    waited for are cancelled.

    Parameters
    ----------
    schedule : callable
        `CoordinatorCore.schedule`.
    worker_names : callable
        Returns which workers there are at the moment.
    queue : ClosureQueue
        Where they wait.
    """

    def __init__(
        self,
        schedule: Callable[..., RemoteValue],
        worker_names: Callable[[], set[str]],
        queue: ClosureQueue,
    ) -> None:
        self._schedule, self.worker_names, self._queue = schedule, worker_names, queue

    def run(
        self, calls: Sequence[Call], timeout: float | None = None, *, all_or_none: bool = False
    ) -> list[tuple[str, RemoteValue | None]]:
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
        list of tuple
            In the order of the calls the worker and the remote value; None for one whose worker has
            left before it ended.

        Raises
        ------
        TimeoutError
            If it takes longer than ``timeout`` seconds.
        ServerUnresponsiveError
            If all that are left wait for a server that does not respond.
        """
        end = None if timeout is None else time.monotonic() + timeout
        choosers = {worker: _chooser(worker) for worker, _, _ in calls}  # one object for each
        gone: set[str] = set()
        remotes: list[RemoteValue] = []
        try:
            for worker, function, args in calls:
                # No retries: a new worker has got new values.
                options = ScheduleOptions(0, _FIRST, choosers[worker], detached=True)
                remotes.append(self._schedule(function, args, {}, options))
            while not self._all_ended(remotes, end):
                if all_or_none and any(each.status is ClosureStatus.FAILED for each in remotes):
                    for chooser in choosers.values():
                        self._queue.inbox.post(Withdraw(chooser, "another call has failed"))
                pairs = zip(calls, remotes, strict=True)
                missing = {call[0] for call, remote in pairs if not remote.done()}
                if end is not None and time.monotonic() >= end:
                    names = ", ".join(sorted(missing))
                    raise timed_out(f"not within {timeout} s: the values of workers {names}")
                for worker in missing - gone - self.worker_names():
                    gone.add(worker)
                    self._queue.inbox.post(
                        Withdraw(choosers[worker], f"worker {worker!r} has left")
                    )
        finally:
            for chooser in choosers.values():
                self._queue.inbox.post(Withdraw(chooser, "it is not waited for any more"))
        ended = [(worker, each) for (worker, *_), each in zip(calls, remotes, strict=True)]
        done = ClosureStatus.COMPLETED
        lost = {each for worker, each in ended if worker in gone and each.status is not done}
        return [(worker, None if each in lost else each) for worker, each in ended]

    def ask(
        self, value: PerWorkerReference, question: Callable[[Any], Any], timeout: float | None
    ) -> list[Any]:
        """Return what a function says of each worker's value, in the order of workers' index.

        Errors name the function.
        """
        calls = [(name, read_value, (value, question)) for name in sorted(self.worker_names())]
        pairs = [remote.fetch() for _, remote in self.run(calls, timeout) if remote is not None]
        return [each for _, each in sorted(pairs, key=lambda pair: pair[0])]

    def _all_ended(self, remotes: list[RemoteValue], end: float | None) -> bool:
        left = _PATIENCE if end is None else min(_PATIENCE, max(0.0, end - time.monotonic()))
        if self._queue.inbox.wait(lambda: all(each.done() for each in remotes), left):
            return True
        require_progress(remotes)
        return False


def _chooser(name: str) -> WorkerPredicate:
    return lambda worker: worker.name == name


def read_value(value: Any, question: Callable[[Any], Any]) -> tuple[int, Any]:
    """Return the index of a worker and what a function says of its value."""
    return worker_index(), question(value)
